"""Text to machine code: NVRTC from the package index by default, nvcc where the user asks for it.

A text is self-contained with the device headers, which travel with it; no toolkit is needed.  What the
compiler says comes back in the author's terms (`messages`).
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.errors import CompilerNotFound, DeviceCompilationFailed, Span
from tilewright.machine.arch import Arch
from tilewright.targets.binary import CompilerWarning, DeviceBinary, refused
from tilewright.targets.cuda import messages
from tilewright.targets.cuda import sass as disassembly
from tilewright.targets.cuda.headers import headers_hash, headers_of
from tilewright.targets.cuda.nvrtc import find_nvrtc
from tilewright.targets.cuda.toolkit import HEADER, include_directory
from tilewright.targets.gpu.library import Compilation
from tilewright.texts import read_text, write_text

NAME = "kernel.cu"
"""What messages call lines of a text that have no ``#line``."""

FLAGS = ("-std=c++17", "-lineinfo", "-fmad=false", "--ptxas-options=-v")
"""Flags of every compilation. Products and sums are not contracted: the IR rounds each operation, and ``fma`` is its
own."""


class Binary(DeviceBinary):
    """A cubin, and its PTX, of which the driver makes code for newer generations."""

    endings, counted = ("cubin", "ptx"), messages.Resources

    def machine_code(self) -> str:
        """SASS.  Raises CompilerNotFound without nvdisasm."""
        return disassembly.disassemble(self.image)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Which compiler makes the binary, and its identity for cache keys.

    Attributes
    ----------
    name : ``"nvrtc"`` or ``"nvcc"``.
    flags : flags besides `FLAGS`, part of the key.
    """

    name: str = "nvrtc"
    flags: tuple[str, ...] = field(default=())

    def key(self, arch: Arch) -> str:
        """Compiler, version, flags, architecture and the device headers."""
        version = nvcc_version() if self.name == "nvcc" else "{}.{}".format(*find_nvrtc().numbers)
        return " ".join((self.name, version, arch.name, *FLAGS, *self.flags, headers_hash()))


def compile_text(text: str, arch: Arch, *, toolchain: Toolchain | None = None) -> Binary:
    """Compile one emitted text.

    Parameters
    ----------
    text : CUDA C++ in the vocabulary of ``docs/cuda_vocabulary.md``.
    arch : the machine; its name is the compiler's (``sm_90a``).

    Raises
    ------
    CompilerNotFound : no compiler, or one too old for the architecture.
    DeviceCompilationFailed : the compiler refused the text.
    """
    toolchain = toolchain or Toolchain()
    flags = [f"-arch={arch.name}", *FLAGS, *toolchain.flags]
    if f'#include "{HEADER}"' in text:
        flags.append(f"-I{include_directory()}")
    headers = headers_of(text)
    run = _nvcc if toolchain.name == "nvcc" else _nvrtc
    result = run(text, headers, arch, flags)
    if not result.image:
        raise _refused(text, result.log, lambda: run(text, headers, arch, [_virtual(arch), *flags[1:]]).assembly)
    warnings = tuple(_placed(one, result.image) for one in messages.parse_warnings(result.log, result.assembly))
    return Binary(result.image, result.assembly, messages.parse_resources(result.log), warnings)


def _nvrtc(text: str, headers: dict[str, str], arch: Arch, flags: Sequence[str]) -> Compilation:
    nvrtc = find_nvrtc()
    number = int("".join(character for character in arch.name if character.isdigit()))
    if number not in nvrtc.architectures:
        raise CompilerNotFound(
            f"NVRTC {nvrtc.numbers[0]}.{nvrtc.numbers[1]} at {nvrtc.path} cannot compile for {arch.name}",
            hint="pip install --upgrade nvidia-cuda-nvrtc",
        )
    return nvrtc.compile(text, NAME, headers, flags)


def _nvcc(text: str, headers: dict[str, str], arch: Arch, flags: Sequence[str]) -> Compilation:
    """The same through nvcc, in a directory of its own."""
    nvcc = find_nvcc()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_text(directory / NAME, text)
        for header, content in headers.items():
            write_text(directory / header, content)
        common = [str(nvcc), *(flag.replace("--ptxas-options=", "-Xptxas=") for flag in flags), "-I.", NAME]
        cubin = subprocess.run([*common, "-cubin", "-o", "kernel.cubin"], cwd=directory, capture_output=True, text=True)
        log = cubin.stdout + cubin.stderr
        if cubin.returncode:
            return Compilation(b"", "", log)
        ptx = subprocess.run([*common, "-ptx", "-o", "kernel.ptx"], cwd=directory, capture_output=True, text=True)
        if ptx.returncode:
            return Compilation(b"", "", ptx.stdout + ptx.stderr)
        return Compilation((directory / "kernel.cubin").read_bytes(), read_text(directory / "kernel.ptx"), log)


@functools.cache
def find_nvcc() -> Path:
    """nvcc of a toolkit.  Raises CompilerNotFound."""
    for candidate in (shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if candidate and Path(candidate).is_file():
            return Path(candidate)
    raise CompilerNotFound(
        "nvcc was asked for and is not on this machine", hint="leave the choice to tilewright: NVRTC needs no toolkit"
    )


@functools.cache
def nvcc_version() -> str:
    """The release that nvcc names."""
    output = subprocess.run([str(find_nvcc()), "--version"], capture_output=True, text=True).stdout
    return output.split("release", 1)[-1].split(",")[0].strip()


def _virtual(arch: Arch) -> str:
    """The flag that makes PTX for an architecture and leaves the assembler out."""
    return f"-arch={arch.name.replace('sm_', 'compute_')}"


def _refused(text: str, log: str, assembly: Callable[[], str]) -> DeviceCompilationFailed:
    """The first error, at the author's line, with the operator whose code it stands in."""
    errors = messages.front_end_errors(log)
    if not errors:
        return _refused_by_assembler(text, log, assembly)
    first = errors[0]
    span = None if first.file == NAME else Span(first.file, first.line)
    where = f" (line {first.line} of the emitted text)" if span is None else ""
    what = "the CUDA compiler refused the text" + _of(
        messages.operator_at(text, "" if span is None else first.file, first.line)
    )
    return refused(what, [error.text for error in errors], span, where)


def _refused_by_assembler(text: str, log: str, assembly: Callable[[], str]) -> DeviceCompilationFailed:
    """The same for what compiles to PTX that the assembler does not take: `assembly` makes that PTX again."""
    errors = messages.assembler_errors(log)
    if not errors:
        return DeviceCompilationFailed("the CUDA compiler refused the text", hint=log.strip()[-2000:])
    first = errors[0]
    span = None if first.line is None else messages.SourceMap.of(assembly()).at(first.line)
    operator = messages.operator_at(text, span.file, span.line) if span is not None else None
    return refused("the assembler refused the kernel" + _of(operator), [error.text for error in errors], span)


def _of(operator: str | None) -> str:
    return f" in the code of `{operator}`" if operator else ""


def _placed(warning: CompilerWarning, cubin: bytes) -> CompilerWarning:
    """A warning about local memory with the author's lines whose code uses it, where the disassembler is here."""
    if warning.kind not in ("spill", "local memory"):
        return warning
    try:
        spans = disassembly.lines_with(cubin, warning.kernel, "STL", "LDL")
    except CompilerNotFound:
        return warning
    return CompilerWarning(warning.kind, warning.kernel, warning.message, spans[:3])
