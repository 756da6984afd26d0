"""Programs whose authors order threads and copies themselves, on the GPU: exact, and the same bits every time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from device_arrays import to_device

import tilewright
import tilewright.language as T
from tilewright.errors import GridTooLarge
from tilewright.targets.cuda.arch import detect

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "cuda" / "programs"))
from manual_programs import EVERYWHERE, HOPPER, ROUNDED, warp_groups
from word_programs import PROGRAMS, grouped_by_pointers, whole_grid

torch = pytest.importorskip("torch")

ARCH = detect()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(ARCH is None, reason="no GPU here")]
REPEATS = 100


def check(program, repeats=REPEATS):
    function, arguments, expected = program
    kernel = tilewright.compile(function, target="cuda")
    given = [to_device(argument) for argument in arguments]
    expected = torch.from_numpy(expected.copy()).cuda()
    for _ in range(repeats):
        given[-1].zero_()
        kernel(*given)
        assert torch.equal(given[-1].double(), expected.double())


@pytest.mark.parametrize("program", HOPPER, ids=lambda one: one.__name__)
@pytest.mark.skipif(ARCH is None or not ARCH.has("wgmma"), reason="no Hopper GPU here")
def test_programs_of_hopper(program):
    check(program())


@pytest.mark.parametrize("program", ROUNDED, ids=lambda one: one.__name__)
@pytest.mark.skipif(ARCH is None or not ARCH.has("wgmma"), reason="no Hopper GPU here")
def test_attention_by_three_warpgroups(program):
    function, arguments, expected = program()
    kernel = tilewright.compile(function, target="cuda")
    given = [to_device(argument) for argument in arguments]
    results = []
    for _ in range(REPEATS):
        kernel(*given)
        results.append(given[-1].clone())
    assert all(torch.equal(one, results[0]) for one in results)
    assert (results[0].double() - torch.from_numpy(expected).cuda()).abs().max() < 0.01


@pytest.mark.parametrize("program", EVERYWHERE, ids=lambda one: one.__name__)
def test_programs_of_any_gpu(program):
    check(program())


@pytest.mark.parametrize("options", [
    {"block": (128, 256, 64), "stages": 4}, {"block": (128, 128, 64), "stages": 3, "elect": False, "in_flight": 0},
    {"block": (64, 96, 64), "stages": 1, "consumers": 1, "in_flight": 0, "registers": None},
], ids=str)  # fmt: skip
@pytest.mark.skipif(ARCH is None or not ARCH.has("wgmma"), reason="no Hopper GPU here")
def test_products_of_other_shapes(options):
    check(warp_groups(1000, 1192, 520, **options))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_words_of_threads_warps_and_the_grid(program):
    check(program())


def test_a_grid_as_large_as_the_device_meets_many_times():
    check(whole_grid(128, 40))


def test_a_grid_that_does_not_fit():
    blocks = 2 * ARCH.cores

    @T.prim_func
    def main(A: T.Tensor((blocks,), "float32")):
        with T.Kernel(blocks, threads=64) as block:
            tile = T.alloc_shared((36 * 1024,), "float32")
            T.fill(tile, 1.0)
            T.sync_grid()
            if T.get_thread_binding() == 0:
                A[block] = tile[block]

    with pytest.raises(
        GridTooLarge, match=f"all {blocks} blocks of main_kernel wait for one another, but the device runs at most"
    ):
        tilewright.compile(main, target="cuda")(torch.zeros(blocks, device="cuda"))


@pytest.mark.parametrize("block", [(32, 32, 32), (64, 64, 32)], ids=str)
@pytest.mark.parametrize("addresses", [False, True], ids=["tensors", "addresses"])
def test_tables_of_pointers(block, addresses):
    """Lists of tensors, and tensors of their addresses."""
    function, (a, b, rows, c, out), expected = grouped_by_pointers(block=block)
    kernel = tilewright.compile(function, target="cuda")
    a, b, c = ([to_device(one) for one in tensors] for tensors in (a, b, c))
    tables = [a, b, c]
    if addresses:
        tables = [torch.tensor([one.data_ptr() for one in table], dtype=torch.int64, device="cuda") for table in tables]
    for _ in range(REPEATS):
        for one in c:
            one.fill_(float("nan"))
        kernel(tables[0], tables[1], to_device(rows), tables[2], to_device(out))
        for found, wanted in zip(c, expected, strict=True):
            assert torch.equal(found.double(), torch.from_numpy(wanted).cuda())
