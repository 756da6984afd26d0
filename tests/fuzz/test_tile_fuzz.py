"""Random tile programs give the same numbers everywhere; the generator knows every operator, one that did not exist when it was written too."""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import defects
import judge
import looking
import numpy as np
import pytest
import screened
import tile_fuzz
from bold_writer import SETTLED
from judge import Verdict, different, judged, machines, run, targets_of
from operator_writer import write_operator
from program_texts import from_text
from reached import touched
from scaled_writer import ScaledWriter
from shrink import shrunk
from swapped import Swap, Unswappable, functions_of
from tile_fuzz import (
    COURSES,
    HAND,
    LOOPS,
    MIXED,
    OWN,
    PARTING,
    PIPELINES,
    PRODUCTS,
    ROWS,
    SCALED,
    SWARM,
    THREADS,
    WIDE,
    WORDS,
)
from tile_programs import Param, TileProgram
from tile_writer import TileWriter

import tilewright
from tilewright import compiler
from tilewright.errors import TilewrightError
from tilewright.ir.nodes import TILE_OPERATORS, Effects, Region, Statement, TileOperator, tile_operator
from tilewright.ops.base import element, elementwise, same_shape, store_element
from tilewright.passes import pipeline
from tilewright.passes.lower import guard_bounds

SAMPLE = (
    *range(9000, 9008), *range(PIPELINES + 9000, PIPELINES + 9002), *range(LOOPS + 9000, LOOPS + 9003), *range(ROWS + 9000, ROWS + 9003), *range(MIXED + 9000, MIXED + 9004), *range(SWARM + 9000, SWARM + 9004),
    *range(SCALED + 9000, SCALED + 9004), *range(THREADS + 9000, THREADS + 9004),
    *range(OWN + 9000, OWN + 9004), *range(HAND + 9000, HAND + 9004), *range(WORDS + 9000, WORDS + 9004),
    *range(PRODUCTS + 9000, PRODUCTS + 9004), *range(PARTING + 9000, PARTING + 9004), *range(WIDE + 9000, WIDE + 9003),
    *range(COURSES + 9000, COURSES + 9003),
)  # fmt: skip
PROOF, CHUNK = (
    (
        *range(5000),
        *range(9008, 9058),
        *range(PIPELINES, PIPELINES + 500),
        *range(LOOPS, LOOPS + 2000),
        *range(ROWS, ROWS + 2000),
        *range(MIXED, MIXED + 2000),
        *range(SWARM, SWARM + 2000),
        *range(SCALED, SCALED + 1000),
        *range(THREADS, THREADS + 2000),
        *range(OWN, OWN + 2000),
        *range(HAND, HAND + 2000),
        *range(PRODUCTS, PRODUCTS + 2000),
        *range(PARTING, PARTING + 2000),
        *range(WIDE, WIDE + 300),
        *range(COURSES, COURSES + 1000),
        *range(WORDS, WORDS + 2000),
        *range(LOOPS + SETTLED, LOOPS + SETTLED + 500),
        *range(ROWS + SETTLED, ROWS + SETTLED + 500),
    ),
    50,
)

FOUND = (
    *(PIPELINES + seed for seed in (145, 586, 789, 9013)), *(LOOPS + seed for seed in (14, 31, 195, 892, 1441, 1590, 20802)),
    *(ROWS + seed for seed in (1, 47, 69, 258, 1115, 1924, 20005, 20014)),
)  # fmt: skip
"""Seeds of the pipelined families, which are what they were, that once failed."""

OPEN: dict[int, str] = {}
"""Seeds of the sample that fail today, and why."""


def failure(seed: int) -> str | None:
    """What went wrong with a seed; None where all agree or the compiler tells of a limit."""
    found = tile_fuzz.verdict((seed, None, (), False))
    return None if found.kind in ("agrees", "refused") else f"seed {seed}: {found}"


@pytest.mark.parametrize("seed", [seed for seed in SAMPLE if seed not in OPEN])
def test_a_sample(seed: int) -> None:
    assert failure(seed) is None


@pytest.mark.parametrize("first", range(0, 1040, 8))
def test_products_with_scales_are_what_loops_over_elements_say(first: int) -> None:
    """The interpreter runs what the word becomes; here it is beside sums that are written out.  Blocks of lines with one
    scale for all of K were read as scales of single lines."""
    for seed in range(first, first + 8):
        program = ScaledWriter(seed).write()
        if any(words[1] == "sum" and words[2] != "float32" for words in program.features):
            continue  # halves are rounded as often as something is added to them
        found, said = (
            run(one.compile("cpu").interpret, one.arguments)
            for one in (program, ScaledWriter(seed, plain=True).write())
        )
        assert different(program, found, said) is None, seed


