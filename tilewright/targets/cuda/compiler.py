"""Text to machine code: NVRTC from the package index by default, nvcc where the user asks for it.

A text is self-contained with the device headers, which travel with it; no toolkit is needed.  What the
compiler says comes back in the author's terms (`messages`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tilewright.errors import CompilerNotFound, DeviceCompilationFailed, Span
from tilewright.machine.arch import Arch
from tilewright.targets.binary import CompilerWarning
from tilewright.targets.cuda import sass as disassembly
from tilewright.targets.cuda.headers import DIRECTORIES, WgmmaShape, headers_of, wgmma_header, wgmma_sparse_header
from tilewright.targets.cuda.messages import (
    Resources,
    SourceMap,
    assembler_errors,
    front_end_errors,
    operator_at,
    parse_resources,
    parse_warnings,
)
from tilewright.targets.cuda.nvrtc import Compilation, find_nvrtc
from tilewright.targets.cuda.toolkit import HEADER, include_directory
from tilewright.texts import read_text, write_text

NAME = "kernel.cu"
"""What messages call lines of a text that have no ``#line``."""

FLAGS = ("-std=c++17", "-lineinfo", "-fmad=false", "--ptxas-options=-v")
"""Flags of every compilation. Products and sums are not contracted: the IR rounds each operation, and ``fma`` is its
own."""


@dataclass(frozen=True, slots=True)
class Binary:
    """Machine code for one architecture and what is known about it.

    Attributes
    ----------
    cubin : the code, as the driver loads it.
    ptx : the assembly it was made of.
    resources : registers, spills and shared memory by kernel.
    warnings : losses of speed that the compiler reported.
    """

    cubin: bytes
    ptx: str
    resources: dict[str, Resources]
    warnings: tuple[CompilerWarning, ...] = ()

    @property
    def assembly(self) -> str:
        """PTX."""
        return self.ptx

    def machine_code(self) -> str:
        """The machine code as text.  Raises CompilerNotFound without nvdisasm."""
        return disassembly.disassemble(self.cubin)

    def save(self, directory: Path) -> None:
        """Write the binary into a directory, such as a cache entry."""
        (directory / "kernel.cubin").write_bytes(self.cubin)
        write_text(directory / "kernel.ptx", self.ptx)
        facts = {
            "resources": {name: asdict(resources) for name, resources in self.resources.items()},
            "warnings": [asdict(warning) for warning in self.warnings],
        }
        write_text(directory / "kernel.json", json.dumps(facts))

    @staticmethod
    def load(directory: Path) -> Binary:
        """What `save` wrote."""
        facts = json.loads(read_text(directory / "kernel.json"))
        return Binary(
            (directory / "kernel.cubin").read_bytes(),
            read_text(directory / "kernel.ptx"),
            {name: Resources(**record) for name, record in facts["resources"].items()},
            tuple(CompilerWarning.of_record(record) for record in facts["warnings"]),
        )


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
        version = nvcc_version() if self.name == "nvcc" else "{}.{}".format(*find_nvrtc().version)
        return " ".join((self.name, version, arch.name, *FLAGS, *self.flags, headers_hash()))


