"""Text to a code object: the clang of ROCm or of the `ziglang` package, by way of assembly; hiprtc where there is
neither.

HIP text becomes assembly, assembly an object, the object a code object that `hipModuleLoadData` takes. (With ``-c`` at
once clang looks for a linker of ROCm's.)
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright import processes
from tilewright.errors import CompilerNotFound, DeviceCompilationFailed
from tilewright.machine.amd import AmdArch
from tilewright.machine.arch import Arch
from tilewright.targets.binary import DeviceBinary, refused
from tilewright.targets.gpu.library import RuntimeCompiler, first_loaded
from tilewright.targets.hip.code_object import Refusal, Resources, parse_resources, refusals, resources_of, warnings_of
from tilewright.targets.hip.driver import rocm_libraries
from tilewright.targets.hip.headers import FOLDERS, headers_hash, headers_of
from tilewright.texts import read_text, write_text

NAME = "kernel.hip"
"""What messages call lines of a text that have no ``#line``."""

LANGUAGE = (
    "-O3", "-std=c++17", "-ffp-contract=off", "-fwrapv", "-munsafe-fp-atomics", "-fno-builtin",
    "-mcode-object-version=5", "-Rpass-analysis=kernel-resource-usage", "-w",
)  # fmt: skip
FLAGS = ("-x", "hip", "--cuda-device-only", "-nogpuinc", "-nogpulib", *LANGUAGE)
"""Flags of every compilation. Products and sums are not contracted: the IR rounds each operation, and ``fma`` is its
own. Integers wrap. (Without strict aliasing clang waits for loads to LDS before products.)"""


RDNA = ("-mcumode", "-Xclang", "-target-feature", "-Xclang", "-real-true16")
"""Besides, on machines with waves of 32 lanes. Two values of 16 bits do not share a register: one that is on its way
would have work on the other wait for it."""


@dataclass(frozen=True, slots=True)
class Clang:
    """A clang with AMD's GPUs: the words before its arguments, those of its linker, and its version."""

    command: tuple[str, ...]
    linker: tuple[str, ...]
    version: str


class Binary(DeviceBinary):
    """A code object, and its assembly, which is the machine code instruction by instruction."""

    endings, counted = ("hsaco", "s"), Resources

    def machine_code(self) -> str:
        """The instructions, without what the assembler is told besides."""
        lines = (line for line in self.assembly.split("\n") if not re.match(r"\s*(\.(?!L)|;|$)", line))
        return "\n".join(line.split(";")[0].rstrip() for line in lines)


@functools.cache
def find_compiler() -> Clang | Hiprtc:
    """ROCm's clang where it is, else that of the `ziglang` package, else hiprtc, which keeps the assembly to itself.

    Raises
    ------
    CompilerNotFound : there is none of them.
    """
    rocm = Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / "llvm" / "bin"
    candidates: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    if (rocm / "clang").is_file() and (rocm / "ld.lld").is_file():
        candidates.append(((str(rocm / "clang"),), (str(rocm / "ld.lld"),)))
    carried = processes.zig()
    if carried is not None:
        candidates.append(((str(carried), "clang"), (str(carried), "ld.lld")))
    if shutil.which("amdclang"):
        candidates.append((("amdclang",), ("ld.lld",)))
    for command, linker in candidates:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True)
        if done.returncode == 0:
            return Clang(command, linker, done.stdout.splitlines()[0])
    library = find_hiprtc()
    if library is not None:
        return library
    raise CompilerNotFound(
        "compiling for AMD's GPUs needs a clang or hiprtc, and neither was found",
        hint="pip install ziglang, or install ROCm",
    )


def compiler_key(arch: Arch) -> str:
    """Identity of the compiler, of its flags and of the headers that a text includes."""
    return f"{find_compiler().version} {' '.join(_of_machine(arch, FLAGS))} {headers_hash()}"


def compile_text(text: str, arch: Arch, planned: Mapping[str, int] | None = None) -> Binary:
    """Compile one emitted text.

    Parameters
    ----------
    planned : bytes of shared memory of each kernel that the launcher speaks of: resources count those besides.

    Raises
    ------
    CompilerNotFound : there is no compiler.
    DeviceCompilationFailed : it refused the text.
    """
    compiler = find_compiler()
    if isinstance(compiler, Hiprtc):
        image, assembly, resources = _by_library(compiler, text, arch, dict(planned or {}))
    else:
        image, assembly, resources = _by_clang(compiler, text, arch, dict(planned or {}))
    return Binary(image, assembly, resources, tuple(warnings_of(resources)))


def _of_machine(arch: Arch, flags: Sequence[str]) -> list[str]:
    return [*flags, *(RDNA if arch.warp_size == 32 else ()), f"--offload-arch={arch.name}"]


def _by_clang(clang: Clang, text: str, arch: Arch, planned: dict[str, int]) -> tuple[bytes, str, dict[str, Resources]]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_text(directory / NAME, text)
        folders = [f"-I{folder}" for folder in FOLDERS]
        log = _run([*clang.command, *_of_machine(arch, FLAGS), *folders, "-S", NAME, "-o", "kernel.s"], directory)
        target = ["--target=amdgcn-amd-amdhsa", f"-mcpu={arch.name}", "-mcode-object-version=5"]
        _run([*clang.command, *target, "-c", "kernel.s", "-o", "kernel.o"], directory)
        _run([*clang.linker, "-shared", "kernel.o", "-o", "kernel.hsaco"], directory)
        resources = parse_resources(log, planned)
        return (directory / "kernel.hsaco").read_bytes(), read_text(directory / "kernel.s"), resources


def _by_library(
    library: Hiprtc, text: str, arch: Arch, planned: dict[str, int]
) -> tuple[bytes, str, dict[str, Resources]]:
    made = library.compile(text, NAME, headers_of(text), _of_machine(arch, LANGUAGE))
    if not made.image:
        raise _refused(made.log, refusals(made.log, NAME))
    assert isinstance(arch, AmdArch)
    return made.image, "", resources_of(made.image, planned, arch)


def _run(command: Sequence[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    if done.returncode:
        raise _refused(done.stderr, refusals(done.stderr, NAME))
    return done.stderr


def _refused(log: str, errors: Sequence[Refusal]) -> DeviceCompilationFailed:
    """The first error, at the author's line."""
    if not errors:
        return DeviceCompilationFailed("clang refused the text", hint=log.strip()[-2000:])
    first = errors[0]
    where = f" (line {first.line} of the emitted text)" if first.span is None and first.line else ""
    return refused("clang refused the text", [error.text for error in errors], first.span, where)


_NAMES = ("libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so", "hiprtc0700.dll", "hiprtc0600.dll")


class Hiprtc(RuntimeCompiler):
    """One hiprtc library."""

    prefix, results, refusals = "hiprtc", ("GetCode",), (6,)

    @property
    def version(self) -> str:
        """In words."""
        return "hiprtc {}.{}".format(*self.numbers)


@functools.cache
def find_hiprtc() -> Hiprtc | None:
    """hiprtc on this machine, or None."""
    return first_loaded(rocm_libraries("libhiprtc.so", _NAMES), Hiprtc)
