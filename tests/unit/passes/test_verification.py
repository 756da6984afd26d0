"""Every pass is verified: what it changed always, the whole program in tests; both find the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import tilewright.language as T
from tilewright.compiler import compile_function
from tilewright.errors import InternalError
from tilewright.ir import INT32, Allocate, Binary, Const, Function, Let, Load, Region, Statement, Store, Var, const
from tilewright.ir.verifier import violations
from tilewright.ir.visitor import Rewriter
from tilewright.ir.walking import find
from tilewright.options import override
from tilewright.passes.context import Context, Schedule
from tilewright.passes.manager import Step, run_passes
from tilewright.targets.registry import resolve

WORDS = ["cuda -arch=sm_90a", "cuda -arch=sm_80", "cpu"]


@T.prim_func
def program(A: T.Tensor((300, 64), "float16"), B: T.Tensor((64, 64), "float16"), C: T.Tensor((300, 64), "float32")):
    with T.Kernel(T.ceildiv(300, 64), threads=128) as block:
        a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
        c, line = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64,), "float32")
        T.clear(c)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[block * 64, k * 32], a)
            T.copy(B[k * 32, 0], b)
            T.gemm(a, b, c)
        T.reduce_max(c, line, dim=1)
        for i, j in T.Parallel(64, 64):
            c[i, j] = T.if_then_else(line[i] > 0.0, c[i, j] - line[i], c[i, j])
        T.copy(c, C[block * 64, 0])


def stages(word: str) -> list[Function]:
    target, arch = resolve(word)
    with override(verify=False):
        made = compile_function(program.function, target, arch)
    return [program.function, *(trace.function for trace in made.traces if trace.changed)]


class Damage(Rewriter):
    """One place of a program, made wrong or merely other; which, a generator draws."""

    def __init__(self, function: Function, draw: random.Random) -> None:
        self.draw, self.names = draw, list(find(function, Var))
        self.at = draw.randrange(sum(1 for _ in find(function, *WAYS)))

    def _here(self, node: Any) -> Any:
        self.at -= 1
        if self.at != -1:
            return self.generic(node)
        return WAYS[next(kind for kind in WAYS if isinstance(node, kind))](self, node)

    def visit_Statement(self, node: Statement) -> Any:
        return self._here(node) if isinstance(node, tuple(WAYS)) else self.generic(node)

    visit_Binary = visit_Load = visit_Const = visit_Region = _here


WAYS: dict[type, Callable[[Damage, Any], Any]] = {
    Let: lambda damage, node: None,
    Allocate: lambda damage, node: [node, node] if damage.draw.random() < 0.5 else None,
    Store: lambda damage, node: replace(node, value=damage.draw.choice(damage.names)),
    Binary: lambda damage, node: damage.draw.choice([node.left, damage.draw.choice(damage.names), const(True)]),
    Load: lambda damage, node: replace(node, indices=node.indices[1:]),
    Const: lambda damage, node: damage.draw.choice([Const(INT32, node.value), const(1.5), Var(INT32, "unknown")]),
    Region: lambda damage, node: replace(node, starts=(*node.starts, const(0)), extents=(*node.extents, 1)),
}  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_what_changed_is_found_as_in_the_whole(word: str) -> None:
    draw, wrong = random.Random(7), 0
    functions = stages(word)
    for function in functions:
        assert not violations(function, afresh=False, by_author=False)
        for _ in range(40):
            damaged = Damage(function, draw)(function)
            known = violations(damaged, afresh=False, by_author=False)
            assert set(known) == set(violations(damaged, by_author=False))
            wrong += bool(known)
    assert wrong > 10 * len(functions)


def test_a_part_that_declares_what_it_views_is_sound_wherever_it_stands() -> None:
    """A view is in scope where its tile is, which nobody outside of the part sees: the part takes neither from there."""

    @T.prim_func
    def viewed(X: T.Tensor((5, 2), "int8"), D: T.Tensor((5,), "int32"), count: T.int32):
        with T.Kernel(1, threads=32):
            for _ in T.serial(count):
                tile = T.alloc_shared((5, 2), "int8")
                seen = T.view(tile, (2, 5))
                T.copy(X, tile)
                for i, j in T.Parallel(2, 5):
                    T.atomic_max(D[j], T.cast(seen[i, j], "int32"))

    function = viewed.function
    assert not violations(function, afresh=False)
    assert not violations(replace(function), afresh=False)  # what was found sound is asked for its names alone
    assert not violations(function)


def spoil(function: Function, context: Context) -> Function:
    """A pass that leaves a name unbound."""

    class Spoil(Rewriter):
        def visit_Store(self, store: Store) -> Store:
            return replace(store, value=replace(store.value, left=Var(store.value.dtype, "lost")))

    return Spoil()(function)


@pytest.mark.parametrize("whole", [False, True])
def test_a_pass_that_spoils_a_program_is_named(whole: bool) -> None:
    _, arch = resolve("cuda -arch=sm_80")

    @T.prim_func
    def sums(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                A[i] = A[i] + 1.0

    with (
        override(verify=whole),
        pytest.raises(InternalError, match=r"after the pass spoil, (?s:.)*the variable lost is not in scope"),
    ):
        run_passes(sums.function, [Step(spoil, "")], Context(arch, Schedule(), {}))
