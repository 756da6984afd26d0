"""What matrix functions do to the registers of the lanes that execute them together, for the interpreter."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import numpy as np

from tilewright.interpreter.collectives import read_each, whole_warps, write_each
from tilewright.interpreter.evaluate import SPECIAL_CALLS, Evaluator
from tilewright.ir import ALL, Call, DType, Region, declare_product
from tilewright.layout import REGISTER, THREAD, Layout
from tilewright.machine.instructions import MatrixInstruction
from tilewright.ops import integer_product, round_float, wrap

_PRODUCTS: dict[tuple[str, DType, DType, DType], MatrixInstruction] = {}
"""Instructions by function and types of their operands."""


def register_products(instructions: Iterable[MatrixInstruction]) -> None:
    """Give the functions of dense matrix instructions a meaning, and make them known to the IR."""
    _register((one for one in instructions if not one.asynchronous and not one.sparse), 3, _multiply)


def register_sparse(instructions: Iterable[MatrixInstruction], meaning: Callable[[Evaluator, Call], int]) -> None:
    """The same of sparse ones, by a meaning of the machine's own: what places elements is a fourth operand."""
    _register(instructions, 4, meaning)


def _register(instructions: Iterable[MatrixInstruction], arity: int, meaning: Callable[[Evaluator, Call], int]) -> None:
    for one in instructions:
        known = _PRODUCTS.setdefault((one.function, one.a, one.b, one.accumulator), one)
        if _places(known) != _places(one):
            raise ValueError(f"{one.function} of {one.a} and {one.b} is already another machine's, with other places")
        declare_product(one.function, arity)
        SPECIAL_CALLS.setdefault(one.function, meaning)


def _places(one: MatrixInstruction) -> tuple[object, ...]:
    """Where the operands of an instruction lie."""
    return one.threads, one.k, one.a_fragment, one.b_fragment, one.d_fragment


def instruction_of(state: Evaluator, node: Call, a: Region, b: Region, d: Region) -> MatrixInstruction:
    """The instruction that a function of these operands is, in whole warps."""
    found = next(
        _PRODUCTS[known]
        for as_floats in (lambda dtype: dtype, _other_float)
        if (known := (node.function, as_floats(a.dtype), as_floats(b.dtype), d.dtype)) in _PRODUCTS
    )
    whole_warps(state, node.function, found.threads)
    return found


@functools.cache
def _coordinates(layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of what each thread holds in each register."""
    threads, registers = np.indices((layout.extent(THREAD), layout.extent(REGISTER)))
    places = {THREAD: threads, REGISTER: registers}
    rows, columns = layout.coordinates(**{place: places[place] for place in layout.places})
    return rows, columns


def assemble(registers: np.ndarray, layout: Layout) -> np.ndarray:
    """The tile of each warp from its threads' registers."""
    warps = registers.reshape(-1, layout.extent(THREAD), layout.extent(REGISTER))
    tiles = np.zeros((warps.shape[0], *layout.shape), registers.dtype)
    rows, columns = _coordinates(layout)
    tiles[:, rows, columns] = warps
    return tiles


def _multiply(state: Evaluator, node: Call) -> int:
    """``d += a @ b`` in every warp, each element rounded once."""
    d, a, b = node.regions
    instruction = instruction_of(state, node, a, b, d)
    assert instruction.a_fragment is not None and instruction.b_fragment is not None
    left = assemble(_truncated(read_each(state, a), instruction.a), instruction.a_fragment)
    right = assemble(_truncated(read_each(state, b), instruction.b), instruction.b_fragment)
    accumulate(state, d, left, right, instruction.d_fragment)
    return 0


def accumulate(state: Evaluator, d: Region, left: np.ndarray, right: np.ndarray, layout: Layout) -> None:
    """``d += left @ right`` of every warp, in its threads' registers."""
    total, dtype = assemble(read_each(state, d), layout), d.dtype
    if dtype.is_integer:
        products = np.stack([integer_product(x, y) for x, y in zip(left, right, strict=True)])
        result = wrap(products + total, dtype)
    else:
        result = round_float(left.astype(np.float64) @ right.astype(np.float64) + total.astype(np.float64), dtype)
    rows, columns = _coordinates(layout)
    write_each(state, d, result[:, rows, columns].reshape(*state.lanes, -1))


def _other_float(dtype: DType) -> DType:
    """float32 for tfloat32 and the other way round: registers of one may be operands of an instruction of the other."""
    return {"float32": ALL["tfloat32"], "tfloat32": ALL["float32"]}.get(dtype.name, dtype)


def _truncated(values: np.ndarray, dtype: DType) -> np.ndarray:
    """What the matrix unit sees of an operand: of 32-bit floats, not the 13 lowest bits."""
    if dtype != ALL["tfloat32"]:
        return values
    return (np.ascontiguousarray(values).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
