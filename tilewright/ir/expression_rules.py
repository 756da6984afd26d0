"""What each kind of expression must satisfy; `verifier` asks these rules about every one it meets.

A rule yields one sentence a problem.  It looks at its node alone, not below it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import INT32, DType
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.stages import Stage

_INTEGER_ONLY = frozenset({"floordiv", "floormod", "shl", "shr"})
_BITS = frozenset({"and", "or", "xor"})
_ARITHMETIC = frozenset({"add", "sub", "mul", "min", "max"})


def expression_problems(node: ir.Expr | ir.Region, stage: Stage) -> Sequence[str]:
    """What is wrong with `node` itself at `stage`."""
    rule = _RULES.get(type(node))
    found = [f"unknown expression {type(node).__name__}"] if rule is None else [*rule(node, stage)]
    if not stage.vectors and node.dtype.lanes != 1 and isinstance(node, ir.Expr):
        return [f"a vector ({node.dtype}) has no place at stage {stage.name}", *found]
    return found


def _const(node: ir.Const, stage: Stage) -> Sequence[str]:
    if type(node.value) is int and node.dtype is INT32 and -(1 << 31) <= node.value < 1 << 31:
        return ()  # nearly all of them
    return tuple(_const_problems(node))


def _const_problems(node: ir.Const) -> Iterator[str]:
    of, value = node.dtype, node.value
    if of.lanes != 1:
        yield f"a constant of {of}: a vector is made with broadcast"
    elif of.kind == "bool":
        if value not in (True, False):
            yield f"{value!r} is not a bool"
    elif of.is_integer:
        if isinstance(value, float) or not of.minimum <= value <= of.maximum:
            yield f"{value!r} is not a value of {of}"
    elif isinstance(value, bool):
        yield f"{value!r} is not a value of {of}"


def _nothing(node: ir.Var, stage: Stage) -> Sequence[str]:
    return ()


def _binary(node: ir.Binary, stage: Stage) -> Sequence[str]:
    return _operation_problems(node.op, node.left.dtype, node.right.dtype, node.dtype)


@functools.cache
def _operation_problems(op: str, left: DType, right: DType, gives: DType) -> Sequence[str]:
    return tuple(_of_operation(op, left, right, gives))


def _of_operation(op: str, left: DType, right: DType, gives: DType) -> Iterator[str]:
    if op not in ir.BINARY:
        yield f"unknown operator {op!r}"
        return
    sign = ir.BINARY[op]
    if left != right:
        yield f"the operands of {sign} have dtypes {left} and {right}"
    elif gives != ir.result_dtype(op, left):
        yield f"{sign} of {left} gives {ir.result_dtype(op, left)}, not {gives}"
    if op in ir.LOGICAL and left.kind != "bool":
        yield f"{sign} of {left}: its operands must be bool"
    elif op in _INTEGER_ONLY and not left.is_integer:
        yield f"{sign} of {left}: its operands must be integers"
    elif op in _BITS and not (left.is_integer or left.kind == "bool"):
        yield f"{sign} of {left}: its operands must be integers or bool"
    elif op == "div" and not left.is_float:
        yield f"/ of {left}: its operands must be floats (integers have //)"
    elif op in _ARITHMETIC and left.kind == "bool":
        yield f"{sign} of bool"


def _unary(node: ir.Unary, stage: Stage) -> Iterator[str]:
    of = node.value.dtype
    fits = {"neg": of.kind != "bool", "not": of.kind == "bool", "invert": of.is_integer}
    if node.op not in fits:
        yield f"unknown operator {node.op!r}"
    elif not fits[node.op]:
        yield f"{node.op} of {of}"
    if node.dtype != of:
        yield f"{node.op} of {of} gives {of}, not {node.dtype}"


def _cast(node: ir.Cast, stage: Stage) -> Iterator[str]:
    if node.dtype.lanes != node.value.dtype.lanes:
        yield f"a cast from {node.value.dtype} to {node.dtype} changes the number of lanes"


def _reinterpret(node: ir.Reinterpret, stage: Stage) -> Iterator[str]:
    if _width(node.dtype) != _width(node.value.dtype):
        yield f"the bits of {node.value.dtype} cannot be read as {node.dtype}: the widths differ"


def _select(node: ir.Select, stage: Stage) -> Iterator[str]:
    condition = node.condition.dtype
    if condition.kind != "bool":
        yield f"the condition of a selection is {condition}, not bool"
    elif condition.lanes not in (1, node.dtype.lanes):
        yield f"the condition of a selection of {node.dtype} has {condition.lanes} lanes"
    if not node.then.dtype == node.otherwise.dtype == node.dtype:
        yield f"a selection of {node.dtype} has branches {node.then.dtype} and {node.otherwise.dtype}"


def _call(node: ir.Call, stage: Stage) -> Iterator[str]:
    record = INTRINSICS.get(node.function)
    if record is None:
        yield f"no function {node.function!r}"
        return
    if record.arity is not None and len(node.arguments) != record.arity:
        yield f"{node.function} takes {counted(record.arity, 'argument')}, not {len(node.arguments)}"
    if record.floats_only:
        for argument in node.arguments:
            if not isinstance(argument, ir.Expr) or not argument.dtype.is_float:
                given = argument.dtype if isinstance(argument, (ir.Expr, ir.Region)) else "a text"
                yield f"{node.function} of {given}: its arguments must be floats"


def _load(node: ir.Load, stage: Stage) -> Iterator[str]:
    if node.dtype.scalar != node.buffer.dtype.scalar:
        yield f"a load from {node.buffer.name} ({node.buffer.dtype}) cannot give {node.dtype}"
    yield from index_problems(node.buffer, node.indices, stage)


def _broadcast(node: ir.Broadcast, stage: Stage) -> Iterator[str]:
    if node.value.dtype.lanes != 1 or node.value.dtype != node.dtype.scalar:
        yield f"a broadcast of {node.value.dtype} cannot give {node.dtype}"


def _tensor_map(node: ir.TensorMap, stage: Stage) -> Iterator[str]:
    if node.tensor.scope != "global":
        yield f"a tensor map describes {node.tensor.name}, which is {node.tensor.scope}, not global"
    if len(node.box) != node.tensor.rank:
        yield f"{node.tensor.name} has {counted(node.tensor.rank, 'dimension')}, but the box of its map {len(node.box)}"


def _region(node: ir.Region, stage: Stage) -> Iterator[str]:
    buffer = node.buffer
    if stage.flat and len(node.starts) == len(node.extents) == 1:
        yield from _integers(buffer, node.starts)
        return
    if not len(node.starts) == len(node.extents) == buffer.rank:
        yield f"{buffer.name} has {counted(buffer.rank, 'dimension')}, but a region of it has {len(node.starts)}"
        return
    yield from _integers(buffer, node.starts)
    for dimension, (start, extent) in enumerate(zip(node.starts, node.extents, strict=True)):
        yield from extent_problems(extent, f"an extent of a region of {buffer.name}")
        if stage.by_author:
            yield from _range_problems(buffer, dimension, start, extent)


def index_problems(buffer: ir.Buffer, indices: Sequence[ir.Expr], stage: Stage) -> Sequence[str]:
    """What is wrong with an access to one element (or vector) of `buffer`."""
    flat = stage.flat and buffer.scope != "scalar"
    if flat and len(indices) != 1:
        return [f"{buffer.name} is accessed with {counted(len(indices), 'index')}; at stage {stage.name} it takes one"]
    rank = len(buffer.shape)
    if not flat and len(indices) != rank:
        dimensions, given = counted(rank, "dimension"), counted(len(indices), "index")
        return [f"{buffer.name} has {dimensions}, but is accessed with {given}"]
    found = _integers(buffer, indices)
    if stage.by_author and len(indices) == rank:
        for dimension, index in enumerate(indices):
            found += _range_problems(buffer, dimension, index, 1)
    return found


def _integers(buffer: ir.Buffer, indices: Sequence[ir.Expr]) -> list[str]:
    wrong = [index.dtype for index in indices if not index.dtype.is_integer or index.dtype.lanes != 1]
    return [f"an index of {buffer.name} is {of}, not an integer" for of in wrong]


def _range_problems(buffer: ir.Buffer, dimension: int, start: ir.Expr, extent: ir.Extent) -> Iterator[str]:
    """Accesses that an author wrote out of bounds; a global buffer may be read and written beyond its end."""
    size = buffer.shape[dimension]
    if buffer.scope == "global" or not isinstance(start, ir.Const) or not isinstance(size, int):
        return
    last = start.value + (extent if isinstance(extent, int) else 1) - 1
    if start.value < 0 or last >= size:
        reached = start.value if start.value < 0 else last
        yield f"index {reached} is out of bounds of dimension {dimension} of {buffer.name}, which has {size} elements"


def extent_problems(extent: ir.Extent, what: str) -> Iterator[str]:
    """What is wrong with a size: it must be a number from zero up, or an integer expression."""
    if isinstance(extent, ir.Expr):
        if not extent.dtype.is_integer or extent.dtype.lanes != 1:
            yield f"{what} is {extent.dtype}, not an integer"
    elif isinstance(extent, bool) or not isinstance(extent, int) or extent < 0:
        yield f"{what} is {extent!r}, not a size"


def counted(number: int, noun: str) -> str:
    """``1 index``, ``2 indices``."""
    plural = "indices" if noun == "index" else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def _width(of: DType) -> int:
    return of.bits * of.lanes


_RULES: dict[type, Callable[[Any, Stage], Iterable[str]]] = {
    ir.Const: _const, ir.Var: _nothing, ir.Binary: _binary, ir.Unary: _unary, ir.Cast: _cast,
    ir.Reinterpret: _reinterpret, ir.Select: _select, ir.Call: _call, ir.Load: _load, ir.Broadcast: _broadcast,
    ir.TensorMap: _tensor_map, ir.Region: _region,
}  # fmt: skip