@pytest.mark.parametrize("seed", FOUND)
def test_what_once_failed(seed: int) -> None:
    assert failure(seed) is None


@pytest.mark.proof
@pytest.mark.parametrize("first", PROOF[::CHUNK])
def test_thousands_of_programs(first: int) -> None:
    with tile_fuzz.Workers(tile_fuzz.verdict, 1, tile_fuzz.SLOW) as workers:
        found = [
            (task[0], tile_fuzz.answered(one, why))
            for task, one, why in workers.results([(seed, None, (), False) for seed in range(first, first + CHUNK)])
        ]
    kinds = collections.Counter(one.kind for _, one in found)
    assert [f"{seed}: {one}" for seed, one in found if one.kind not in ("agrees", "refused")] == []
    assert kinds["agrees"] >= 0.8 * CHUNK, tile_fuzz.summary(found)


@pytest.mark.parametrize("patch", defects.patches([]), ids=lambda patch: patch.stem)
def test_a_defect_that_comes_back_still_fits(patch: Path) -> None:
    """A patch of a mended defect that no longer fits finds nothing, and one with a name that is gone is found by any program."""
    made = defects.patched(patch.read_text(), defects.ROOT)
    assert made
    for file, text in made.items():
        if file.suffix == ".py":
            command = [sys.executable, "-m", "ruff", "check", "--isolated", "--quiet", "--select", "F821", "-"]
            asked = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
            assert not asked.returncode, asked.stdout


def test_a_hunt_knows_which_lines_defects_touch() -> None:
    """A program whose compilation goes through none of them is not tried with them."""
    texts = {patch.stem: patch.read_text() for patch in defects.patches([])}
    lines, unknown = touched(texts, defects.ROOT)
    known = {defect for of_file in lines.values() for some in of_file.values() for defect in some}
    assert known | unknown == set(texts) and len(unknown) < 5


@pytest.fixture(scope="module")
def known() -> Iterator[screened.Defects]:
    made = looking.known_defects()
    yield made
    made.leave()


@pytest.mark.proof
@pytest.mark.parametrize("number", range(60))
def test_passes_that_run_again_tell_whether_a_text_changes(number: int, known: screened.Defects) -> None:
    """For every defect as the whole compilation with it says, whichever lines of it run."""
    seed = tile_fuzz.ALL + number
    known.of_interpreter.clear()
    with looking.compiled_afresh():
        told = known.changed(seed, list(known.swaps))
        for target in (one for one in screened.screens(seed) if one.startswith(screened.TELLING)):
            recording = screened.Recording(tile_fuzz.program_of(seed), target)
            assert recording.text_now() == recording.said
            for defect, swap in known.swaps.items():
                with swap.in_place():
                    changes = recording.text_now() != recording.said
                assert changes == (target in told.get(defect, ())), (defect, target)
            assert recording.text_now() == recording.said


def test_a_defect_leaves_the_process_as_it_was(known: screened.Defects) -> None:
    """Functions, and values of modules wherever others have taken them."""
    before = guard_bounds._Guard.then_of.__code__, compiler.PIPELINE, pipeline.PIPELINE
    for swap in known.swaps.values():
        with swap.in_place():
            pass
    assert before == (guard_bounds._Guard.then_of.__code__, compiler.PIPELINE, pipeline.PIPELINE)
    with known.swaps["26-bounds-below-conditions"].in_place():
        assert guard_bounds._Guard.then_of.__code__ != before[0]
    with known.swaps["02-some-threads"].in_place():
        assert compiler.PIPELINE is pipeline.PIPELINE and len(compiler.PIPELINE) == len(before[1]) - 1


