"""Bank conflicts of a kernel, counted on its last program: which banks the lanes of every warp meet in each access."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from tilewright.interpreter.arithmetic import binary
from tilewright.ir import children, kernels, nodes
from tilewright.ir.nodes import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Region,
    Select,
    Seq,
    Store,
    Var,
)
from tilewright.layout.access import bank_conflicts

BANKS = 32
"""Of the shared memory of NVIDIA's GPUs."""

TURNS = 3
"""Of every loop, from its first: what a later one does differs by whole rows or slots."""


class _Counter:
    """Follows the threads of block 0 through a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        threads = np.arange(kernel.num_threads)
        self.values: dict[Var, Any] = {var: np.zeros_like(threads) for var in (*kernel.block_vars, *kernel.thread_vars)}
        self.values[kernel.thread_vars[0]] = threads
        self.active = np.ones(len(threads), bool)
        self.found: Counter[str] = Counter()
        self.extra: Counter[str] = Counter()
        self.where = ""

    def value(self, expr: Expr) -> Any:
        """The value in every thread; None where memory decides it."""
        if isinstance(expr, Const):
            return np.full(self.active.shape, expr.value)
        if isinstance(expr, Var):
            return self.values.get(expr)
        if isinstance(expr, Cast):
            return self.value(expr.value)
        if isinstance(expr, Binary):
            left, right = self.value(expr.left), self.value(expr.right)
            return None if left is None or right is None else binary(expr.op, left, right, expr.left.dtype)
        if isinstance(expr, Call) and expr.function == "warp_uniform" and isinstance(expr.arguments[0], Expr):
            return self.value(expr.arguments[0])
        if isinstance(expr, Select):
            parts = [self.value(part) for part in (expr.condition, expr.then, expr.otherwise)]
            return None if any(part is None for part in parts) else np.where(*parts)
        return None

    def statement(self, statement: Any) -> None:
        if isinstance(statement, Seq):
            for one in statement.statements:
                self.statement(one)
        elif isinstance(statement, For):
            start, stop, step = (self.value(end) for end in (statement.start, statement.stop, statement.step))
            first, by = (0 if end is None else int(end[0]) for end in (start, step))
            last = first + TURNS * max(by, 1) if stop is None else int(stop.max())
            for turn in range(first, min(last, first + TURNS * max(by, 1)), max(by, 1)):
                self.values[statement.var] = np.full(self.active.shape, turn)
                self.statement(statement.body)
        elif isinstance(statement, If):
            self.accesses(statement.condition, statement)
            holds, before = self.value(statement.condition), self.active
            for body, negated in ((statement.then, False), (statement.otherwise, True)):
                if body is not None:
                    self.active = before if holds is None else before & (holds.astype(bool) ^ negated)
                    self.statement(body)
            self.active = before
        elif isinstance(statement, nodes.While):
            self.statement(statement.body)
        else:
            for child in children(statement):
                self.accesses(child, statement)
            if isinstance(statement, Let):
                self.values[statement.var] = self.value(statement.value)
            elif isinstance(statement, Store) and statement.buffer.scope == "shared":
                self.note(statement.buffer, statement.indices, statement.value.dtype.lanes, statement)

    def accesses(self, node: Any, statement: Any) -> None:
        """The accesses of an expression."""
        if isinstance(node, Load) and node.buffer.scope == "shared":
            self.note(node.buffer, node.indices, node.dtype.lanes, statement)
        elif isinstance(node, Call):
            rows = node.function.startswith(("load_matrix", "store_matrix"))
            for part in node.arguments:
                if (
                    isinstance(part, Region)
                    and part.buffer.scope == "shared"
                    and (rows or "async_copy" in node.function)
                ):
                    bytes_ = 16 if rows else None
                    lanes = 8 * int(node.arguments[-1].value) if rows and isinstance(node.arguments[-1], Const) else 32
                    self.note(part.buffer, part.starts, part.extents[-1], statement, bytes_, lanes)
        if not isinstance(node, nodes.Buffer):
            for child in children(node):
                self.accesses(child, statement)

    def note(
        self, buffer: Any, indices: Any, count: Any, statement: Any, size: int | None = None, lanes: int = 32
    ) -> None:
        """Count an access of so many elements from an index on, warp by warp."""
        index = self.value(indices[0]) if indices else None
        if index is None or not isinstance(count, int):
            return
        size = size or max(1, count * buffer.dtype.bits // 8)
        addresses = index * buffer.dtype.bits // 8
        label = f"{buffer.name}, {statement.span.line if statement.span else '?'}: {size} bytes"
        for warp in range(0, len(addresses), 32):
            chosen = addresses[warp : warp + 32][self.active[warp : warp + 32]][:lanes]
            if len(chosen):
                self.found[label] += 1
                self.extra[label] += bank_conflicts(chosen, size, BANKS)


def shared_accesses(kernel: Any) -> tuple[Counter[str], Counter[str]]:
    """How often warps access shared memory, and how many passes more than needed they take: by buffer, line and size."""
    found, extra = Counter[str](), Counter[str]()
    for one in kernels(kernel.program.final):
        counter = _Counter(one)
        counter.statement(one.body)
        found += counter.found
        extra += counter.extra
    return found, extra
