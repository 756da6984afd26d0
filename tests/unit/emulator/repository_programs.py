"""Every program of the repository that the emulator must agree on with the interpreter: the library's kernels and the tests' programs.

A kernel that is added to `tilewright/kernels` is added here; a test fails until it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.extend(str(Path(__file__).parents[1] / "cuda" / folder) for folder in ("programs", "copies", "tiles", "whole"))
import test_cuda_copies as copies
import test_cuda_kernels as plain
import test_cuda_pipelines as pipelines
import test_cuda_replicas as replicas
from cuda_gemm import matmul as gemm
from cuda_gemm import on, target_of
from hopper_gemm import roles_matmul
from hopper_matmul import hopper_matmul
from matmul_programs import HOPPER_KERNELS, KERNELS

from tilewright.kernels.attention import AttentionTiles, flash_attention
from tilewright.kernels.elementwise import elementwise
from tilewright.kernels.matmul import matmul
from tilewright.kernels.rms_norm import rms_norm_of_long_rows, rms_norm_of_short_rows
from tilewright.kernels.softmax import softmax_of_long_rows, softmax_of_short_rows
from tilewright.options import override
from tilewright.passes.context import Schedule
from tilewright.runtime.kernel import Kernel
from tilewright.specialization import JITFunction

BOTH = ("sm_80", "sm_90a")
HOPPER = ("sm_90a",)


@dataclass(frozen=True)
class Program:
    """A program with arguments for it.

    Attributes
    ----------
    make : compiles it for an architecture and gives arguments, arrays to be written filled with rubbish.
    architectures : those whose forms differ.
    bound : how far emulator and interpreter may be apart, relative to the largest result; 0 for the same bits.
    """

    name: str
    make: Callable[[str], tuple[Kernel, tuple[Any, ...]]]
    architectures: tuple[str, ...] = BOTH
    bound: float = 0.0


def whole(*shape: int, dtype: str = "float16", seed: int = 0, size: int = 4) -> np.ndarray:
    """Small integers: sums are exact in any order."""
    return np.random.default_rng(seed).integers(-size, size + 1, shape).astype(dtype)


def real(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def direct(
    function: Any, *arguments: Any, schedule: Schedule | None = None, cores: int = 0, **options: Any
) -> Callable[[str], tuple[Kernel, tuple[Any, ...]]]:
    """A direct function with its arguments; `cores` describes a smaller machine."""

    def make(architecture: str) -> tuple[Kernel, tuple[Any, ...]]:
        where = f"{architecture} -cores={cores}" if cores else architecture
        jitted = on(where, function)
        if schedule is not None:
            jitted = JITFunction(jitted.direct.function, target_of(where), schedule)
        return jitted.compile(*arguments, **options), arguments

    return make


def factory(function: Any, arguments: Sequence[Any], *sizes: Any, **options: Any) -> Callable[[str], Any]:
    """A factory with the arguments of the kernel that it makes."""

    def make(architecture: str) -> tuple[Kernel, tuple[Any, ...]]:
        with override(target=target_of(architecture)):
            return function(*sizes, **options), tuple(arguments)

    return make


def broadcast(architecture: str) -> tuple[Kernel, tuple[Any, ...]]:
    kernel = elementwise(
        lambda a, b: a * b + 1, [(7, 1), (200,)], ["float32"] * 2, "float32", target=target_of(architecture)
    )
    return kernel, (real(7, 1), real(200, seed=1))


F16 = {"dtype": "float16"}
S8 = {"dtype": "int8", "accumulator": "int32", "out": "int32"}
HEADS = (
    real(1, 2, 40, 32, dtype="float16"),
    real(1, 1, 72, 32, dtype="float16", seed=1),
    real(1, 1, 72, 32, dtype="float16", seed=2),
)
FEW = (real(1, 4, 3, 32, dtype="float16"), *HEADS[1:])
MORE = tuple(real(1, 1, 150, 32, dtype="float16", seed=n) for n in range(3))
WIDE, WEIGHT = real(5, 1300), real(1300, seed=1)
MASK, ROWS = np.array([1, 0, 1, 1], np.int32), np.array([3, 1, 7, 0, 3, 5], np.int32)

LIBRARY = (
    Program("flash_attention", direct(flash_attention, *HEADS, dtype="float16", tiles=AttentionTiles(32, 32, 64)), bound=2e-3),
    Program("flash_attention causal", direct(flash_attention, *HEADS, dtype="float16", causal=True, tiles=AttentionTiles(64, 32, 128)), bound=2e-3),
    Program("flash_attention of few queries", direct(flash_attention, *FEW, dtype="float16", causal=True, tiles=AttentionTiles(64, 32, 128, together=True, splits=3)), bound=2e-3),
    Program("flash_attention of few queries in a cluster", direct(flash_attention, *FEW, dtype="float16", causal=True, tiles=AttentionTiles(64, 16, 128, together=True, splits=2, kept=16)), HOPPER, 2e-3),
    Program("flash_attention two blocks", direct(flash_attention, *HEADS, dtype="float16", tiles=AttentionTiles(64, 32, 128, blocks=2)), HOPPER, 2e-3),
    Program("flash_attention in turns", direct(flash_attention, *MORE, dtype="float16", tiles=AttentionTiles(128, 32, 256)), HOPPER, 2e-3),
    Program("matmul", direct(matmul, whole(70, 72), whole(72, 40), **F16, block_M=64, block_N=32)),
    Program("matmul nt", direct(matmul, whole(70, 72), whole(40, 72), **F16, transpose_B=True, block_M=64, block_N=32)),
    Program("hopper_matmul", direct(hopper_matmul, whole(300, 136, dtype="bfloat16"), whole(200, 136, dtype="bfloat16"), block_M=128, block_N=64, stages=3, blocks=4, band=2), HOPPER),
    Program("hopper_matmul alone", direct(hopper_matmul, whole(300, 136, dtype="bfloat16"), whole(200, 136, dtype="bfloat16"), block_M=256, block_N=64, stages=2, blocks=2, cluster=1), HOPPER),
    Program("elementwise", broadcast),
    Program("rms_norm_of_long_rows", direct(rms_norm_of_long_rows, WIDE, WEIGHT), bound=2e-6),
    Program("rms_norm_of_short_rows", direct(rms_norm_of_short_rows, WIDE[:, :1280].copy(), WEIGHT[:1280].copy()), bound=2e-6),
    Program("softmax_of_long_rows", direct(softmax_of_long_rows, WIDE), bound=2e-6),
    *(Program(name, factory(kernel, arguments, *options["sizes"], **{k: v for k, v in options.items() if k != "sizes"}), HOPPER, 2e-6)
      for name, (kernel, arguments, options) in HOPPER_KERNELS.items()),
    *(Program(name, factory(kernel, arguments, *options["sizes"], **{k: v for k, v in options.items() if k != "sizes"}), bound=2e-6)
      for name, (kernel, arguments, options) in KERNELS.items()),
    Program("softmax_of_short_rows", direct(softmax_of_short_rows, WIDE[:, :1280].copy()), bound=2e-6),
)  # fmt: skip
"""The kernels of `tilewright/kernels`."""

PROGRAMS = (
    *(Program(f"gemm {dtype} {'t' if a else 'n'}{'t' if b else 'n'}",
              direct(gemm, whole(*((72, 70) if a else (70, 72)), dtype=dtype), whole(*((48, 72) if b else (72, 48)), dtype=dtype, seed=1), dtype=dtype, transpose_A=a, transpose_B=b))
      for dtype in ("float16", "bfloat16") for a in (False, True) for b in (False, True)),
    Program("gemm int8", direct(gemm, whole(70, 80, dtype="int8", size=100), whole(48, 80, dtype="int8", size=100), **S8)),
    Program("gemm into float16", direct(gemm, whole(70, 72), whole(48, 72), accumulator="float16", out="float16")),
    Program("gemm of scalars", direct(gemm, whole(33, 20, dtype="float32"), whole(20, 20, dtype="float32"), dtype="float32")),
    Program("gemm of odd sizes", direct(gemm, whole(33, 7), whole(65, 7))),
    Program("gemm in one slot", direct(gemm, whole(70, 200), whole(64, 200), num_stages=1)),
    Program("gemm with two consumers", direct(gemm, whole(130, 208), whole(136, 208), block=(128, 64, 64), threads=256, num_stages=3), HOPPER),
    Program("gemm in clusters", direct(gemm, whole(256, 192, dtype="int8"), whole(128, 192, dtype="int8"), **S8, block=(64, 128, 64), schedule=Schedule(cluster=2, persistent=False)), HOPPER),
    Program("gemm in persistent blocks", direct(gemm, whole(320, 136, dtype="int8"), whole(72, 136, dtype="int8"), **S8, block=(64, 32, 64), schedule=Schedule(persistent=True), cores=4), HOPPER),
    Program("gemm by consumers in turn", direct(gemm, whole(320, 136, dtype="int8"), whole(72, 136, dtype="int8"), **S8, block=(64, 32, 64), schedule=Schedule(ping_pong=True), cores=4), HOPPER),
    Program("roles", direct(roles_matmul, whole(70, 200, dtype="bfloat16"), whole(136, 200, dtype="bfloat16"), block=(128, 64, 64)), HOPPER),
    Program("roles of three", direct(roles_matmul, whole(200, 104), whole(72, 104), **F16, out="float16", block=(192, 64, 64), stages=5, consumers=3, registers=(32, 160)), HOPPER),
    Program("every_operator", direct(plain.every_operator, real(16, 64), real(16, 64, seed=1)), bound=4e-6),
    Program("folded", direct(plain.folded, real(5, 8)), bound=1e-6),
    Program("dynamic", direct(pipelines.dynamic, whole(37, 64), whole(50, 64, seed=1), 4)),
    Program("siblings", direct(pipelines.siblings, whole(32, 128), whole(32, 128, seed=1))),
    Program("nested", direct(pipelines.nested, whole(32, 64), whole(4, 16, 64, seed=1))),
    Program("carried", direct(pipelines.carried, whole(8, 64, dtype="float32"))),
    Program("delayed", direct(pipelines.delayed, whole(8, 64, dtype="float32"))),
    Program("masked", direct(pipelines.masked, whole(32, 64), whole(32, 64, seed=1), MASK)),
    Program("indexed", direct(pipelines.indexed, whole(8, 64, dtype="float32"), ROWS)),
    Program("converting", direct(pipelines.converting, whole(32, 64, dtype="float32"), whole(32, 64, seed=1))),
    Program("planned", direct(pipelines.planned, whole(32, 64), whole(32, 64, seed=1), stage=(0, 1, 2), order=(1, 2, 0))),
    Program("laid_out", direct(pipelines.laid_out, whole(32, 256), whole(48, 256, seed=1), turned=False)),
    Program("staged", direct(copies.staged, whole(16, 33, dtype="float32"), rows=16, columns=32)),
    Program("several", direct(copies.several, whole(32, 32), whole(32, 32, seed=1))),
    Program("one_element", direct(replicas.one_element, real(1, 1))),
    Program("in_place", direct(replicas.in_place, real(1, 1))),
    Program("row_totals", direct(replicas.row_totals, whole(8, 8, dtype="float32"))),
    Program("running_totals", direct(replicas.running_totals, whole(4, 8, 8, dtype="float32"))),
    Program("counted", direct(replicas.counted, whole(8, 16, dtype="float32"))),
)  # fmt: skip
"""Programs of the tests: one for each way in which the compiler pipelines, divides and synchronises."""

CPU_ONLY = {"linear", "quant_matmul"}
"""Library kernels over packed operands, whose order only processors have so far."""

ALL = LIBRARY + PROGRAMS


def run(way: Callable[..., Any], arguments: Sequence[Any], **options: Any) -> list[np.ndarray]:
    """What one way to run a kernel returns, and leaves in the arrays that it was given."""
    given = [argument.copy() if isinstance(argument, np.ndarray) else argument for argument in arguments]
    result = way(*given, **options)
    results = [] if result is None else list(result) if isinstance(result, tuple) else [result]
    return [np.asarray(array) for array in (*results, *given) if isinstance(array, np.ndarray)]


def differences(found: Sequence[np.ndarray], expected: Sequence[np.ndarray], bound: float) -> list[str]:
    """Where two runs differ by more than they may, in words."""
    problems = []
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        if bound == 0 or one.dtype.kind in "iub":
            good = one.tobytes() == other.tobytes()
        else:
            one, other = one.astype(np.float64), other.astype(np.float64)
            good = bool((np.abs(one - other) <= bound * max(1.0, float(np.abs(other).max(initial=0)))).all())
        if not good:
            problems.append(f"array {number} differs: {one.ravel()[:6]} is not {other.ravel()[:6]}")
    return problems