def test_the_interpreter_is_asked_where_a_machine_takes_the_program(
    known: screened.Defects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was asked for the first machine, a processor, which has no roles: the interpreter's defects in them were not looked for."""
    text = """def program(A):
    A: T.Tensor((256,), "int32")
    O = T.empty((256,), "int32")
    with T.Kernel(1, threads=256):
        tx = T.get_thread_binding()
        own = T.alloc_var("int32", init=3)
        s = T.alloc_shared((64,), "int32")
        with T.ws(0):
            T.fill(s, 1)
        with T.ws(1):
            T.fill(s, 2)
            own = 5
        O[tx] = own + A[tx]
    return O
"""
    program = replace(from_text(0, text, [np.zeros(256, np.int32)], "sm_80"), machines=("cpu", "cuda -arch=sm_80"))
    monkeypatch.setattr(tile_fuzz, "program_of", lambda seed: program)
    defect = "46-variables-of-other-roles"
    monkeypatch.setattr(known, "of_interpreter", {defect})
    assert known.changed(0, [defect]) == {defect: ("cpu", "cuda -arch=sm_80")}


def test_a_patch_of_more_than_functions_is_refused() -> None:
    file = Path(guard_bounds.__file__)
    text = file.read_text()
    live = functions_of([file], defects.ROOT)
    assert Swap({file: "\n" + text}, live).codes == []
    with pytest.raises(Unswappable, match="differs in more than the bodies of its functions"):
        Swap({file: text.replace("def then_of(self, branch", "def then_of(self, *branch")}, live)


def test_headers_of_a_defect_take_the_place_of_the_package_s(tmp_path: Path) -> None:
    """In the process that judges: there a remainder by -1 ends it, as the machine does."""
    (patch,) = defects.patches(["17-least"])
    defects.put_headers(patch.read_text(), tmp_path)
    values = Param("A", 'T.Tensor((4,), "int32")', np.array([-(2**31), 5, -7, -1], np.int32))
    body = ("for i in T.Parallel(4):", "    O[i] = A[i] % A[3]")
    program = TileProgram(0, (), (values,), (("O", "(4,)", "int32"),), "with T.Kernel(1, threads=32):", body, ("cpu",))
    put = looking.Headers(tmp_path, defects.ROOT).put
    assert looking.apart(lambda: looking.judged_with(program, ("cpu",))).kind == "agrees"
    assert str(looking.apart(lambda: looking.judged_with(program, ("cpu",), put))).startswith("fails: process: ")


@pytest.mark.parametrize("patch", defects.patches([]), ids=lambda patch: patch.stem)
def test_a_defect_that_comes_back_is_one(patch: Path, tmp_path: Path) -> None:
    """A patch may fit and do nothing, because a second remedy has come beside the first."""
    assert defects.noticed(patch, tmp_path)


@pytest.mark.proof
def test_a_hunt_finds_a_defect_and_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    chosen = [patch.stem for patch in defects.patches(["18", "21"])]
    options = argparse.Namespace(
        programs=2, first=tile_fuzz.ALL, workers=1, seconds=300.0, patches=defects.HERE / "defects"
    )
    hunt = defects.Hunt(chosen, tmp_path / "log", options)
    hunt.go()
    assert list(hunt.found) == chosen[:1] and hunt.found[chosen[0]][0] == 2
    options.programs = 3
    again = defects.Hunt(chosen, tmp_path / "log", options)
    assert [again.sought(number) for number in (1, 2, 3)] == [(), (), tuple(chosen[1:])]
    assert again.table().splitlines()[1].startswith(f"| {chosen[1]} | not within 2 |")


def test_seeds_of_all_families_are_told_apart() -> None:
    programs = [tile_fuzz.program_of(tile_fuzz.ALL + number) for number in range(30)]
    assert len({program.text for program in programs}) == 30
    assert len({type(program) for program in programs}) == 2 and any(program.machines for program in programs)


def test_a_seed_is_the_same_program_in_every_process() -> None:
    """Machines came out of a set, in the order of the process's hashes: hunts of brought-back defects stopped there."""
    code = (
        "import tile_fuzz, screened; first = tile_fuzz.ALL; print([(tile_fuzz.program_of(seed).text, screened.targets(seed)) "
        "for seed in range(first, first + 40)])"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=Path(tile_fuzz.__file__).parent, capture_output=True, check=True, text=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(tilewright.__file__).parents[1])},
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(told) == 1


@pytest.mark.parametrize("part", [pytest.param(part, marks=pytest.mark.proof if part else ()) for part in range(8)])
def test_texts_are_the_same_in_every_process(part: int) -> None:
    """In one process of 36 a program had another text: nodes in a set lie in the order of their places in memory."""
    seeds = [str(tile_fuzz.ALL + 100 + part * 15 + number) for number in (range(15) if part else (2,))]
    started = [
        subprocess.Popen(
            [sys.executable, "shuffled.py", salt, *seeds], cwd=Path(tile_fuzz.__file__).parent, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONHASHSEED": salt},
        )
        for salt in ("1", "2")
    ]  # fmt: skip
    one, other = (process.communicate()[0].splitlines() for process in started)
    assert one == other and len(one) >= len(seeds)


