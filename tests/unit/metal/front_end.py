"""A second opinion on Metal texts without a Mac: clang's C++ for OpenCL, in which address spaces are types as they are
in Metal."""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path

from tilewright import processes
from tilewright.errors import CompilerNotFound

STRICT = Path(__file__).parent / "strict"
"""Metal's own library as exact declarations."""

FLAGS = (
    "-x", "clcpp", "-cl-std=clc++2021", "--target=spir64-unknown-unknown", "-Xclang",
    "-cl-ext=+cl_khr_fp16,-cl_khr_fp64,-__opencl_c_fp64,-__opencl_c_generic_address_space,-__opencl_c_pipes,-__opencl_c_device_enqueue",
    "-fsyntax-only", "-ferror-limit=0", "-Wall", "-Werror", "-Wno-unknown-attributes", "-Wno-ignored-attributes",
    "-Wno-unknown-pragmas", f"-I{STRICT}",
)  # fmt: skip


@functools.cache
def clang() -> tuple[str, ...]:
    """The command of the clang that the package `ziglang` carries.  Raises CompilerNotFound."""
    found = processes.zig()
    if found is None:
        raise CompilerNotFound("Metal texts are checked by clang", hint="pip install ziglang")
    return (str(found), "clang")


def complaints(text: str) -> list[str]:
    """What clang says against a text, one line each; none where it accepts it.

    Examples
    --------
    >>> complaints("#include <metal_stdlib>\\nkernel void f(device float* a) { a[0] = 1.0f; }")
    []
    >>> complaints("#include <metal_stdlib>\\nkernel void f(const device float* a) { a[0] = 1.0f; }") != []
    True
    """
    done = subprocess.run([*clang(), *FLAGS, "-"], input=text, capture_output=True, text=True, check=False)
    found = re.findall(r"^\S*?:(\d+):\d+: (?:fatal )?(?:error|warning): (.*)$", done.stderr, re.M)
    said = [f"line {line}: {words}" for line, words in found]
    for number, line in enumerate(text.split("\n"), 1):
        if re.search(r"\blong long\b|\b\d+u?ll\b", line.split("//")[0]):  # clang has them
            said.append(f"line {number}: Metal has no long long")
    return said or ([done.stderr.strip()] if done.returncode else [])
