"""Faults planted in lowered programs: what a wrong compiler would emit, by the hundred, and what the emulator says.

Most are *mutants in one text*: every site of a final program is numbered, and the kernel takes one more parameter that says which
of them is wrong, so that one compilation serves all.  A site is a call left out or moved, a guard dropped, a number of a barrier, wait or
copy changed, a parity flipped, a swizzle swapped, a constant or an operator of a place in memory or of a thread's index changed, a
loop one longer or shorter.  *Stage faults* are planted before channels and copies are lowered (a wait, barrier, commit, acquire, publish,
receive or release left out, moved or off by one), so that the passes behind them do their honest work on a wrong program.

Verdicts are those of `planted_faults`.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import functools
import json
import multiprocessing
import random
import re
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import repository_programs as programs
from planted_faults import HARMLESS_SCHEDULES, TRIED, in_child
from repository_programs import Program, differences

from tilewright import compiler
from tilewright.errors import EmulationError, TilewrightError
from tilewright.ir import nodes
from tilewright.ir.dtypes import BOOL, INT32
from tilewright.ir.nodes import (
    Binary,
    Call,
    Const,
    Evaluate,
    Expr,
    For,
    Function,
    If,
    Let,
    Region,
    Seq,
    Statement,
    Store,
    TensorMap,
    Var,
    binary,
    const,
    seq,
)
from tilewright.ir.printer import print_program
from tilewright.ir.visitor import Rewriter, walk
from tilewright.passes.context import Context, Schedule
from tilewright.passes.manager import Step, run_passes
from tilewright.passes.pipeline import PIPELINE
from tilewright.runtime.emulation import emulate_program
from tilewright.runtime.kernel import Kernel

PLANTED = Var(INT32, "planted")
"""The parameter that says which fault of a text is in force; 0 for none."""

ORDERING = {
    "sync_threads", "named_barrier_sync", "sync_warp", "mbarrier_init", "fence_mbarrier_init", "mbarrier_wait", "mbarrier_wait_cluster", "mbarrier_arrive",
    "mbarrier_arrive_cluster", "mbarrier_expect_tx", "mbarrier_arrive_expect_tx", "cp_async_commit", "cp_async_wait", "cp_async_mbarrier_arrive_noinc",
    "fence_proxy_async_shared", "fence_proxy_async", "bulk_commit", "bulk_wait_read", "wgmma_fence", "wgmma_commit", "wgmma_wait", "cluster_sync",
    "cluster_arrive", "cluster_wait", "setmaxnreg", "griddepcontrol_wait", "store_release", "add_release",
}  # fmt: skip
"""Calls that order: they are left out and moved."""

MOVERS = {
    "cp_async",
    "cp_async_zfill",
    "tma_load",
    "tma_load_multicast",
    "tma_store",
    "wgmma_ss",
    "wgmma_rs",
    "stmatrix_x4",
    "ldmatrix",
    "ldmatrix_trans",
}
"""Calls that move or multiply data: they are left out."""

TWICE = {
    "mbarrier_init", "mbarrier_arrive", "mbarrier_arrive_cluster", "mbarrier_arrive_expect_tx", "mbarrier_expect_tx",
    "cp_async_mbarrier_arrive_noinc", "cluster_arrive", "tma_load", "tma_load_multicast", "tma_store", "store_release",
}  # fmt: skip
"""Calls that are not the same when done twice."""

TEMPLATES = {"cp_async_wait": 1, "wgmma_wait": 1, "bulk_wait_read": 1}
"""Calls whose number must be a constant of the text."""

COUNTS = {
    "mbarrier_init": {1: (1, -1)}, "mbarrier_expect_tx": {1: (16, -16)}, "mbarrier_arrive_expect_tx": {1: (16, -16)},
    "named_barrier_sync": {0: (1,), 1: (32, -32)}, "mbarrier_arrive_cluster": {1: (1,)},
}  # fmt: skip
"""For each call the positions of its numbers, and what is added to them."""

SWAPS = {
    "add": "sub",
    "sub": "add",
    "floordiv": "floormod",
    "floormod": "floordiv",
    "mul": "add",
    "xor": "add",
    "and": "or",
    "lt": "le",
    "ge": "gt",
    "eq": "ne",
}
SWIZZLES = {"tw::SWIZZLE_128B": "tw::SWIZZLE_64B", "tw::SWIZZLE_64B": "tw::SWIZZLE_32B", "tw::SWIZZLE_32B": "tw::SWIZZLE_128B", "tw::SWIZZLE_NONE": "tw::SWIZZLE_128B"}  # fmt: skip


@dataclass(frozen=True)
class Site:
    """One fault: its number in the text (0 for a stage fault), its kind, and its place in words."""

    number: int
    kind: str
    what: str
    line: int = 0
    stage: int = 0


class _Plant(Rewriter):
    """Writes the chosen faults into a program, each in force where the parameter has its number.

    Sites are numbered in the order of the program, so that a first run without a choice lists them.
    """

    def __init__(self, chosen: frozenset[int] | None) -> None:
        self.chosen, self.sites, self.line = chosen, list[Site](), 0

    def site(self, kind: str, what: str) -> Expr | None:
        """Number the next site; the condition that it is in force, None where it is not wanted."""
        number = len(self.sites) + 1
        self.sites.append(Site(number, kind, what, self.line))
        wanted = self.chosen is None or number in self.chosen
        return binary("eq", PLANTED, const(number)) if wanted else None

    def choose(self, kind: str, what: str, wrong: Expr, right: Expr) -> Expr:
        active = self.site(kind, what)
        return right if active is None else nodes.Select(right.dtype, active, wrong, right)

    # Statements ----------------------------------------------------------------------------------

    def visit_Seq(self, body: Seq) -> Seq:
        before: dict[int, list[Statement]] = collections.defaultdict(list)
        here: list[list[Statement]] = []
        after: dict[int, list[Statement]] = collections.defaultdict(list)
        for position, statement in enumerate(body.statements):
            self.line = statement.span.line if statement.span is not None else self.line
            name = _called(statement)
            result = self.visit(statement)
            rebuilt = [result] if isinstance(result, Statement) else list(result)
            if name in ORDERING or name in MOVERS:
                rebuilt = self._unless(self.site("left out", _text(statement)), rebuilt)
            if name in TWICE:
                active = self.site("done twice", _text(statement))
                if active is not None:
                    after[position].append(If(active, seq(statement), span=statement.span))
            if name in ORDERING:
                following = body.statements[position + 1 : position + 2]
                if following and not isinstance(following[0], nodes.Allocate):
                    active = self.site("moved later", _text(statement))
                    if active is not None:
                        rebuilt = self._unless(active, rebuilt)
                        after[position + 1].append(If(active, seq(statement), span=statement.span))
                previous = body.statements[position - 1] if position else None
                if previous is not None and not (
                    isinstance(previous, (Let, nodes.Allocate)) and _uses(statement, previous)
                ):
                    active = self.site("moved earlier", _text(statement))
                    if active is not None:
                        rebuilt = self._unless(active, rebuilt)
                        before[position - 1].append(If(active, seq(statement), span=statement.span))
            here.append(rebuilt)
        made = [one for position, group in enumerate(here) for one in (*before[position], *group, *after[position])]
        return replace(body, statements=tuple(made))

    def _unless(self, active: Expr | None, rebuilt: list[Statement]) -> list[Statement]:
        """Statements that run where a fault is not in force."""
        if active is None:
            return rebuilt
        return [If(nodes.Unary(BOOL, "not", active), seq(rebuilt), span=rebuilt[0].span)]

    def visit_If(self, branch: If) -> Statement:
        condition = self.index(branch.condition)
        if branch.otherwise is None:
            active = self.site("guard dropped", _text(branch.condition))
            if active is not None:
                condition = binary("any", active, condition)
        return replace(
            branch, condition=condition, then=self(branch.then), otherwise=branch.otherwise and self(branch.otherwise)
        )

    def visit_For(self, loop: For) -> Statement:
        stop = loop.stop
        if loop.kind == "serial":
            stop = self.choose("loop longer", _text(loop.stop), nodes.index_binary("add", loop.stop, 1), stop)
            stop = self.choose("loop shorter", _text(loop.stop), nodes.index_binary("sub", loop.stop, 1), stop)
        return replace(loop, stop=stop, body=self(loop.body))

    def visit_Let(self, let: Let) -> Statement:
        plain = let.var.dtype.name in ("int32", "uint32") and not isinstance(let.value, Call)
        return replace(let, value=self.index(let.value) if plain else self.visit(let.value))

    def visit_Evaluate(self, evaluate: Evaluate) -> Any:
        value = evaluate.value
        if not isinstance(value, Call):
            return self.generic(evaluate)
        if value.function in TEMPLATES:
            number = value.arguments[0]
            assert isinstance(number, Const)
            result: Statement = evaluate
            for change in (1, -1):
                if number.value + change < 0:
                    continue
                active = self.site("pending off by one", f"{value.function} {number.value} by {change}")
                if active is not None:
                    other = replace(evaluate, value=replace(value, arguments=(const(number.value + change),)))
                    result = If(active, seq(other), seq(result), span=evaluate.span)
            return result
        made: Statement = replace(evaluate, value=self.visit(value))
        maps = [argument for argument in value.arguments if isinstance(argument, TensorMap)]
        if maps:
            other = {128: 0, 64: 128, 32: 64}.get(maps[0].swizzle)
            if other is None:
                return made
            active = self.site("swizzle", f"{value.function}: {maps[0].swizzle} becomes {other}")
            if active is not None:
                arguments = tuple(replace(a, swizzle=other) if a is maps[0] else a for a in value.arguments)
                wrong = replace(evaluate, value=replace(value, arguments=arguments))
                made = If(active, seq(wrong), seq(made), span=evaluate.span)
        return made

    # Expressions ---------------------------------------------------------------------------------

    def visit_Call(self, call: Call) -> Expr:
        if call.function.startswith(("wgmma_ss", "wgmma_rs")):
            *others, accumulate = call.arguments
            if not isinstance(accumulate, Expr) or accumulate.dtype != BOOL:
                return call
            wrong = nodes.Unary(BOOL, "not", accumulate)
            flag = self.choose("flag", f"{call.function}: accumulate is negated", wrong, accumulate)
            return replace(call, arguments=(*others, flag))
        if call.function == "wgmma_descriptor":
            region, swizzle, *numbers = call.arguments
            made = replace(call, arguments=(self.visit(region), swizzle, *numbers))
            if isinstance(swizzle, str) or isinstance(getattr(swizzle, "value", None), str):
                name = swizzle if isinstance(swizzle, str) else swizzle.value
                other = SWIZZLES[name]
                wrong = replace(
                    call,
                    arguments=(region, other if isinstance(swizzle, str) else replace(swizzle, value=other), *numbers),
                )
                made = self.choose("swizzle", f"{name} becomes {other}", wrong, made)
            for position in (2, 3):
                number = call.arguments[position]
                if isinstance(number, Const):
                    wrong = replace(
                        call,
                        arguments=(
                            *call.arguments[:position],
                            const(number.value * 2, number.dtype),
                            *call.arguments[position + 1 :],
                        ),
                    )
                    made = self.choose("stride doubled", f"{call.function} argument {position}", wrong, made)
            return made
        if call.function == "mbarrier_wait" or call.function == "mbarrier_wait_cluster":
            place, parity = call.arguments
            wrong = binary("xor", parity, const(1, parity.dtype))
            return replace(
                call,
                arguments=(
                    self._slot(place, call.function),
                    self.choose("parity flipped", _text(parity), wrong, parity),
                ),
            )
        if call.function == "tma_load_multicast" or call.function in ("tma_load", "tma_store"):
            return replace(call, arguments=tuple(self._copied(call.function, a) for a in call.arguments))
        counts = COUNTS.get(call.function, {})
        arguments: list[Any] = []
        for position, argument in enumerate(call.arguments):
            made_argument = (
                self._slot(argument, call.function)
                if call.function.startswith("mbarrier")
                else self._argument(argument)
            )
            for change in counts.get(position, ()):
                if isinstance(argument, Expr):
                    wrong = nodes.index_binary("add", argument, const(change, argument.dtype))
                    made_argument = self.choose(
                        "count", f"{call.function} argument {position} by {change}", wrong, made_argument
                    )
            arguments.append(made_argument)
        return replace(call, arguments=tuple(arguments))

    def _slot(self, argument: Any, function: str) -> Any:
        """A barrier's place: one further in its row."""
        if not isinstance(argument, Region):
            return argument
        start = argument.starts[0]
        return replace(
            argument,
            starts=(
                self.choose(
                    "slot off by one",
                    f"{function} {argument.buffer.name}[{_text(start)}]",
                    nodes.index_binary("add", start, 1),
                    start,
                ),
            ),
        )

    def _copied(self, function: str, argument: Any) -> Any:
        if isinstance(argument, Region):
            return self._slot(argument, function) if argument.buffer.scope == "barrier" else self.visit(argument)
        if isinstance(argument, TensorMap) or not isinstance(argument, Expr):
            return argument
        return self.choose(
            "coordinate",
            f"{function} {_text(argument)}",
            nodes.index_binary("add", argument, const(8, argument.dtype)),
            argument,
        )

    def _argument(self, argument: Any) -> Any:
        return (
            self.visit(argument)
            if isinstance(argument, (Expr, Region)) and not isinstance(argument, TensorMap)
            else argument
        )

    def visit_TensorMap(self, tensor_map: TensorMap) -> TensorMap:
        return tensor_map

    def visit_Load(self, load: nodes.Load) -> Expr:
        return replace(load, indices=tuple(self.index(index) for index in load.indices))

    def visit_Store(self, store: Store) -> Statement:
        value = self.visit(store.value)
        return replace(store, indices=tuple(self.index(index) for index in store.indices), value=value)

    def visit_Region(self, region: Region) -> Region:
        return replace(region, starts=tuple(self.index(start) for start in region.starts))

    def index(self, expression: Expr) -> Expr:
        """Faults in the arithmetic of a place: each constant one more or twice as much, each operator another."""
        if isinstance(expression, Const):
            if not isinstance(expression.value, int) or isinstance(expression.value, bool):
                return expression
            made: Expr = expression
            for wrong in {expression.value + 1, expression.value * 2} - {expression.value}:
                made = self.choose(
                    "constant", f"{expression.value} becomes {wrong}", const(wrong, expression.dtype), made
                )
            return made
        if isinstance(expression, Binary):
            made = replace(expression, left=self.index(expression.left), right=self.index(expression.right))
            other = SWAPS.get(expression.op)
            if other is not None:
                wrong = Binary(expression.dtype, other, expression.left, expression.right)
                made = self.choose("operator", f"{_text(expression)}: {expression.op} becomes {other}", wrong, made)
            return made
        if isinstance(expression, nodes.Cast):
            return replace(expression, value=self.index(expression.value))
        if isinstance(expression, Call):
            return replace(
                expression,
                arguments=tuple(
                    self.index(a) if isinstance(a, Expr) and expression.function == "warp_uniform" else a
                    for a in expression.arguments
                ),
            )
        return expression