def test_every_operator_dimension_and_stage_is_generated() -> None:
    """All but `load_ahead`, which a pass writes, in 2,000 programs at most."""
    lines = ("reduce", "scan")
    dimensions = {(name, f"dim {dim} of {rank}") for name in lines for rank in (1, 2, 3) for dim in range(-rank, rank)}
    wanted = (
        set(TILE_OPERATORS) - {"load_ahead"} | dimensions | {(name, f"stages {n}") for name in lines for n in range(4)}
    )
    found = set[object]()
    for seed in range(2000):
        for kind, *words in tile_fuzz.program_of(seed).features:
            if kind == "operator":
                found |= {words[0], *((words[0], word) for word in words[1:])}
        if wanted <= found:
            break
    assert not wanted - found
    assert {pair for pair in found if isinstance(pair, tuple) and pair[0] in lines and "dim " in pair[1]} == dimensions


def test_every_target_and_architecture_is_asked() -> None:
    asked = {target for seed in range(200) for target in targets_of(seed)}
    assert asked == {f"{name} -arch={arch}" for name, known in machines().items() for arch in known}


def test_which_gpus_are_asked_is_not_this_processors_business(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hunt on another host asked other GPUs: what the processors' choice drew moved all that was drawn behind it."""
    here = [targets_of(seed)[1:] for seed in range(50)]
    monkeypatch.setattr(judge, "_runs_here", lambda preset: preset == "x86_64")
    assert [targets_of(seed)[1:] for seed in range(50)] == here


def test_loops_of_a_family_have_warps_that_only_load() -> None:
    """What its programs ask is asked of loops whose warps part, and of products under masks of any kind in them."""
    parted, masks = 0, set[float]()
    for seed in range(PARTING + 9000, PARTING + 9014):
        program = tile_fuzz.program_of(seed)
        if program.machines == ("cuda -arch=sm_90a",):
            with contextlib.suppress(TilewrightError):
                parted += "channel" in program.compile(program.machines[0]).show_program("specialize_warps")
    for seed in range(PARTING + 9000, PARTING + 9100):
        made = tile_fuzz.program_of(seed)
        names = re.findall(r"if (A\d+)\[k\d+\]", made.text)
        masks |= {float(np.mean(param.value)) for param in made.params if param.name in names}
    assert parted >= 3
    assert {0.0, 1.0} < masks


@pytest.fixture
def halves() -> Iterator[str]:
    """An operator that nobody knows: the sum of two tiles, wrong in the generic lowering where the test wants it."""

    @tile_operator("fuzzed_sum")
    class FuzzedSum(TileOperator):
        left: Region
        right: Region
        destination: Region
        times: int = 1

        def check(self) -> Iterator[str]:
            if not (
                same_shape(self.left.tile_shape, self.right.tile_shape)
                and same_shape(self.left.tile_shape, self.destination.tile_shape)
            ):
                yield "shapes differ"
            if len({self.left.dtype, self.right.dtype, self.destination.dtype}) > 1:
                yield "types differ"

        def effects(self) -> Effects:
            return Effects(reads=(self.left, self.right), writes=(self.destination,))

        def reference(self, left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray]:
            return ((left + right).astype(left.dtype),)

        def lower(self) -> Statement:
            return elementwise(
                self.destination,
                lambda *at: store_element(self.destination, at, element(self.left, at) - element(self.right, at)),  # type: ignore[operator]
                span=self.span,
            )

    yield "fuzzed_sum"
    del TILE_OPERATORS["fuzzed_sum"]


def test_a_new_operator_is_generated_by_existing(halves: str) -> None:
    reached = set()
    for seed in range(40):
        writer = TileWriter(seed)
        reached.add(write_operator(writer, halves))
        assert not writer.lines or any(f'operator("{halves}"' in line for line in writer.lines)
    assert True in reached
    assert any(("operator", halves, "by its fields") in tile_fuzz.program_of(seed).features for seed in range(300))


def test_a_failing_program_is_made_small() -> None:
    programs = map(tile_fuzz.program_of, range(100))
    program = next(made for made in programs if any("T.transpose" in line for line in made.body))

    def judge(one: TileProgram) -> Verdict:
        return Verdict(
            "fails" if any("T.transpose" in line for line in one.body) else "agrees", "cuda", "differs in Y1"
        )

    made = shrunk(program, judge(program), judge)
    assert [line for line in made.body if "T.transpose" not in line] == []
    assert judged(program, ("cpu",)).kind in ("agrees", "refused", "fails", "invalid")
