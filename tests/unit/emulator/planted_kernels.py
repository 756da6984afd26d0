"""The kernels in which faults are planted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import repository_programs as programs
from emulator_kernels import peaked, sharpened
from matmul_programs import HOPPER_KERNELS, KERNELS, fragment_words, of_bytes, of_experts, quantised
from repository_programs import Program

from tilewright.kernels.hopper_quant_skinny import skinny_quant_matmul
from tilewright.kernels.hopper_quant_wgmma import wgmma_quant_matmul
from tilewright.passes.context import Schedule

LIBRARY = (
    ("fragments, any tensor cores", fragment_words(K=768, splits=1, stages=2), "sm_80"),
    ("fragments, few rows", quantised(skinny_quant_matmul, 8, N=160, warps=2, records=2, blocks=2), "sm_90a"),
    ("fragments", quantised(wgmma_quant_matmul, 16, tiles=1, records=1, stages=2), "sm_90a"),
    ("fragments in turns", quantised(wgmma_quant_matmul, 64, M=70, tiles=1, records=1, stages=2), "sm_90a"),
    (
        "fragments, parts of K",
        quantised(wgmma_quant_matmul, 16, K=1024, tiles=1, records=1, stages=2, blocks=3),
        "sm_90a",
    ),
    ("fragments of experts", of_experts(K=512, stages=2), "sm_90a"),
    ("bytes", of_bytes(records=1, stages=2), "sm_90a"),
    ("bytes in parts", of_bytes(M=37, tokens=32, part=16, records=1, stages=2), "sm_90a"),
    ("grouped", HOPPER_KERNELS["grouped_matmul"], "sm_90a"),
    ("sparse", HOPPER_KERNELS["sparse_matmul"], "sm_90a"),
    ("scaled in blocks", HOPPER_KERNELS["scaled_matmul of blocks"], "sm_90a"),
    ("a few rows", HOPPER_KERNELS["few_rows_matmul"], "sm_90a"),
    ("a scaled row", HOPPER_KERNELS["few_rows_matmul of a scaled row"], "sm_90a"),
    ("slices", HOPPER_KERNELS["sliced_quant_matmul"], "sm_90a"),
    ("rounded activations", KERNELS["quantize_activations of groups"], "sm_90a"),
    ("rounded tensor", KERNELS["quantize_activations of a tensor"], "sm_90a"),
)
"""Of the matmul library: a name, what `matmul_programs` makes, and the architecture."""


def of_library(kernel: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Callable[[str], Any]:
    """How a kernel of the library is made."""
    rest = {name: value for name, value in options.items() if name != "sizes"}
    return programs.factory(kernel, arguments, *options["sizes"], **rest)


def kernels_to_plant_in() -> list[tuple[Program, str]]:
    """A kernel for each way to load, divide, synchronise and store, with loops long enough that every slot is used again."""
    whole, direct, gemm, pipelines, replicas = (
        programs.whole,
        programs.direct,
        programs.gemm,
        programs.pipelines,
        programs.replicas,
    )
    bf16 = {"dtype": "bfloat16"}
    heads = [programs.real(1, 2 - (n > 0), 76 + 64 * (n > 0), 32, dtype="float16", seed=n) for n in range(3)]
    long = [programs.real(1, 1, 150, 32, dtype="float16", seed=n) for n in range(3)]
    heads[0], long[0] = sharpened(heads[0]), sharpened(long[0])
    return [
        (Program("cp.async pipeline", direct(gemm, whole(40, 200), whole(40, 200, seed=1), block=(32, 32, 32), threads=64, num_stages=3)), "sm_80"),
        (Program("cp.async pipeline, transposed", direct(gemm, whole(136, 40), whole(136, 40, seed=1), block=(32, 32, 32), threads=64, transpose_A=True, transpose_B=False)), "sm_80"),
        (Program("copies through registers", direct(pipelines.converting, whole(32, 64, dtype="float32"), whole(32, 64, seed=1))), "sm_80"),
        (Program("values carried", direct(pipelines.carried, whole(8, 64, dtype="float32"))), "sm_80"),
        (Program("loops in a row", direct(pipelines.siblings, whole(32, 128), whole(32, 128, seed=1))), "sm_80"),
        (Program("specialised", direct(gemm, whole(70, 200, **bf16), whole(40, 200, seed=1, **bf16), block=(64, 32, 32), out="bfloat16", **bf16)), "sm_90a"),
        (Program("specialised, two consumers", direct(gemm, whole(130, 264), whole(72, 264, seed=1), block=(128, 64, 32), threads=256, num_stages=3)), "sm_90a"),
        (Program("specialised integers", direct(gemm, whole(70, 448, dtype="int8"), whole(32, 448, dtype="int8", seed=1), **{**programs.S8, "block": (64, 32, 64)})), "sm_90a"),
        (Program("clusters with multicast", direct(gemm, whole(128, 448, dtype="int8"), whole(128, 448, dtype="int8", seed=1), **programs.S8, block=(64, 128, 64), schedule=Schedule(cluster=2, persistent=False))), "sm_90a"),
        (Program("persistent blocks", direct(gemm, whole(320, 136, dtype="int8"), whole(72, 136, dtype="int8"), **programs.S8, block=(64, 32, 64), schedule=Schedule(persistent=True), cores=4)), "sm_90a"),
        (Program("explicit roles", direct(programs.roles_matmul, whole(130, 232, **bf16), whole(64, 232, seed=1, **bf16), block=(128, 64, 32), stages=3)), "sm_90a"),
        (Program("explicit roles in clusters", direct(programs.hopper_matmul, whole(256, 200, **bf16), whole(128, 200, seed=1, **bf16), block_M=128, block_N=64, block_K=64, stages=2, blocks=2, band=2)), "sm_90a"),
        (Program("attention", direct(programs.flash_attention, *heads, dtype="float16", tiles=programs.AttentionTiles(32, 32, 64)), bound=2e-3), "sm_80"),
        (Program("attention of Hopper", direct(programs.flash_attention, *heads, dtype="float16", causal=True, tiles=programs.AttentionTiles(64, 32, 128)), bound=2e-3), "sm_90a"),
        (Program("attention in turns", direct(programs.flash_attention, *long, dtype="float16", tiles=programs.AttentionTiles(128, 32, 256)), bound=2e-3), "sm_90a"),
        (Program("rows folded", direct(programs.softmax_of_long_rows, peaked(10, 1300, plain=4)), bound=2e-6), "sm_80"),
        (Program("rows normed", direct(programs.rms_norm_of_short_rows, programs.WIDE[:, :640].copy(), programs.WEIGHT[:640].copy()), bound=2e-6), "sm_80"),
        (Program("operators of many threads", direct(programs.plain.every_operator, programs.real(16, 64), programs.real(16, 64, seed=1)), bound=4e-6), "sm_80"),
        (Program("totals in shared memory", direct(replicas.running_totals, whole(4, 8, 8, dtype="float32"))), "sm_80"),
        *((Program(name, of_library(*made)), architecture) for name, made, architecture in LIBRARY),
    ]  # fmt: skip
