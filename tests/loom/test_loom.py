"""A GPU that nobody makes: one folder makes it, and every program of the repository runs on it or is refused with a sentence."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cuda_gemm
import judge
import numpy as np
import pytest
from busy import PATIENCE
from loom_drawn import drawn_machine, header_of
from loom_machine import LEFT, LOOM, RESULT, RIGHT, SHUTTLE
from loom_target import made
from repository_programs import ALL, Program, differences, run
from tile_fuzz import program_of

import tilewright
import tilewright.language as T
from tilewright.errors import EmulationFailed, InternalError, MissingCapability, NotAsynchronous, TilewrightError
from tilewright.machine import Arch, CopyEngine
from tilewright.machine.amd import ARCHITECTURES as AMD
from tilewright.machine.apple import FAMILIES as APPLE
from tilewright.machine.instructions import MatrixInstruction
from tilewright.targets.cuda.arch import ARCHITECTURES as NVIDIA
from tilewright.targets.cuda.arch import with_instructions

HERE = Path(__file__).parent
ROUNDING = 2e-6
"""What sums in another order than the interpreter's may differ by, relative to the largest result."""

REFUSED = {
    "has no ring buffers between warps": "warps that hand tiles to one another",
    "has no clusters of blocks": "blocks that share memory",
    "no asynchronous instruction": "products that warps start, and wait for later",
}
"""Why a program that is made for Hopper may be refused: what the message holds, and what that is."""

ELSEWHERE = re.compile(
    r"ldmatrix|mma[._]sync|wgmma|mfma|simdgroup|cp[._]async|mbarrier|__shared__|threadIdx|blockIdx|TW_\w+"
)
"""Words of other makers' machines."""

OF_A_WARP = re.compile(r"[/%] 32\b|>> 5\b|& 31\b|\b31\b")
"""How a place among 32 threads is counted."""


RUNNABLE = [program for program in ALL if len(program.architectures) > 1]
"""Programs that are not made for one machine."""


@pytest.fixture(autouse=True)
def loom(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(cuda_gemm.FAMILIES, "loom", "loom")
    with made():
        yield


def code(kernel: tilewright.Kernel) -> str:
    """A text without what the author wrote beside it."""
    return "\n".join(line for line in kernel.get_kernel_source().split("\n") if not line.lstrip().startswith("//"))


def whole_lines(way: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a kernel on copies that begin at multiples of 256 bytes, so that copies are made in the widest pieces."""

    def call(*given: Any) -> Any:
        arrays = [one for one in given if isinstance(one, np.ndarray)]
        rooms = [np.empty(one.nbytes + 256, np.uint8) for one in arrays]
        first = [-room.ctypes.data % 256 for room in rooms]
        placed = [
            room[at : at + one.nbytes].view(one.dtype).reshape(one.shape)
            for one, room, at in zip(arrays, rooms, first, strict=True)
        ]
        for one, copy in zip(arrays, placed, strict=True):
            copy[...] = one
        waiting = iter(placed)
        result = way(*(next(waiting) if isinstance(one, np.ndarray) else one for one in given))
        for one, copy in zip(arrays, placed, strict=True):
            one[...] = copy
        return result

    return call


def check(program: Program, machine: Arch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kernel, arguments = program.make(machine.name)
        except (MissingCapability, NotAsynchronous) as error:
            assert any(words in str(error) for words in REFUSED), error
            assert "sm_80" not in program.architectures, error
            return
    assert not ELSEWHERE.search(code(kernel))
    expected, found = (run(whole_lines(way), arguments) for way in (kernel.interpret, kernel.emulate))
    assert not (problems := differences(found, expected, max(program.bound, ROUNDING))), problems


@pytest.mark.parametrize("program", ALL, ids=lambda one: one.name)
def test_programs_run_or_are_refused_with_a_sentence(program: Program) -> None:
    check(program, LOOM)


@pytest.mark.parametrize("program", ALL, ids=lambda one: one.name)
def test_programs_run_where_copies_are_made_meanwhile(program: Program, tmp_path: Path) -> None:
    (tmp_path / "drawn.h").write_text(header_of(SHUTTLE))
    with made(SHUTTLE, tmp_path):
        check(program, SHUTTLE)


def moved(A: Any, B: Any) -> None:
    """Tiles that the copy engine brings and takes away in boxes."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), "float16")
    B: T.Tensor((M, N), "float16")
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 32), threads=64) as (x, y):
        tile, there = T.alloc_shared((32, 64), "float16"), T.alloc_barrier(1)
        T.tma_copy(A[y * 32, x * 64], tile, barrier=there[0])
        if T.get_thread_binding() == 0:
            T.mbarrier_arrive(there[0])
        T.mbarrier_wait_parity(there[0], 0)
        T.tma_copy(tile, B[y * 32, x * 64])
        T.tma_store_wait()


@pytest.mark.parametrize(
    ("unit", "columns", "boxes"), [(16, 72, True), (32, 80, True), (32, 72, False), (64, 96, True)]
)
def test_boxes_keep_the_limits_of_the_machines_own_engine(unit: int, columns: int, boxes: bool, tmp_path: Path) -> None:
    machine = replace(SHUTTLE, copy_engine=CopyEngine(rank=3, box=64, unit=unit, place=256))
    (tmp_path / "drawn.h").write_text(header_of(machine))
    A, B = (np.arange(40 * columns).reshape(40, columns).astype("float16") * sign for sign in (1, -1))
    with made(machine, tmp_path):
        kernel = tilewright.jit(target="loom -arch=loom32")(moved)
        if not boxes:
            with pytest.raises(NotAsynchronous, match=f"multiple of {unit} bytes"):
                kernel.compile(A, B)
            return
        compiled = kernel.compile(A, B)
        assert "loom::shuttle_in(" in code(compiled) and "loom::shuttle_out(" in code(compiled)
        whole_lines(compiled.emulate)(A, B)
        assert np.array_equal(A, B)


