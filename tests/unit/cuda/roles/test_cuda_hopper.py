"""Roles, the copy engine and warpgroup gemms: emulated under several schedules, and compiled to machine code."""

import re
from collections import Counter

import numpy as np
import pytest
from cuda_gemm import matmul, on, operands, product
from hopper_gemm import roles_matmul
from hopper_matmul import hopper_matmul

import tilewright
import tilewright.language as T
from tilewright.errors import ChannelMisuse, NotAsynchronous
from tilewright.language.mistakes import MisplacedRole
from tilewright.targets.cuda.compiler import compile_text

SCHEDULES = (("late", 0), ("early", 0), ("random", 3))
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}


def check(kernel, a, b, transpose_A=False, transpose_B=True, out="float32", schedules=SCHEDULES):
    exact, size = product(a, b, transpose_A, transpose_B)
    k = a.shape[0] if transpose_A else a.shape[1]
    bound = (k + 2) * UNIT["float32"] * size + (np.abs(exact) * UNIT.get(out, 0) if out != "float32" else 0)
    for schedule, seed in schedules:
        result = kernel.emulate(a, b, schedule=schedule, seed=seed)
        if out == "int32":
            assert np.array_equal(result, exact.astype(np.int64).astype(np.int32))
        else:
            assert (np.abs(result.astype(np.float64) - exact) <= bound * 1.001).all()


def opcodes(kernel):
    binary = compile_text(kernel.get_kernel_source(), kernel.arch)
    assert binary.warnings == ()
    assert all(use.spill_store_bytes == use.stack_bytes == 0 for use in binary.resources.values())
    return Counter(
        re.findall(r"\b(HGMMA|IGMMA|HMMA|UTMALDG|UTMASTG|STSM|STL|LDL|WARPGROUP\.ARRIVE)\b", binary.machine_code())
    )


@pytest.mark.parametrize("m, n, k", [(1, 8, 640), (70, 520, 72)])
def test_explicit_roles(m, n, k):
    a, b = operands(m, n, k, "bfloat16")
    kernel = on("sm_90a", roles_matmul).compile(a, b)
    check(kernel, a, b, out="bfloat16", schedules=SCHEDULES[:2])


@pytest.mark.parametrize(
    "block, stages, consumers, registers",
    [
        ((256, 128, 64), 3, 2, (40, 232)), ((64, 96, 32), 2, 1, (None, None)), ((192, 64, 64), 5, 3, (32, 160)),
        ((128, 24, 64), 2, 2, (40, 232)), ((64, 256, 16), 3, 2, (40, 232)),
    ],
    ids=str,
)  # fmt: skip
def test_explicit_roles_of_other_shapes(block, stages, consumers, registers):
    a, b = operands(200, 264, 192, "float16")
    kernel = on("sm_90a", roles_matmul).compile(
        a, b, dtype="float16", out="float16", block=block, stages=stages, consumers=consumers, registers=registers
    )
    check(kernel, a, b, out="float16", schedules=SCHEDULES[1:])


def test_the_interpreter_agrees():
    a, b = operands(70, 136, 200, "bfloat16")
    kernel = on("sm_90a", roles_matmul).compile(a, b, out="float32")
    exact, size = product(a, b, False, True)
    assert (np.abs(kernel.interpret(a, b) - exact) <= 210 * UNIT["float32"] * size).all()


def test_machine_code_is_the_models():
    a, b = operands(256, 512, 8192, "bfloat16")
    found = opcodes(on("sm_90a", roles_matmul).compile(a, b))
    # The hand-written model's main loop: four wgmma, one warpgroup.arrive, two loads; its epilogue: 16 stmatrix, 4 stores.
    assert found == {"HGMMA": 4, "WARPGROUP.ARRIVE": 1, "UTMALDG": 2, "STSM": 16, "UTMASTG": 4}


@pytest.mark.parametrize(
    "transpose_A, transpose_B, dtype, out",
    [
        (False, True, "bfloat16", "bfloat16"),
        (False, False, "float16", "float32"),
        (True, True, "float16", "float16"),
        (True, False, "bfloat16", "float32"),
    ],
)
def test_plain_kernels_are_specialised(dtype, out, transpose_A, transpose_B):
    a, b = operands(200, 136, 208, dtype, transpose_A, transpose_B)
    kernel = on("sm_90a", matmul).compile(
        a, b, dtype=dtype, out=out, block=(128, 64, 64), threads=256, transpose_A=transpose_A, transpose_B=transpose_B
    )
    assert "wgmma_ss on 2 x 1 warpgroups" in kernel.explain()
    check(kernel, a, b, transpose_A, transpose_B, out)


