"""What a program does: bytes of its tensors, products of tiles, other operations; and the time that a machine's
roofline allows for it.

Counted on the program as its author wrote it, before any pass: tiles count whole, tensors once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.ir import DType, children, evaluate, find
from tilewright.ir import nodes as ir
from tilewright.machine.arch import Arch
from tilewright.ops import Product, Reduce, Scan

LOOKED_AT = 64
"""Iterations of a loop that are counted one by one; of more, so many at even distances."""


@dataclass(slots=True)
class Work:
    """Work of a call.

    Attributes
    ----------
    products : multiplications with sums of tiles, by the types of both operands.
    operations : others, of elements.
    """

    products: Counter[tuple[DType, DType]] = field(default_factory=Counter)
    operations: float = 0.0

    def add(self, other: Work, times: float = 1.0) -> None:
        """Count `other` so many times, too."""
        for types, count in other.products.items():
            self.products[types] += count * times  # type: ignore[assignment]
        self.operations += other.operations * times


def said(function: ir.Function, arch: Arch, sizes: Mapping[str, int]) -> list[str]:
    """What `Kernel.explain` says of the work of a call; `sizes` are those that the program does not know.

    Where some are left out it says which.
    """
    if arch.rates is None:
        return []
    values = {var: sizes[var.name] for var in unknown(function) if var.name in sizes}
    missing = [var.name for var in unknown(function) if var not in values]
    if missing:
        asked = ", ".join(f"{name}=..." for name in missing)
        return [f"bytes, operations and the time that they take at least: explain({asked})"]
    bytes_, work = tensor_bytes(function, values), count(function, values)
    parts = [f"{_short(2 * number)} operations of {a} by {b}" for (a, b), number in work.products.items()]
    lanes = f"{_short(work.operations)} of elements"
    least, by = allowed(arch, bytes_, work)
    rates = arch.rates
    roof = f"{arch.cores} cores at {rates.cycles / 1e9:.2f} GHz, {rates.bytes / 1e9:.0f} GB/s"
    return [
        f"a call's tensors have {_short(bytes_)}B; its operations are {', '.join([*parts, lanes])}",
        f"{arch.name} ({roof}) takes {least * 1e3:.3g} ms for them at least, by its {by}",
    ]


def unknown(function: ir.Function) -> list[ir.Var]:
    """Sizes that calls bring: of tensors, and whole numbers that are passed."""
    of_shapes = [v for p in function.params if isinstance(p, ir.Buffer) for e in p.shape for v in _variables(e)]
    passed = [p for p in function.params if isinstance(p, ir.Var) and p.dtype.is_integer]
    used = {var for kernel in find(function.body, ir.Kernel) for var in _controls(kernel)}
    return list(dict.fromkeys([*of_shapes, *(var for var in passed if var in used)]))


def tensor_bytes(function: ir.Function, values: Mapping[ir.Var, int]) -> int:
    """Bytes of all tensors that the program mentions."""
    used = set(find(function.body, ir.Buffer))
    given = [p for p in function.params if isinstance(p, ir.Buffer) and p in used]
    return sum(one.dtype.nbytes(math.prod(evaluate(extent, values) for extent in one.shape)) for one in given)


def allowed(arch: Arch, bytes_: float, work: Work) -> tuple[float, str]:
    """The least time in seconds, and what sets it."""
    rates = arch.rates
    assert rates is not None
    a_second = arch.cores * rates.cycles
    matrices, lanes = 0.0, work.operations / (rates.lanes * a_second)
    for (a, b), number in work.products.items():
        rate = arch.product_rate(a, b)
        matrices += 2 * number / (rate * a_second) if rate else 0.0
        lanes += 0.0 if rate else number / (rates.lanes * a_second)
    kinds = {"memory": bytes_ / rates.bytes, "matrix instructions": matrices, "lanes": lanes}
    if rates.shared_units:
        kinds = {"memory": kinds["memory"], "lanes, which multiply matrices too": matrices + lanes}
    by = max(kinds, key=lambda kind: kinds[kind])
    return kinds[by], by


# Counting -----------------------------------------------------------------------------------------


def count(function: ir.Function, values: Mapping[ir.Var, int]) -> Work:
    """The work of one call."""
    return _count(function.body, dict(values), 1)


def _count(node: object, values: dict[ir.Var, int], threads: int) -> Work:
    """Work of a statement; `threads` execute it, each for itself where it is no work on tiles."""
    made = Work()
    if isinstance(node, ir.Kernel):
        for var in (*node.block_vars, *node.thread_vars):
            values.setdefault(var, 0)
        ranges = [(var, range(_known(extent, values))) for var, extent in zip(node.block_vars, node.grid, strict=True)]
        return _repeated(ranges, node.body, values, node.num_threads)
    if isinstance(node, (ir.For, ir.Pipelined)):
        step = _known(node.step, values) if isinstance(node, ir.For) else 1
        numbers = range(_known(node.start, values), _known(node.stop, values), step or 1)
        return _repeated([(node.var, numbers)], node.body, values, threads)
    if isinstance(node, ir.Parallel):
        inner = _count(node.body, values, 1)
        made.add(inner, math.prod(_known(extent, values) for extent in node.extents))
        return made
    if isinstance(node, ir.If):
        try:
            holds = bool(evaluate(node.condition, values))
        except (KeyError, ZeroDivisionError):
            holds = True  # what depends on numbers is counted
        branch = node.then if holds else node.otherwise
        return made if branch is None else _count(branch, values, threads)
    if isinstance(node, ir.Let):
        try:
            values[node.var] = evaluate(node.value, values)
        except (KeyError, ZeroDivisionError):
            values.pop(node.var, None)
        made.operations = threads * _operations(node.value)
        return made
    if isinstance(node, ir.Store):
        made.operations = threads * _operations(node.value)
        return made
    if isinstance(node, ir.Statement):
        _count_tiles(node, made)
        for child in children(node):
            if isinstance(child, ir.Statement):
                made.add(_count(child, values, threads))
    return made


def _count_tiles(node: ir.Statement, made: Work) -> None:
    """An operator on whole tiles."""
    if isinstance(node, Product):
        m, n = _last(node.c)
        rows, columns = _last(node.b)
        k = columns if node.transpose_b else rows
        made.products[node.a.dtype, node.b.dtype] += m * n * k
    elif isinstance(node, (Reduce, Scan)):
        made.operations += math.prod(_size(extent) for extent in node.source.extents)


def _repeated(ranges: list[tuple[ir.Var, range]], body: ir.Statement, values: dict[ir.Var, int], threads: int) -> Work:
    """Work of a body for all values of its variables; those that decide nothing in it are not gone through."""
    made = Work()
    if not ranges:
        made.add(_count(body, dict(values), threads))
        return made
    (var, numbers), *rest = ranges
    if not numbers:
        return made
    decides = var in _controls(body)
    distance = max(len(numbers) / LOOKED_AT, 1.0) if decides else float(len(numbers))
    looked_at = max(round(len(numbers) / distance), 1)
    for iteration in range(looked_at):
        chosen = numbers[int((iteration + 0.5) * len(numbers) / looked_at)]
        made.add(_repeated(rest, body, {**values, var: chosen}, threads), len(numbers) / looked_at)
    return made


def _controls(node: ir.Statement) -> set[ir.Var]:
    """Variables that decide how often something below runs; conditions of single elements do not."""
    found: set[ir.Var] = set()
    ends: list[ir.Extent] = [end for loop in find(node, ir.For, ir.Pipelined) for end in (loop.start, loop.stop)]
    ends += [extent for kernel in find(node, ir.Kernel) for extent in kernel.grid]
    found.update(v for end in ends for v in _variables(end))
    inside = {id(part) for parallel in find(node, ir.Parallel) for part in find(parallel, ir.If)}
    for one in find(node, ir.If):
        if id(one) not in inside:
            found.update(find(one.condition, ir.Var))
    named = {one.var: one.value for one in find(node, ir.Let)}
    waiting = [var for var in found if var in named]
    while waiting:
        below = set(find(named[waiting.pop()], ir.Var)) - found
        found |= below
        waiting += [var for var in below if var in named]
    return found


def _variables(extent: ir.Extent) -> list[ir.Var]:
    return [] if isinstance(extent, int) else list(find(extent, ir.Var))


def _known(extent: ir.Extent, values: Mapping[ir.Var, int]) -> int:
    """The value of an extent, 1 where it depends on numbers in memory."""
    try:
        return evaluate(extent, values)
    except (KeyError, ZeroDivisionError):
        return 1


def _size(extent: ir.Extent) -> int:
    return _known(extent, {})


def _last(region: ir.Region) -> tuple[int, int]:
    """The two last extents of a tile."""
    rows, columns = (_size(extent) for extent in region.extents[-2:])
    return rows, columns


def _operations(value: object) -> int:
    """Operations on floats in an expression."""
    return sum(1 for one in find(value, ir.Binary, ir.Unary, ir.Cast, ir.Select, ir.Call) if one.dtype.is_float)


def _short(number: float) -> str:
    """A number with three digits and the letter of its thousands."""
    for letter, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("K", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.0f} "
