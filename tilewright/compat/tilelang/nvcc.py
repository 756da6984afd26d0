"""``tilelang.contrib.nvcc`` and ``nvrtc``: what a GPU has by its compute capability, and CUDA texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tilewright.compat.tilelang.targets import compute_version
from tilewright.specialization import InvalidUse
from tilewright.targets.cuda.compiler import Binary, Toolchain, compile_text, find_nvcc
from tilewright.targets.cuda.nvrtc import find_nvrtc
from tilewright.targets.registry import resolve


def get_target_compute_version(target: object = None) -> str:
    """The compute capability, ``"9.0"`` for example."""
    return ".".join(map(str, compute_version(target)))


def parse_compute_version(compute_version: str) -> tuple[int, int]:
    """``"9.0"`` as ``(9, 0)``."""
    major, _, minor = compute_version.partition(".")
    return int(major), int(minor or 0)


def get_target_arch(compute_version: Any) -> str:
    """The digits of an architecture's name for a compute capability: ``"90a"`` for (9, 0)."""
    major, minor = parse_compute_version(compute_version) if isinstance(compute_version, str) else compute_version
    return f"{major}{minor}" + ("a" if major >= 9 else "")


def have_tensorcore(compute_version: str | None = None, target: object = None) -> bool:
    """Whether there are matrix instructions."""
    return parse_compute_version(compute_version or get_target_compute_version(target)) >= (7, 0)


def _from(version: tuple[int, int], what: str) -> Callable[[str], bool]:
    def have(compute_version: str) -> bool:
        return parse_compute_version(compute_version) >= version

    have.__doc__ = f"Whether a compute capability has {what}."
    return have


have_fp16, have_int8 = _from((5, 3), "arithmetic of halves"), _from((6, 1), "products of bytes")
have_bf16, have_fp8 = _from((8, 0), "bfloat16"), _from((8, 9), "products of floats of eight bits")


def have_tma(target: object = None) -> bool:
    """Whether there is an engine that copies tiles."""
    return compute_version(target) >= (9, 0)


have_pdl = have_mbarrier = have_tma
"""Launches that begin before the last one ends, and barriers that count bytes, came with that engine."""


def is_hopper(target: object = None) -> bool:
    """Whether a target is of compute capability 9."""
    return compute_version(target)[0] == 9


def have_cudagraph() -> bool:
    """Whether launches can be recorded: on every GPU that there is a target for."""
    return True


def get_cuda_version(cuda_path: object = None) -> tuple[int, ...]:
    """The version of the compiler that makes binaries."""
    return tuple(find_nvrtc().numbers)


get_nvrtc_version = get_cuda_version


def get_nvcc_compiler() -> str:
    """The path of nvcc.  Raises CompilerNotFound: tilewright needs none."""
    return str(find_nvcc())


def find_cuda_path() -> str:
    """The folder of the toolkit that nvcc is of."""
    return str(find_nvcc().parent.parent)


def _compiled(code: str, arch: object, options: Sequence[str] | str | None) -> Binary:
    digits = re.fullmatch(r"(?:sm_|compute_)?(\d+[a-z]?)", str(arch)) if arch is not None else None
    if arch is not None and digits is None:
        raise InvalidUse(f"there is no architecture {arch!r}", hint="90, '90a' or 'sm_90a'")
    machine = resolve(f"cuda -arch=sm_{digits[1]}" if digits else "cuda")[1]
    flags = options.split() if isinstance(options, str) else options or ()
    return compile_text(code, machine, toolchain=Toolchain(flags=tuple(flags)))


def compile_cuda(
    code: str,
    target_format: str = "ptx",
    arch: object = None,
    options: Sequence[str] | str | None = None,
    path_target: Any = None,
    verbose: bool = False,
) -> bytearray:
    """Compile a CUDA text, by NVRTC.

    Parameters
    ----------
    target_format : ``"ptx"`` or ``"cubin"``.
    arch : ``90`` or ``"sm_90a"``; that of the GPU here where None.
    options : further flags.
    path_target : a file that the result is written to, too.
    verbose : accepted for TileLang's sake.
    """
    if target_format not in ("ptx", "cubin"):
        raise InvalidUse(f"there is no format {target_format!r}", hint="'ptx' or 'cubin'")
    made = _compiled(code, arch, options)
    data = bytearray(made.image if target_format == "cubin" else made.assembly.encode())
    if path_target is not None:
        Path(path_target).write_bytes(data)
    return data


def get_ptx_from_source(code: str, compile_flags: list[str] | None = None, verbose: bool = False) -> str:
    """The assembly of a CUDA text, for the GPU here."""
    return _compiled(code, None, compile_flags).assembly


def get_sass_from_source(code: str, compile_flags: list[str] | None = None, verbose: bool = False) -> str:
    """The machine code of a CUDA text as text, for the GPU here."""
    return _compiled(code, None, compile_flags).machine_code()