@functools.cache
def headers_hash() -> str:
    """Hash of the whole device vocabulary and of the generator of wgmma functions."""
    shape = WgmmaShape(8, "f32", "f16", "f16")
    digest = hashlib.sha256((wgmma_header(shape, steps=2) + wgmma_sparse_header(shape)).encode())
    for path in sorted(path for folder in DIRECTORIES for path in folder.glob("*.cuh")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def compile_text(text: str, arch: Arch, *, toolchain: Toolchain | None = None, fast_math: bool = False) -> Binary:
    """Compile one emitted text.

    Parameters
    ----------
    text : CUDA C++ in the vocabulary of ``docs/cuda_vocabulary.md``.
    arch : the machine; its name is the compiler's (``sm_90a``).
    fast_math : let the compiler contract, approximate and flush.

    Raises
    ------
    CompilerNotFound : no compiler, or one too old for the architecture.
    DeviceCompilationFailed : the compiler refused the text.
    """
    toolchain = toolchain or Toolchain()
    flags = [f"-arch={arch.name}", *FLAGS, *toolchain.flags]
    if fast_math:
        flags = [flag for flag in flags if flag != "-fmad=false"] + ["-use_fast_math"]
    if f'#include "{HEADER}"' in text:
        flags.append(f"-I{include_directory()}")
    headers = headers_of(text)
    run = _nvcc if toolchain.name == "nvcc" else _nvrtc
    result = run(text, headers, arch, flags)
    if not result.succeeded:
        raise _refused(text, result.log, lambda: run(text, headers, arch, [_virtual(arch), *flags[1:]]).ptx)
    warnings = parse_warnings(result.log, result.ptx)
    return Binary(
        result.cubin, result.ptx, parse_resources(result.log), tuple(_placed(w, result.cubin) for w in warnings)
    )


def _nvrtc(text: str, headers: dict[str, str], arch: Arch, flags: Sequence[str]) -> Compilation:
    nvrtc = find_nvrtc()
    number = int("".join(character for character in arch.name if character.isdigit()))
    if number not in nvrtc.architectures:
        raise CompilerNotFound(
            f"NVRTC {nvrtc.version[0]}.{nvrtc.version[1]} at {nvrtc.path} cannot compile for {arch.name}",
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
            return Compilation(False, b"", "", log)
        ptx = subprocess.run([*common, "-ptx", "-o", "kernel.ptx"], cwd=directory, capture_output=True, text=True)
        if ptx.returncode:
            return Compilation(False, b"", "", ptx.stdout + ptx.stderr)
        return Compilation(True, (directory / "kernel.cubin").read_bytes(), read_text(directory / "kernel.ptx"), log)


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
    errors = front_end_errors(log)
    if not errors:
        return _refused_by_assembler(text, log, assembly)
    first = errors[0]
    span = None if first.file == NAME else Span(first.file, first.line)
    where = f" (line {first.line} of the emitted text)" if span is None else ""
    operator = operator_at(text, "" if span is None else first.file, first.line)
    return _first_of([error.text for error in errors], "the CUDA compiler refused the text", operator, where, span)


def _refused_by_assembler(text: str, log: str, assembly: Callable[[], str]) -> DeviceCompilationFailed:
    """The same for what compiles to PTX that the assembler does not take: `assembly` makes that PTX again."""
    errors = assembler_errors(log)
    if not errors:
        return DeviceCompilationFailed("the CUDA compiler refused the text", hint=log.strip()[-2000:])
    first = errors[0]
    span = None if first.line is None else SourceMap.of(assembly()).at(first.line)
    operator = operator_at(text, span.file, span.line) if span is not None else None
    return _first_of([error.text for error in errors], "the assembler refused the kernel", operator, "", span)


def _first_of(
    errors: Sequence[str], what: str, operator: str | None, where: str, span: Span | None
) -> DeviceCompilationFailed:
    emitted = f" in the code of `{operator}`" if operator else ""
    more = f"; {len(errors) - 1} more errors follow it" if len(errors) > 1 else ""
    said = f"{what}{emitted}{where}: {errors[0]}{more}"
    return DeviceCompilationFailed(said, span=span, hint="kernel.get_kernel_source() shows the text")


def _placed(warning: CompilerWarning, cubin: bytes) -> CompilerWarning:
    """A warning about local memory with the author's lines whose code uses it, where the disassembler is here."""
    if warning.kind not in ("spill", "local memory"):
        return warning
    try:
        spans = disassembly.lines_with(cubin, warning.kernel, "STL", "LDL")
    except CompilerNotFound:
        return warning
    return CompilerWarning(warning.kind, warning.kernel, warning.message, spans[:3])
