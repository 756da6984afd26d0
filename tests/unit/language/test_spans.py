"""Every statement of a program has the author's place: his lines and columns."""

import sys
from pathlib import Path

import pytest

import tilewright.language as T
from tilewright.ir import nodes, walk


@pytest.mark.skipif(sys.version_info < (3, 11), reason="columns of instructions are recorded from 3.11 on")
def test_statements_that_share_a_line_have_their_own_spans() -> None:
    # fmt: off
    @T.prim_func
    def kernel(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            a = T.alloc_fragment((8,), "float32"); b = T.alloc_fragment((8,), "float32")  # noqa: E702
            for i in T.Parallel(8): a[i] = A[i]; b[i] = 1.0  # noqa: E701, E702
    # fmt: on
    found = {
        (type(node).__name__, node.span.column, node.span.end_column)
        for node in walk(kernel.function.body)
        if isinstance(node, (nodes.Allocate, nodes.Parallel, nodes.Store)) and node.span is not None
    }
    assert found == {
        ("Allocate", 12, 49), ("Allocate", 51, 88), ("Parallel", 12, 34), ("Store", 36, 47), ("Store", 49, 59),
    }  # fmt: skip


def test_spans_are_the_authors_statements() -> None:
    @T.macro
    def twice(tile):
        T.clear(tile)
        # fmt: off
        T.clear(
            tile,
        )
        # fmt: on

    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32"), n: T.int32):
        with T.Kernel(1):
            twice(A)
            for i in range(n):
                A[i] = 0.0
            if n > 3:
                A[0] = 1.0

    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    shown = []
    for node in walk(kernel.function.body):
        if isinstance(node, nodes.Statement) and not isinstance(node, nodes.Seq):
            assert node.span is not None and node.span.file == __file__
            shown.append((type(node).__name__, lines[node.span.line - 1][node.span.column : node.span.end_column]))
    assert shown == [
        ("Kernel", "with T.Kernel(1)"),
        ("Fill", "T.clear(tile)"),
        ("Fill", "T.clear("),
        ("For", "for i in range(n)"),
        ("Store", "A[i] = 0.0"),
        ("If", "if n > 3"),
        ("Store", "A[0] = 1.0"),
    ]
