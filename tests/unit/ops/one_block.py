"""Runs one operator in a kernel of one block: its operands are shared tiles, filled from arguments."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes  # noqa: F401  (registers the carriers)
import numpy as np

from tilewright.interpreter import interpret
from tilewright.ir import DType, dtypes
from tilewright.ir.nodes import (
    Allocate,
    Buffer,
    Expr,
    Function,
    Kernel,
    Statement,
    TileOperator,
    Var,
    const,
    seq,
    whole,
)
from tilewright.ops import Copy

INT32 = dtypes.INT32


def tile(name: str, shape: Sequence[int], dtype: str) -> Buffer:
    return Buffer(name, tuple(shape), dtypes.dtype(dtype), scope="shared")


def kernel(*body: Statement | None, threads: int = 32) -> Kernel:
    thread_vars = (Var(INT32, "tx"), Var(INT32, "ty"), Var(INT32, "tz"))
    return Kernel((Var(INT32, "bx"),), (1,), thread_vars, (threads, 1, 1), seq(*body))


def run_tiles(statement: Statement, tiles: dict[Buffer, np.ndarray | None], result: Buffer) -> np.ndarray:
    """What `result` holds after `statement`; each tile starts with its array (None: nothing written)."""
    params: list[Buffer] = []
    body: list[Statement] = []
    arrays: list[np.ndarray] = []
    for buffer, array in tiles.items():
        body.append(Allocate(buffer))
        if array is not None:
            source = Buffer(f"{buffer.name}_in", buffer.shape, buffer.dtype)
            params.append(source)
            arrays.append(dtypes.pack(array, buffer.dtype))
            body.append(Copy(whole(source), whole(buffer)))
    output = Buffer("output", result.shape, result.dtype)
    body += [statement, Copy(whole(result), whole(output))]
    function = Function("one_block", (*params, output), seq(kernel(*body)), outputs=(output,))
    (values,) = interpret(function, arrays)
    return dtypes.unpack(values, result.dtype, result.static_shape[-1])


def both_ways(
    operator: TileOperator, tiles: dict[Buffer, np.ndarray | None], result: Buffer
) -> tuple[np.ndarray, np.ndarray]:
    """The result by the operator's reference, and by its generic lowering."""
    assert list(operator.check()) == []
    return run_tiles(operator, tiles, result), run_tiles(operator.lower(), tiles, result)


def random_array(rng: np.random.Generator, shape: Sequence[int], dtype: DType | str) -> np.ndarray:
    """Random values of moderate size, in the carrier."""
    record = dtypes.dtype(dtype)
    if record.kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if record.is_integer:
        low, high = max(record.minimum, -(1 << 40)), min(record.maximum, 1 << 40)
        return rng.integers(low, high, shape, endpoint=True).astype(record.numpy)
    if record.name == "float8_e8m0fnu":
        return np.exp2(rng.integers(-3, 4, shape)).astype(record.numpy)
    return rng.standard_normal(shape).astype(np.float32).astype(record.numpy)


def same_bits(a: np.ndarray, b: np.ndarray) -> None:
    assert a.dtype == b.dtype and a.shape == b.shape
    width = f"uint{8 * a.dtype.itemsize}"
    np.testing.assert_array_equal(np.ascontiguousarray(a).view(width), np.ascontiguousarray(b).view(width))


def scalar(value: float, dtype: str = "float32") -> Expr:
    return const(value, dtypes.dtype(dtype))
