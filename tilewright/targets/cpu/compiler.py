"""Finds the system's C compiler, learns its version, compiles kernels and the thread pool into libraries."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tilewright import processes
from tilewright.cache import cached, digest
from tilewright.errors import CompilerNotFound, Span, TilewrightError
from tilewright.machine.arch import Arch
from tilewright.options import options
from tilewright.precompiled import precompiled
from tilewright.targets.base import Source
from tilewright.targets.cpu.arch import compiler_flags, runs_here, zig_flags
from tilewright.texts import read_text, write_text

DEVICE = Path(__file__).parent / "device"
HEADER, LIBRARY, SHARED = "tilewright_cpu.h", "kernel.so", "shared.so"

FLAGS = (
    "-std=gnu11", "-O3", "-fPIC", "-fvisibility=hidden", "-Werror=implicit-function-declaration",
    "-fwrapv",  # integers wrap
    "-fno-strict-aliasing",  # views read a buffer's bytes as another type
    "-fno-math-errno", "-fno-trapping-math",  # nobody looks at errno or at floating-point flags
    "-ffp-contract=off",  # every operation of the program rounds; fma is written where it is meant
)  # fmt: skip

LOADS_APART = "-fno-tree-ter"
"""For GCC 12, which stops at masked vectors of ``c ? max(x, 88) : y`` in 8 or 16 bits with AVX-512: it puts the load of
x into an instruction that takes none there."""


class BrokenCompiler(TilewrightError):
    """A C compiler that cannot be run or cannot compile an empty program."""

    def __init__(self, command: tuple[str, ...], reason: str) -> None:
        super().__init__(
            f"the C compiler {' '.join(command)!r} does not work: {reason}",
            hint="repair it, or name another with TILEWRIGHT_CC",
        )


class WrongMachine(TilewrightError):
    """Code for a CPU that this machine is not."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="its text can be inspected: kernel.get_kernel_source()")


class CompilerFailed(TilewrightError):
    """The C compiler refused generated code: a defect of tilewright."""

    def __init__(self, message: str, line: str, span: Span | None) -> None:
        super().__init__(
            f"the C compiler refused the code generated here: {message}\n  in: {line.strip()}",
            span=span,
            hint="this is a defect of tilewright; please report it with the kernel",
        )


@dataclass(frozen=True, slots=True)
class Compiler:
    """A command that compiles C, with what it says of itself."""

    command: tuple[str, ...]
    version: str


def find_compiler() -> Compiler:
    """The C compiler: TILEWRIGHT_CC, cc, gcc, clang, or the one in the ziglang package.

    Raises
    ------
    CompilerNotFound, BrokenCompiler
    """
    return _find_compiler(options().compiler, os.environ.get("PATH", ""))


@functools.lru_cache(maxsize=8)
def _find_compiler(wish: str, _path: str) -> Compiler:
    if wish:
        return _probe(tuple(shlex.split(wish)))
    for name in ("cc", "gcc", "clang"):
        found = shutil.which(name)
        if found:
            return _probe((found,))
    if importlib.util.find_spec("ziglang") is not None:
        return _probe((sys.executable, "-m", "ziglang", "cc"))
    raise CompilerNotFound(
        "no C compiler was found",
        hint="install gcc or clang, or the extra that brings one: pip install 'tilewright[compiler]'; "
        "TILEWRIGHT_CC names another command",
    )


def _probe(command: tuple[str, ...]) -> Compiler:
    try:
        answer = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        raise BrokenCompiler(command, "there is no such command") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BrokenCompiler(command, str(error)) from None
    if answer.returncode != 0 or not answer.stdout.strip():
        raise BrokenCompiler(command, _first_line(answer.stderr) or f"it exits with status {answer.returncode}")
    return Compiler(command, _first_line(answer.stdout))


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def compiler_key(arch: Arch) -> str:
    """Identity of everything but the source that decides the binary: compiler, flags, headers."""
    compiler = find_compiler()
    return "\n".join([*compiler.command, compiler.version, *FLAGS, *machine_flags(arch), _headers_digest()])


@functools.cache
def _headers_digest() -> str:
    state = hashlib.sha256()
    for path in sorted(DEVICE.iterdir()):
        state.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return state.hexdigest()


def build(source: Source, arch: Arch, directory: Path) -> None:
    """Compile `source` into ``directory/kernel.so``, beside its text.

    Raises
    ------
    CompilerNotFound, BrokenCompiler, CompilerFailed, WrongMachine
    """
    path = directory / f"kernel.{source.language}"
    write_text(path, source.text)
    error = _run(path, directory / LIBRARY, machine_flags(arch), DEVICE / HEADER)
    if error is not None and "unrecognizable insn" in error:
        error = _run(path, directory / LIBRARY, (*machine_flags(arch), LOADS_APART))
    if error is not None:
        raise _explain(error, source.text, arch)


def machine_flags(arch: Arch) -> tuple[str, ...]:
    """Flags that let the compiler in use make code for `arch`."""
    is_zig = any("zig" in part for part in find_compiler().command)
    return zig_flags(arch) if is_zig else compiler_flags(arch)


def _run(source: Path, library: Path, flags: tuple[str, ...], header: Path | None = None) -> str | None:
    """Compile into `library` what begins with `header`; the compiler's complaint, or None. Interrupted, it leaves no
    library behind."""
    compiler = find_compiler()
    partial = library.with_suffix(".partial")
    command = [*compiler.command, *FLAGS, *flags]
    ending = [str(source), "-shared", "-o", str(partial), "-lm", "-lpthread"]
    try:
        if header is not None:
            command += precompiled(command, compiler.version, header, "c", _headers_digest())
        done = processes.run([*command, f"-I{DEVICE}", *ending], "compiling a kernel", {**os.environ, "LC_ALL": "C"})
        if done.status == 0:
            partial.rename(library)
            return None
        return done.complaint or f"it exits with status {done.status}"
    except OSError as error:
        raise BrokenCompiler(compiler.command, str(error)) from None
    finally:
        partial.unlink(missing_ok=True)


def _explain(complaint: str, text: str, arch: Arch) -> TilewrightError:
    """The error for a refused source, at the author's line whose code it was."""
    found = re.search(r"kernel\.c:(\d+):\d+: (?:fatal )?error: (.*)", complaint)
    if found is None and not runs_here(arch):
        return WrongMachine(f"the C compiler here makes no code for {arch.name}: {complaint.splitlines()[0]}")
    if found is None:
        return BrokenCompiler(find_compiler().command, complaint)
    number, lines = int(found[1]), text.splitlines()
    return CompilerFailed(found[2], lines[number - 1] if number <= len(lines) else "", _origin(lines[:number]))


def _origin(lines: list[str]) -> Span | None:
    """The author's line named by the last comment before the end of `lines`."""
    for line in reversed(lines):
        comment = re.match(r"\s*// ([^:]+):(\d+)", line)
        if comment:
            return Span(comment[1], int(comment[2]))
        if line.startswith("static "):
            return None
    return None


def device_library(name: str = "tilewright_pool") -> Path:
    """A library that all kernels share, the thread pool's, compiled once and kept in the cache directory.

    Raises
    ------
    CompilerNotFound, BrokenCompiler, CacheUnavailable
    """
    compiler, source = find_compiler(), DEVICE / f"{name}.c"

    def make(directory: Path) -> None:
        error = _run(source, directory / SHARED, ())
        if error is not None:
            raise BrokenCompiler(compiler.command, _first_line(error))

    return cached(digest(name, *compiler.command, compiler.version, *FLAGS, read_text(source)), make) / SHARED
