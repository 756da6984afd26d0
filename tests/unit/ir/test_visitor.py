"""Finding nodes by class, and rewriters that pass over what is nothing to them."""

from __future__ import annotations

import textwrap

from tilewright.ir import Binary, Buffer, Const, Expr, Load, Rewriter, Statement, Store, Var, const, find, holds, walk
from tilewright.ir.parser import parse
from tilewright.passes.scoped import ScopedRewriter

PROGRAM = parse(
    textwrap.dedent("""
    def f(X: float32[64], Y: float32[64]):
        with kernel(blocks={b: 2}, threads={tx: 32, ty: 1, tz: 1}):
            base: int32 = b * 32
            for i in range(32):
                Y[base + i] = X[base + i] * 2.0
            if b < 1:
                Y[0] = 1.0
    """).strip()
    + "\n",
    file="test.tile",
)


def test_found_is_what_a_walk_finds_in_its_order():
    for classes in ((Var,), (Store,), (Load, Binary), (Statement,), (Expr,), (Buffer,), (Load | Store,)):
        wanted = classes if len(classes) > 1 else classes[0]
        expected = [node for node in walk(PROGRAM.body) if isinstance(node, wanted)]
        assert list(find(PROGRAM.body, *classes)) == expected
        assert holds(PROGRAM.body, *classes) == bool(expected)
    assert not holds(next(find(PROGRAM.body, Const)), Var)


def test_a_rewriter_sees_only_what_holds_something_for_it():
    met = []

    class Literals(Rewriter):
        def visit_Const(self, node):
            met.append(node)
            return const(node.value, node.dtype) if node.dtype.is_float else node

        def visit_Load(self, node):
            return node

    rewriter = Literals()
    changed = rewriter(PROGRAM.body)
    assert met == [
        node for node in find(PROGRAM.body, Const) if not any(node in walk(load) for load in find(PROGRAM.body, Load))
    ]
    assert changed is not PROGRAM.body
    statement = next(node for node in find(PROGRAM.body, Store) if not holds(node, Load))
    assert next(node for node in find(changed, Store) if not holds(node, Load)) is not statement


def test_names_are_known_where_only_what_follows_is_visited():
    bounds = []

    class Stores(ScopedRewriter):
        def visit_Store(self, node):
            bounds.append(self.analyzer.bounds(node.indices[0]))
            return node

    body = PROGRAM.body
    assert Stores(PROGRAM)(body) is body
    assert bounds == [(0, 63), (0, 0)]