@pytest.mark.parametrize("dtype, k", [("int8", 208)])
def test_integers(dtype, k):
    a, b = operands(100, 144, k, dtype)
    kernel = on("sm_90a", matmul).compile(a, b, dtype=dtype, accumulator="int32", out="int32", block=(64, 96, 64))
    check(kernel, a, b, out="int32")
    assert "wgmma_ss" in kernel.explain()


def test_plain_kernels_become_hopper_code():
    a, b = operands(256, 256, 4096, "bfloat16")
    kernel = on("sm_90a", matmul).compile(a, b, dtype="bfloat16", out="bfloat16", block=(128, 128, 64), threads=256)
    found = opcodes(kernel)
    assert found["HGMMA"] and found["UTMALDG"] and found["UTMASTG"] and not found["HMMA"]


def test_one_slot_is_enough():
    a, b = operands(70, 64, 320, "float16")
    kernel = on("sm_90a", matmul).compile(a, b, block=(64, 64, 64), num_stages=1)
    assert "wgmma_ss" in kernel.explain()
    check(kernel, a, b)


@pytest.mark.parametrize("cluster, block_M", [(1, 256), (2, 128), (4, 128)])
def test_persistent_blocks_in_clusters(cluster, block_M):
    a, b = operands(700, 200, 136, "bfloat16")
    kernel = on("sm_90a", hopper_matmul.direct.function).compile(
        a, b, block_M=block_M, block_N=64, stages=3, blocks=4, band=2, cluster=cluster
    )
    assert ("tma_load_multicast" in kernel.get_kernel_source()) == (cluster > 1)
    check(kernel, a, b, out="bfloat16", schedules=SCHEDULES[1:])


def test_shares_of_a_tile_are_whole_patterns():
    a, b = operands(700, 200, 136, "bfloat16")
    with pytest.raises(ChannelMisuse, match="24 rows of B_ring cannot be shared by 2 blocks"):
        on("sm_90a", hopper_matmul.direct.function).compile(a, b, block_M=128, block_N=24, stages=3)


def test_multicast_needs_a_channel_of_the_cluster():
    @T.prim_func
    def alone(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float16")):
        with T.Kernel(2, threads=256, cluster_dims=2):
            ring = T.alloc_shared((2, 64, 64), "float16")
            loads = T.channel(ring, writers="producer", readers="consumer")
            with T.roles():
                with T.role("consumer", warps=4):
                    slot = loads.receive(0)
                    T.copy(ring[slot, :, :], C)
                with T.role("producer", warps=4):
                    slot = loads.acquire(0)
                    T.copy(A, ring[slot, :, :], multicast=True)
                    loads.publish(0)

    with pytest.raises(ChannelMisuse, match="'loads' joins those of one block"):
        tilewright.compile(alone, target="cuda -arch=sm_90a")


def test_no_iteration_at_all():
    a, b = operands(64, 64, 0, "float16")
    assert not on("sm_90a", matmul).compile(a, b).emulate(a, b).any()


def test_what_stays_one_role_says_why():
    a, b = operands(100, 130, 193, "float16")
    kernel = on("sm_90a", matmul).compile(a, b)
    assert "the stride of dimension 0 of A is not known to be a multiple of 16 bytes" in kernel.explain()
    check(kernel, a, b, schedules=SCHEDULES[:1])


def test_copies_outside_a_slot_are_refused():
    @T.prim_func
    def early(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=256):
            ring = T.alloc_shared((2, 64, 64), "float16")
            loads = T.channel(ring, writers="producer", readers="consumer")
            with T.roles():
                with T.role("consumer", warps=4):
                    slot = loads.receive(0)
                    T.copy(ring[slot, :, :], C)
                with T.role("producer", warps=4):
                    T.copy(A, ring[0, :, :])
                    loads.publish(0)

    with pytest.raises(ChannelMisuse, match="a slot of 'loads' that its role has not acquired"):
        tilewright.compile(early, target="cuda -arch=sm_90a")


def test_a_gemm_that_cannot_be_asynchronous():
    @T.prim_func
    def plain(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.annotate_layout({a: T.Layout((64, 64), lambda i, j: i * 64 + (j // 8 + i) % 8 * 8 + j % 8)})
            T.copy(A, a)
            T.wgmma_gemm(a, a, c, clear_accum=True)
            T.wait_wgmma(0)
            T.copy(c, C)

    with pytest.raises(NotAsynchronous, match="descriptors name no tile that lies as a does"):
        tilewright.compile(plain, target="cuda -arch=sm_90a")


def test_roles_in_the_wrong_place():
    with pytest.raises(MisplacedRole, match="the role 'alone' stands outside of"):

        @T.prim_func
        def alone(A: T.Tensor((64,), "float16")):
            with T.Kernel(1, threads=128) as _, T.role("alone", warps=4):
                A[0] = 1.0
