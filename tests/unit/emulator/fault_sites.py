"""Faults of a lowered program: every site numbered, and a program in which a parameter says which of them is in force.

A site is a call left out, done twice or moved, a guard dropped, a number of a barrier, wait or copy changed, a parity flipped, a swizzle
swapped, a constant or an operator of a place in memory or of a thread's index changed, a loop one longer or shorter.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, replace
from typing import Any

from tilewright.ir import BOOL, INT32, Rewriter, nodes, walk
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

PLANTED = Var(INT32, "planted")
"""The parameter that says which fault of a text is in force; 0 for none."""

ORDERING = {
    "sync_threads", "named_barrier_sync", "sync_warp", "signal_init", "fence_signal_init", "signal_wait", "signal_wait_cluster", "signal_arrive",
    "signal_arrive_cluster", "signal_expect_tx", "signal_arrive_expect_tx", "async_copy_commit", "async_copy_wait", "async_copy_signal_arrive_noinc",
    "fence_proxy_async_shared", "fence_proxy_async", "bulk_commit", "bulk_wait_read", "gmma_fence", "gmma_commit", "gmma_wait", "cluster_sync",
    "cluster_arrive", "cluster_wait", "set_registers", "grid_wait", "store_release", "add_release", "named_barrier_arrive", "bulk_wait",
    "signal_arrive_cluster_release",
}  # fmt: skip
"""Calls that order: they are left out and moved."""

MOVERS = {
    "async_copy", "async_copy_zfill", "box_load", "box_load_multicast", "box_load_hint", "box_store", "bulk_load", "bulk_load_hint", "bulk_load_multicast",
    "bulk_store", "bulk_copy_cluster", "load_cluster_fragment", "wgmma_ss", "wgmma_rs", "wgmma_sparse_ss", "wgmma_sparse_rs", "sparse_places",
    "mma_m16n8k16", "mma_m16n8k32", "store_matrix_x4", "load_matrix", "load_matrix_trans", "set_word", "quad_transpose",
}  # fmt: skip
"""Calls that move or multiply data: they are left out."""

TWICE = {
    "signal_init", "signal_arrive", "signal_arrive_cluster", "signal_arrive_expect_tx", "signal_expect_tx",
    "async_copy_signal_arrive_noinc", "cluster_arrive", "box_load", "box_load_multicast", "box_store", "store_release", "bulk_load",
    "bulk_load_hint", "named_barrier_arrive",
}  # fmt: skip
"""Calls that are not the same when done twice."""

TEMPLATES = {"async_copy_wait": 1, "gmma_wait": 1, "bulk_wait_read": 1}
"""Calls whose number must be a constant of the text."""

COUNTS = {
    "signal_init": {1: (1, -1)}, "signal_expect_tx": {1: (16, -16)}, "signal_arrive_expect_tx": {1: (16, -16)},
    "named_barrier_sync": {0: (1,), 1: (32, -32)}, "named_barrier_arrive": {0: (1,), 1: (32, -32)}, "signal_arrive_cluster": {1: (1,)},
    "bulk_load": {2: (16, -16)}, "bulk_load_hint": {2: (16, -16)},
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


class Planter(Rewriter):
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
            name = called(statement)
            result = self.visit(statement)
            rebuilt = [result] if isinstance(result, Statement) else list(result)
            if name in ORDERING or name in MOVERS:
                rebuilt = self._unless(self.site("left out", in_words(statement)), rebuilt)
            if name in TWICE:
                active = self.site("done twice", in_words(statement))
                if active is not None:
                    after[position].append(If(active, seq(statement), span=statement.span))
            if name in ORDERING:
                following = body.statements[position + 1 : position + 2]
                if following and not isinstance(following[0], nodes.Allocate):
                    active = self.site("moved later", in_words(statement))
                    if active is not None:
                        rebuilt = self._unless(active, rebuilt)
                        after[position + 1].append(If(active, seq(statement), span=statement.span))
                previous = body.statements[position - 1] if position else None
                if previous is not None and not (
                    isinstance(previous, (Let, nodes.Allocate)) and uses(statement, previous)
                ):
                    active = self.site("moved earlier", in_words(statement))
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
            active = self.site("guard dropped", in_words(branch.condition))
            if active is not None:
                condition = binary("any", active, condition)
        return replace(
            branch, condition=condition, then=self(branch.then), otherwise=branch.otherwise and self(branch.otherwise)
        )

    def visit_For(self, loop: For) -> Statement:
        stop = loop.stop
        if loop.kind == "serial":
            stop = self.choose("loop longer", in_words(loop.stop), nodes.index_binary("add", loop.stop, 1), stop)
            stop = self.choose("loop shorter", in_words(loop.stop), nodes.index_binary("sub", loop.stop, 1), stop)
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
        if call.function.startswith(("wgmma_ss", "wgmma_rs", "wgmma_sparse")):
            *others, accumulate = call.arguments
            if not isinstance(accumulate, Expr) or accumulate.dtype != BOOL:
                return call
            wrong = nodes.Unary(BOOL, "not", accumulate)
            flag = self.choose("flag", f"{call.function}: accumulate is negated", wrong, accumulate)
            return replace(call, arguments=(*others, flag))
        if call.function == "gmma_descriptor":
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
        if call.function == "signal_wait" or call.function == "signal_wait_cluster":
            place, parity = call.arguments
            wrong = binary("xor", parity, const(1, parity.dtype))
            return replace(
                call,
                arguments=(
                    self._slot(place, call.function),
                    self.choose("parity flipped", in_words(parity), wrong, parity),
                ),
            )
        if call.function == "box_load_multicast" or call.function in ("box_load", "box_store"):
            return replace(call, arguments=tuple(self._copied(call.function, a) for a in call.arguments))
        counts = COUNTS.get(call.function, {})
        arguments: list[Any] = []
        for position, argument in enumerate(call.arguments):
            made_argument = (
                self._slot(argument, call.function)
                if isinstance(argument, Region) and argument.buffer.scope == "barrier"
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
                    f"{function} {argument.buffer.name}[{in_words(start)}]",
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
            f"{function} {in_words(argument)}",
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
                made = self.choose("operator", f"{in_words(expression)}: {expression.op} becomes {other}", wrong, made)
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


def called(statement: Statement) -> str:
    value = statement.value if isinstance(statement, Evaluate) else None
    return value.function if isinstance(value, Call) else ""


def uses(statement: Statement, earlier: Statement) -> bool:
    named = earlier.var if isinstance(earlier, Let) else earlier.buffer  # type: ignore[attr-defined]
    return any(node is named for node in walk(statement))


def in_words(node: Any) -> str:
    """An expression or a statement in a line."""
    body = seq(node) if isinstance(node, Statement) else seq(Evaluate(node))
    text = print_program(Function("f", (), body, stage="final")).split("\n")
    return " ".join(line.strip() for line in text[2:] if line.strip())[:90]