def _called(statement: Statement) -> str:
    value = statement.value if isinstance(statement, Evaluate) else None
    return value.function if isinstance(value, Call) else ""


def _uses(statement: Statement, earlier: Statement) -> bool:
    named = earlier.var if isinstance(earlier, Let) else earlier.buffer  # type: ignore[attr-defined]
    return any(node is named for node in walk(statement))


def _text(node: Any) -> str:
    """An expression or a statement in a line."""
    body = seq(node) if isinstance(node, Statement) else seq(Evaluate(node))
    text = print_program(Function("f", (), body, stage="final")).split("\n")
    return " ".join(line.strip() for line in text[2:] if line.strip())[:90]


# Faults before channels are lowered -------------------------------------------------------------

CHANNELS = (nodes.Acquire, nodes.Publish, nodes.Receive, nodes.Release)


class _Stage(Rewriter):
    """Plants fault number `wanted` among statements of the tile program; lists them all where it is 0."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.sites = wanted, list[Site]()

    def _is(self, kind: str, statement: Statement) -> bool:
        number = len(self.sites) + 1
        line = statement.span.line if statement.span is not None else 0
        self.sites.append(Site(0, kind, _text(statement), line, number))
        return number == self.wanted

    def visit_Seq(self, body: Seq) -> Seq:
        statements = list(body.statements)
        made: list[Any] = []
        for position, statement in enumerate(statements):
            ordering = (
                isinstance(statement, (nodes.Wait, nodes.Commit, *CHANNELS)) or _called(statement) == "sync_threads"
            )
            if not ordering:
                made.append(self.visit(statement))
                continue
            changed: Statement | None = statement
            if self._is("stage: left out", statement):
                changed = None
            if isinstance(statement, CHANNELS):
                for change in (1, -1):
                    if self._is(f"stage: iteration by {change}", statement):
                        changed = replace(
                            statement, iteration=nodes.index_binary("add", statement.iteration, const(change))
                        )
            if isinstance(statement, nodes.Wait) and self._is("stage: pending by 1", statement):
                changed = replace(statement, pending=statement.pending + 1)
            if (
                position
                and not isinstance(statements[position - 1], (Let, nodes.Allocate))
                and self._is("stage: moved earlier", statement)
            ):
                made.insert(len(made) - 1, statement)
                continue
            if (
                position + 1 < len(statements)
                and not isinstance(statements[position + 1], (Let, nodes.Allocate))
                and self._is("stage: moved later", statement)
            ):
                statements[position + 1 : position + 2] = [statements[position + 1]]
                made += [self.visit(statements[position + 1]), statement]
                made += [self.visit(rest) for rest in statements[position + 2 :]]
                return replace(body, statements=tuple(made))
            made.append(changed)
        return replace(body, statements=tuple(one for one in made if one is not None))


def stage_sites(kernel: Kernel) -> list[Site]:
    """Faults that can be planted behind `plan_synchronization`."""
    lister = _Stage(0)
    lister(next(trace.function for trace in kernel.program.traces if trace.name == "plan_synchronization"))
    return lister.sites


def with_stage_fault(kernel: Kernel, number: int) -> compiler.Program:
    """The program that the compiler makes of a tile program with a fault.

    Raises
    ------
    TilewrightError : a pass behind it refuses.
    """

    def plant(function: Function, context: Context) -> Function:
        return _Stage(number)(function)

    at = next(i for i, step in enumerate(PIPELINE) if step.name == "plan_synchronization") + 1
    steps = (*PIPELINE[:at], Step(plant, "a fault"), *PIPELINE[at:])
    program = kernel.program
    final, traces = run_passes(program.traced, steps, Context(kernel.arch, kernel.schedule, kernel.target.overrides))
    return replace(program, final=final, traces=tuple(traces), source=kernel.target.emit(final, kernel.arch))


# A program with all its faults --------------------------------------------------------------------


@dataclass
class Prepared:
    """A kernel of the repository, its right result, and the faults to try."""

    program: Program
    architecture: str
    sites: list[Site]
    kernel: Kernel = field(repr=False)
    arguments: tuple[Any, ...] = field(repr=False)
    expected: list[np.ndarray] = field(repr=False)
    mutants: compiler.Program = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.program.name} {self.architecture}"


def prepare(program: Program, architecture: str, most: int, seed: int = 0) -> Prepared:
    """Compile a kernel with at most `most` faults of its text, a seeded choice, and all its stage faults up to half as many."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel, arguments = program.make(architecture)
    lister = _Plant(frozenset())
    lister(kernel.program.final)
    chosen = _sample(lister.sites, most, seed)
    planter = _Plant(frozenset(site.number for site in chosen))
    final = planter(kernel.program.final)
    assert planter.sites == lister.sites
    final = replace(final, params=(*final.params, PLANTED))
    traced = replace(kernel.program.traced, params=(*kernel.program.traced.params, PLANTED))
    mutants = replace(kernel.program, traced=traced, final=final, source=kernel.target.emit(final, kernel.arch))
    expected = _run(mutants, arguments, 0)
    assert not differences(expected, _run(kernel.program, arguments, None), 0.0), (
        f"{program.name}: the mutants' text is wrong without a fault"
    )
    sites = [*chosen, *_sample(stage_sites(kernel), most // 2, seed)]
    return Prepared(program, architecture, sites, kernel, arguments, expected, mutants)


def _sample(sites: Sequence[Site], most: int, seed: int) -> list[Site]:
    """A seeded choice that takes kinds in turn, so that rare ones are not lost among constants."""
    by_kind: dict[str, list[Site]] = {}
    for site in random.Random(seed).sample(list(sites), len(sites)):
        by_kind.setdefault(site.kind, []).append(site)
    chosen: list[Site] = []
    while len(chosen) < min(most, len(sites)):
        for kind in sorted(by_kind):
            if by_kind[kind] and len(chosen) < most:
                chosen.append(by_kind[kind].pop())
    return sorted(chosen, key=lambda site: (site.stage, site.number))


def _run(program: compiler.Program, arguments: Sequence[Any], planted: int | None, **options: Any) -> list[np.ndarray]:
    """The outputs and the arrays given, after a run with a fault in force."""
    given = [argument.copy() if isinstance(argument, np.ndarray) else argument for argument in arguments]
    outputs = emulate_program(program, [*given, *([] if planted is None else [planted])], workers=1, **options)
    return [np.asarray(array) for array in (*outputs, *given) if isinstance(array, np.ndarray)]


def judge(one: Prepared, site: Site, schedules: int = HARMLESS_SCHEDULES) -> tuple[str, str]:
    """What becomes of a fault: its class, and the kinds of reports or the schedule that tell."""
    program, planted = one.mutants, site.number
    if site.stage:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                program, planted = with_stage_fault(one.kernel, site.stage), None  # type: ignore[assignment]
        except TilewrightError as error:
            return "invalid", type(error).__name__
        if program.source.text == one.kernel.program.source.text:
            return "invalid", "the text is the same"
    for schedule, seed, poison in _schedules(schedules):
        try:
            found = _run(program, one.arguments, planted, schedule=schedule, seed=seed, poison=poison, seconds=10.0)
        except EmulationError as error:
            return "reported", ",".join(sorted({report.kind for report in error.reports}))
        except TilewrightError as error:
            return "invalid", f"{type(error).__name__}: {error}"[:200]
        if differences(found, one.expected, one.program.bound):
            return "wrong", f"{schedule} {seed}"
        if differences(found, one.expected, 0.0):
            return "missed", f"{schedule} {seed}"
    return "harmless", ""


MOST = 72
"""Faults of a kernel's text; half as many again are planted before channels are lowered."""


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
        (Program("rows folded", direct(programs.softmax_of_long_rows, programs.WIDE), bound=2e-6), "sm_80"),
        (Program("rows normed", direct(programs.rms_norm_of_short_rows, programs.WIDE[:, :640].copy(), programs.WEIGHT[:640].copy()), bound=2e-6), "sm_80"),
        (Program("operators of many threads", direct(programs.plain.every_operator, programs.real(16, 64), programs.real(16, 64, seed=1)), bound=4e-6), "sm_80"),
        (Program("totals in shared memory", direct(replicas.running_totals, whole(4, 8, 8, dtype="float32"))), "sm_80"),
    ]  # fmt: skip


def _schedules(count: int) -> Iterator[tuple[str, int, int]]:
    for schedule, seed in TRIED:
        yield schedule, seed, 0x7FF7A5A57FF7A5A5
    for i in range(count):
        yield ("late", "early", "random")[i % 3], 4 + i, random.Random(i).getrandbits(64)


# The whole hunt ------------------------------------------------------------------------------------

Verdict = tuple[str, Site, str, str]
"""Kernel, fault, class, and what tells."""

REASONS: tuple[tuple[str, str, str], ...] = (
    (r"^stride doubled", r"argument 2", "the leading offset of swizzled K-major tiles is not read"),
    (r"moved", r"", "the two statements commute, or a wait or barrier of the same kind follows before anything depends on their order"),
    (r"pending", r"by -1$", "the wait covers more than it must"),
    (r"pending", r"", "a later wait covers the same copies, or there are none to wait for at this problem's sizes"),
    (r"left out", r"^(sync_|named_)", "another barrier on every path orders the same accesses, or nothing has used the bytes behind it before"),
    (r"left out", r"^(cp_async_(commit|wait)|commit)", "the copies join the group that follows, for which the loop waits, or there are none"),
    (r"done twice", r"tma_store", "the same bytes are stored twice"),
    (r"left out|iteration|twice|slot", r"release|arrive", "nobody waits for the last release of a slot"),
    (r"count", r"named_barrier", "every thread of that barrier takes the other id, which is free"),
    (r"^loop", r"", "everything in the extra iteration, or in the one left out, lies outside of the tensors"),
    (r"guard", r"", "the guard holds for all at this problem's sizes, or what lies behind it is done twice or not used"),
    (r"constant|operator|slot|coordinate", r"", "the value is the same for all threads at this problem's sizes, or names another free place for all alike"),
    (r"", r"", "what it does is done again, or undone, before anybody looks"),
)  # fmt: skip
"""Why a fault does no harm: the first entry whose patterns fit its kind and its place."""


def reason(site: Site) -> str:
    """The reason why a harmless fault is one."""
    return next(why for kind, what, why in REASONS if re.search(kind, site.kind) and re.search(what, site.what))


def hunt(most: int = MOST, names: set[str] | None = None, sample: int | None = None, seed: int = 0) -> list[Verdict]:
    """Plant faults in every kernel (`sample` of each where given) and judge them, each in a process of its own."""
    found: list[Verdict] = []
    for program, architecture in kernels_to_plant_in():
        if names is not None and program.name not in names:
            continue
        one = prepare(program, architecture, most, seed)
        for site in one.sites if sample is None else random.Random(7).sample(one.sites, sample):
            found.append((one.name, site, *in_child(judge, one, site)))
    return found


@functools.cache
def _prepared(number: int, most: int, seed: int) -> Prepared:
    return prepare(*kernels_to_plant_in()[number], most, seed)


SHARES = 9
"""Each kernel's faults are judged in so many parts, which several processes take."""


def _judge_share(task: tuple[int, int, int, int]) -> list[Verdict]:
    number, share, most, seed = task
    one = _prepared(number, most, seed)
    return [(one.name, site, *in_child(judge, one, site)) for site in one.sites[share::SHARES]]


def hunt_in_processes(
    most: int, seed: int, log: Path, workers: int, seconds: float, names: Sequence[str] | None = None
) -> list[Verdict]:
    """Judge the faults of all kernels, or those of some names, until the time is over, gone on with where an earlier hunt with that log stopped."""
    known = log.read_text().splitlines() if log.exists() else []
    done = {tuple(json.loads(line)["task"]) for line in known}
    chosen = [i for i, (program, _) in enumerate(kernels_to_plant_in()) if names is None or program.name in names]
    tasks = [(number, share, most, seed) for number in chosen for share in range(SHARES)]
    end = time.monotonic() + seconds
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        waiting = {task: pool.apply_async(_judge_share, (task,)) for task in tasks if task not in done}
        while waiting and time.monotonic() < end:
            time.sleep(0.2)
            for task in [task for task, result in waiting.items() if result.ready()]:
                verdicts = [[name, asdict(site), *said] for name, site, *said in waiting.pop(task).get()]
                with log.open("a") as out:
                    out.write(json.dumps({"task": task, "verdicts": verdicts}) + "\n")
        pool.terminate()
    if waiting:
        print(f"the time is over: {len(waiting)} of {len(tasks)} shares are left")
    return read_log(log)


def read_log(*logs: Path) -> list[Verdict]:
    """The verdicts in logs, kernel by kernel."""
    found: list[Verdict] = []
    for log in logs:
        for line in log.read_text().splitlines() if log.exists() else []:
            for name, site, verdict, detail in json.loads(line)["verdicts"]:
                found.append((name, Site(**site), verdict, detail))
    order = [f"{program.name} {architecture}" for program, architecture in kernels_to_plant_in()]
    return sorted(found, key=lambda one: (order.index(one[0]), one[1].stage, one[1].number))


def caught_share(verdicts: Sequence[Verdict]) -> float:
    """Share of the faults that do harm and were caught."""
    counts = collections.Counter(verdict for _, _, verdict, _ in verdicts)
    caught = counts["reported"] + counts["wrong"] + counts["hung"] + counts["crashed"]
    return caught / max(1, caught + counts["missed"])


def table(verdicts: Sequence[Verdict]) -> str:
    """The result as a section of a page."""
    counts = collections.Counter(verdict for _, _, verdict, _ in verdicts)
    lines = [
        f"{datetime.date.today().isoformat()}: {len(verdicts)} faults. " + ", ".join(f"{verdict} {count}" for verdict, count in counts.most_common()) + ".",
        f"Caught of those that do harm: {100 * caught_share(verdicts):.2f} %.", "",
        "| kernel | reported | wrong | hung, crashed | missed | harmless | invalid |", "| --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for name in dict.fromkeys(name for name, _, _, _ in verdicts):
        c = collections.Counter(verdict for other, _, verdict, _ in verdicts if other == name)
        lines.append(
            f"| {name} | {c['reported']} | {c['wrong']} | {c['hung'] + c['crashed']} | {c['missed']} | {c['harmless']} | {c['invalid']} |"
        )
    lines += ["", "| kind | reported | wrong | harmless | other |", "| --- | --- | --- | --- | --- |"]
    for kind in sorted({site.kind for _, site, _, _ in verdicts}):
        c = collections.Counter(verdict for _, site, verdict, _ in verdicts if site.kind == kind)
        rest = sum(c.values()) - c["reported"] - c["wrong"] - c["harmless"]
        lines.append(f"| {kind} | {c['reported']} | {c['wrong']} | {c['harmless']} | {rest} |")
    for wanted in ("missed", "hung", "crashed"):
        if counts[wanted]:
            lines += ["", f"{wanted.capitalize()}:", ""]
            lines += [
                f"- {name}: {site.kind}, {site.what} {detail}".rstrip()
                for name, site, verdict, detail in verdicts
                if verdict == wanted
            ]
    lines += ["", "Harmless, by reason:", ""]
    for _, _, why in REASONS:
        places = [
            f"{name}: {site.kind}, `{site.what}`"
            for name, site, verdict, _ in verdicts
            if verdict == "harmless" and reason(site) == why
        ]
        if places:
            lines += [f"**{why[0].upper()}{why[1:]}** ({len(places)})", "", "; ".join(places), ""]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=MOST)
    parser.add_argument("--seed", type=int, default=0, help="of the choice of faults")
    parser.add_argument(
        "--log", type=Path, required=True, help="of verdicts; shares that it holds already are left out"
    )
    parser.add_argument("--kernels", nargs="*", help="names; all where left out")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    how = (options.workers, options.seconds, options.kernels)
    text = table(hunt_in_processes(options.most, options.seed, options.log, *how))
    (options.output.write_text if options.output else print)(text)


if __name__ == "__main__":
    main()
