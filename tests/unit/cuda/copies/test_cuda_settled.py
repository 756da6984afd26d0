"""What a kernel reads after it has waited for others is read then: the compiler is told nothing that lets it read before."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.ir.dtypes import FLOAT16
from tilewright.kernels.hopper_quant_wgmma import wgmma_quant_matmul
from tilewright.machine.fragment_records import FragmentRecords

READ, WAIT = re.compile(r"\b(LDG|ACQBULK)\b[.\w]*"), "ACQBULK"


def on_hopper(function):
    return tilewright.compile(function, target="cuda -arch=sm_90a")


def counted(dependent: bool):
    """As many numbers doubled as a kernel before this one has said."""

    @T.prim_func
    def main(count: T.Tensor((1,), "int32"), A: T.Tensor((4096,), "float32"), C: T.Tensor((4096,), "float32")):
        with T.Kernel(4, threads=128) as block:
            if dependent:
                T.pdl_sync()
            for step in T.serial(count[0]):
                for i in T.Parallel(128):
                    place = (step * 4 + block) * 128 + i
                    if place < 4096:
                        C[place] = A[place] * 2.0

    return main


def reads(kernel, entry: str) -> list[str]:
    """The reads of global memory and the waits of one kernel, in their order."""
    sections = re.split(r"\.text\.(\w+)[ :]", kernel.sass())
    found = [READ.findall(text) for name, text in zip(sections[1::2], sections[2::2], strict=True) if name == entry]
    return max(found, key=len)


def parameters(kernel, entry: str) -> str:
    return kernel.get_kernel_source().split(f"{entry}(")[1].split(")")[0]


def test_a_dependent_kernel_reads_after_it_has_waited():
    kernel = on_hopper(counted(dependent=True))
    (entry,) = re.findall(r"(\w+_kernel)\(", kernel.get_kernel_source())
    head = parameters(kernel, entry)
    assert "const int32_t* count" in head and "const float* A" in head and "float* TW_RESTRICT C" in head
    assert reads(kernel, entry)[:2] == [WAIT, "LDG"]


def test_what_nobody_else_writes_is_said_to_be_so():
    text = on_hopper(counted(dependent=False)).get_kernel_source()
    assert "const int32_t* TW_RESTRICT count" in text and "const float* TW_RESTRICT A" in text


@pytest.mark.parametrize("tokens", [64, 256])
def test_the_list_of_experts_tiles_is_read_after_it_was_made(tokens):
    form = FragmentRecords(4, FLOAT16, FLOAT16)
    sizes = (
        {"stages": 2, "halves": 4, "weight_stages": 2, "records": 2}
        if tokens < 128
        else {"stages": 4, "halves": 1, "tiles": 1}
    )
    kernel = on_hopper(wgmma_quant_matmul.trace(512, 512, form, tokens=tokens, experts=4, **sizes))
    assert "int32_t* listed" in parameters(kernel, "rows_of_experts_kernel_1")
    for entry in ("rows_of_experts_kernel", "rows_of_experts_kernel_1"):
        found = reads(kernel, entry)
        assert found[0] == WAIT and "LDG" in found


def test_what_blocks_hand_one_another_is_read_when_they_have_met():
    @T.prim_func
    def main(A: T.Tensor((4, 128), "float32"), C: T.Tensor((4, 128), "float32")):
        handed = T.alloc_global((4, 128), "float32")
        with T.Kernel(4, threads=128) as block:
            for i in T.Parallel(128):
                handed[block, i] = A[block, i] + 1.0
            T.sync_grid()
            for i in T.Parallel(128):
                C[block, i] = handed[3 - block, i]

    text = on_hopper(main).get_kernel_source()
    assert "float* handed" in text and "const float* TW_RESTRICT A" in text and "float* TW_RESTRICT C" in text


@pytest.mark.parametrize("adds", [False, True])
def test_what_the_copy_engine_stores_is_not_taken_for_constant(adds):
    @T.prim_func
    def main(C: T.Tensor((64, 128), "float32"), first: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float32")
            for i, j in T.Parallel(64, 64):
                tile[i, j] = 2.0
            for i in T.Parallel(64):
                first[i] = C[0, i]
            if adds:
                T.atomic_add(C[0:64, 0:64], tile, use_tma=True)
            else:
                T.tma_copy(tile, C[0:64, 0:64])
                T.tma_store_wait(0)

    kernel = on_hopper(main)
    text = kernel.get_kernel_source()
    assert ("tma_reduce_add(" if adds else "tma_store(") in text
    assert "float* C" in text and "const float* C" not in text
    c, first = np.arange(64.0 * 128).astype(np.float32).reshape(64, 128), np.full(64, np.nan, np.float32)
    before = c.copy()
    kernel.emulate(c, first)
    np.testing.assert_array_equal(first, before[0, :64])
    np.testing.assert_array_equal(c[:, :64], before[:, :64] + 2 if adds else np.full((64, 64), 2))
    np.testing.assert_array_equal(c[:, 64:], before[:, 64:])