OTHER_MAKERS = re.compile(r"get_profiler|do_bench|call_extern|target=\"c")
"""Of programs that time kernels on a device, bring texts in another machine's words, or are for processors."""

TILELANG = [
    path for path in sorted((HERE.parent / "programs").glob("*.py")) if not OTHER_MAKERS.search(path.read_text())
]


@pytest.mark.proof
@pytest.mark.parametrize("program", TILELANG, ids=lambda path: path.stem)
def test_programs_of_tilelangs_kind(program: Path) -> None:
    """They end well, or say what the machine lacks."""
    command = [sys.executable, "-W", "ignore", str(HERE / "loom_program.py"), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("seed", [*range(300, 400), *range(10_000_700, 10_000_800)])
def test_drawn_programs(seed: int) -> None:
    found = judge.judged(program_of(seed), (f"loom -arch={LOOM.name}",))
    assert found.kind != "fails", found


@pytest.mark.parametrize("seed", range(200))
def test_drawn_machines(seed: int, tmp_path: Path) -> None:
    """One program of the repository on each: the interpreter's numbers, or a sentence on what does not fit."""
    draw = random.Random(seed)
    machine = drawn_machine(draw)
    (tmp_path / "drawn.h").write_text(header_of(machine))
    program = draw.choice(RUNNABLE if draw.random() < 0.7 else ALL)
    with warnings.catch_warnings(), made(machine, tmp_path):
        warnings.simplefilter("ignore")
        try:
            kernel, arguments = program.make(LOOM.name)
        except (InternalError, EmulationFailed):
            raise
        except TilewrightError as error:
            assert str(error)
            return
        expected, found = (run(whole_lines(way), arguments) for way in (kernel.interpret, kernel.emulate))
        assert not (problems := differences(found, expected, max(program.bound, ROUNDING))), problems


def everything(A: Any, B: Any) -> Any:
    """Tiles of which no size but a product's own is one of 32 threads."""
    M, K, N = T.const("M, K, N")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((K, N), "float16")
    C, top, sums = T.empty((M, N), "float32"), T.empty((M,), "float32"), T.empty((N,), "float32")
    with T.Kernel(1, threads=192):
        a, b = T.alloc_shared((96, 40), "float16"), T.alloc_shared((40, 192), "float16")
        c, row, column = (T.alloc_fragment(shape, "float32") for shape in ((96, 192), (96,), (192,)))
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, 40), num_stages=2):
            T.copy(A[0, k * 40], a)
            T.copy(B[k * 40, 0], b)
            T.gemm(a, b, c)
        T.reduce_max(c, row, dim=1)
        T.reduce_sum(c, column, dim=0)
        T.copy(c, C[0, 0])
        T.copy(row, top[0])
        T.copy(column, sums[0])
    return C, top, sums


def test_lanes_are_counted_by_64() -> None:
    """A reduction crosses all 64 lanes without shared memory, products are divided among waves of 64, and nothing among 32."""
    A, B = (
        np.random.default_rng(n).integers(-4, 5, shape).astype("float16")
        for n, shape in enumerate(((96, 85), (85, 190)))
    )
    kernel = tilewright.jit(target="loom -arch=loom64")(everything).compile(A, B)
    exact = A.astype("float64") @ B.astype("float64")
    for schedule in ("late", "early", "random"):
        C, top, sums = kernel.emulate(A, B, schedule=schedule)
        assert (exact == C).all() and (top == exact.max(1)).all() and (sums == exact.sum(0)).all()
    text = code(kernel)
    assert "loom::weave(" in text and "loom::swap(" in text and "loom::rendezvous()" in text and "near uint8_t" in text
    assert re.search(r"/ 64\b", text) and not OF_A_WARP.search(text)


def test_its_lanes_lie_as_in_no_other_machine() -> None:
    machines = [*map(with_instructions, NVIDIA.values()), *AMD.values(), *APPLE.values()]
    known = [one for machine in machines for one in (*machine.matrix_instructions, *machine.sparse_instructions)]
    assert len(known) > 100 and all(isinstance(one, MatrixInstruction) for one in known)
    layouts = {layout for one in known for layout in (one.a_fragment, one.b_fragment, one.d_fragment)}
    assert layouts.isdisjoint({LEFT, RIGHT, RESULT})


def test_it_is_one_folder_that_nothing_else_names() -> None:
    own = [path for path in HERE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(len(path.read_text().splitlines()) for path in own) <= 800
    root = HERE.parents[1]
    others = [
        path
        for folder in ("tilewright", "tests", "docs", "benchmarks", "examples")
        for path in (root / folder).rglob("*")
        if path.suffix in (".py", ".h", ".cuh", ".cpp", ".md", ".tile")
    ]
    assert len(others) > 1000
    assert [path for path in others if re.search(r"\bloom(32|64)?\b", path.read_text(), re.I) and path not in own] == []
