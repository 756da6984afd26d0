"""One matrix instruction at a time, on arrays that each thread has of its own: what programs write that place the
elements of a product themselves.

Threads of a warp do them together.  Where an element of a tile is found, by thread and place, is PTX's rule
(`a_place`, `b_place`, `result_place`).
"""

from __future__ import annotations

import re
from typing import Any

from tilewright import ops
from tilewright.ir import BOOL, INT32, UINT8, UINT32, Call, Const, DType, Evaluate, Expr, Region, Var, const, dtypes
from tilewright.ir.intrinsics import declare_product
from tilewright.language.branches import is_symbolic
from tilewright.language.buffers import BufferProxy, RegionProxy, region_of, row
from tilewright.language.choices import machine
from tilewright.language.external import access_ptr
from tilewright.language.memory import alloc_shared, view
from tilewright.language.mistakes import NumberExpected, TileExpected
from tilewright.language.proxies import Element, Scalar, Value, as_expr, condition, constant_that, describe, known_value
from tilewright.language.recording import in_kernel, statement_here, word
from tilewright.language.tile_ops import GemmWarpPolicy, choice, record_tiles, transpose
from tilewright.machine import MatrixInstruction
from tilewright.ops.base import element, matrix_shape, parallel, store_element

SHORT_NAMES = {
    "fp16": "float16", "f16": "float16", "bf16": "bfloat16", "fp32": "float32", "f32": "float32", "tf32": "tfloat32",
    "fp64": "float64", "f64": "float64", "s8": "int8", "u8": "uint8", "s32": "int32", "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
}  # fmt: skip
"""Types as names of instructions spell them."""


def registers(value: object, index: object, count: int, what: str) -> Region:
    """So many neighbours of a thread's own array, from an index on."""
    place = as_expr(index, INT32)
    if isinstance(value, (Element, RegionProxy)):
        region = access_ptr(value).region
        value, place = BufferProxy(region.buffer, value.frame), region.starts[-1] + place
    if not isinstance(value, BufferProxy) or value.buffer.scope != "local":
        raise TileExpected(what, describe(value), "an array of T.alloc_local")
    buffer = value.buffer
    if buffer.rank != 1:
        raise TileExpected(what, f"an array of {buffer.rank} dimensions", "one of one dimension")
    if isinstance(place, Const) and place.value + count > buffer.static_shape[0]:
        raise TileExpected(
            what, f"an array of {buffer.static_shape[0]} elements", f"{count} elements from index {place.value} on"
        )
    return Region(buffer, (place,), (count,))


def _as_elements(named: object, value: object, index: object, count: int, what: str) -> Region:
    """`registers`, where an array of 32-bit integers has several elements in each."""
    element = dtypes.dtype(SHORT_NAMES.get(str(named), named))
    found = registers(value, index, 0, what)
    if found.dtype not in (INT32, UINT32) or element.bits >= 32:
        return registers(value, index, count, what)
    per = 32 // element.bits
    seen = view(BufferProxy(found.buffer), (found.buffer.static_shape[0] * per,), element)
    return registers(seen, Scalar(found.starts[0] * per), count, what)


def _element_type(given: object, held: DType, what: str) -> None:
    """Refuse a type that is not that of the elements."""
    named = dtypes.dtype(SHORT_NAMES.get(str(given), given))
    if named != held and (named.name, held.name) != ("tfloat32", "float32"):
        raise NumberExpected(what, f"the type of its elements, {held}", str(named))


@word
def ptx_mma(
    dtype: object,
    shape: object,
    A_layout: object,
    B_layout: object,
    A_dtype: object,
    B_dtype: object,
    C_dtype: object,
    multiplicand_a: object,
    a_index: object,
    multiplicand_b: object,
    b_index: object,
    accumulator: object,
    c_index: object,
    saturate: object = False,
    operator: object = None,
) -> None:
    """One matrix instruction: a warp's threads add the product of the tiles that their arrays make up.

    `T.gemm` chooses instructions by itself; this is for programs that hold operands in arrays of threads.  A tile of
    16 rows and ``k`` columns has element ``(g + 8 (r % 2), E t + e + 4 E (r // 2))`` in register r of thread
    ``4 g + t`` of the warp, where a register has E elements, numbered e.

    Parameters
    ----------
    dtype : of the result.
    shape : of the tiles, such as ``"m16n8k16"``.
    A_layout, B_layout : ``"row"`` and ``"col"``.
    A_dtype, B_dtype, C_dtype : of the elements, such as ``"fp16"`` or ``"float16"``.
    multiplicand_a, multiplicand_b, accumulator : arrays of `alloc_local`, of one dimension.
    a_index, b_index, c_index : where the tile begins in each.
    saturate : must be False: sums of integers wrap around.
    operator : must be left out.

    Examples
    --------
    >>> a = T.alloc_local((8,), "float16")
    >>> b = T.alloc_local((4,), "float16")
    >>> c = T.alloc_local((4,), "float32")
    >>> for i in T.serial(8):
    ...     a[i] = 1
    ...     b[i // 2] = 1
    ...     c[i // 2] = 0
    >>> T.ptx_mma("float32", "m16n8k16", "row", "col", "fp16", "fp16", "fp32", a, 0, b, 0, c, 0)
    """
    what = "T.ptx_mma"
    found = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", str(shape))
    if found is None:
        raise NumberExpected(f"the shape of {what}", "one such as 'm16n8k16'", repr(shape))
    if (A_layout, B_layout) != ("row", "col"):
        raise NumberExpected(f"the layouts of {what}", "'row' and 'col'", f"{A_layout!r} and {B_layout!r}")
    if operator is not None or isinstance(known_value(saturate), Scalar) or known_value(saturate):
        raise NumberExpected(what, "saturate=False, and no operator", "others")
    m, n, k = map(int, found.groups())
    parts = []
    for name, given, index, count, named in (
        ("accumulator", accumulator, c_index, m * n, C_dtype),
        ("multiplicand_a", multiplicand_a, a_index, m * k, A_dtype),
        ("multiplicand_b", multiplicand_b, b_index, n * k, B_dtype),
    ):
        part = _as_elements(named, given, index, count // 32, f"{name} of {what}")
        _element_type(named, part.dtype, f"the type of {name}")
        parts.append(part)
    function = _function(f"mma_{shape}", parts[1].dtype)
    declare_product(function)
    call = Call(BOOL, function, tuple(parts))
    in_kernel(what).append(Evaluate(call, span=statement_here()))


def _function(name: str, operand: DType) -> str:
    """The machine's function; floats of eight bits go through halves where that is how it multiplies them."""
    arch, through = machine(), f"{name}_through_half"
    if arch is None:
        return through if operand.bits == 8 and operand.is_float else name
    known = {one.function for one in arch.products(MatrixInstruction) if one.a == operand}
    return through if name not in known and through in known else name


def load_matrices(transposed: bool, count: int, row: Region, place: Region) -> None:
    """Matrices of 8 rows of 16 bytes, from the row that each thread names into neighbours of its array."""
    name = "load_matrix_trans" if transposed else "load_matrix"
    call = Call(BOOL, name, (place, row, const(count)))
    in_kernel("T.ptx_ldmatrix").append(Evaluate(call, span=statement_here()))


@word
def ptx_ldmatrix(trans: object, num: object, src_access_ptr: object, dst_access_ptr: object, *older: Any) -> None:
    """Load 1, 2 or 4 matrices of 8 rows of 16 bytes each: a warp's threads get 4 bytes of each.

    Parameters
    ----------
    trans : whether each matrix is transposed, as one of 8 x 8 elements of 16 bits.
    num : how many matrices there are.
    src_access_ptr : the row that this thread names, a place in a shared tile; the first matrix is that of threads 0 to
        7.
    dst_access_ptr : the thread's array of `alloc_local`, or an element of it.
    older : older programs write ``(dtype, trans, num, ".b16", destination, offset, source, offset)``.

    Examples
    --------
    >>> wide = T.alloc_shared((64, 64), "float16")
    >>> own = T.alloc_local((8,), "float16")
    >>> T.copy(A, wide)
    >>> T.ptx_ldmatrix(False, 4, T.access_ptr(wide[tx % 16, 8 * (tx % 32 // 16)], "r"), own)
    """
    what = "T.ptx_ldmatrix"
    offset: object = 0
    if older:
        if len(older) != 4:
            raise NumberExpected(what, "4 arguments, or 8", f"{4 + len(older)} arguments")
        trans, num, (dst_access_ptr, offset, src_access_ptr, moved) = num, src_access_ptr, older
        if isinstance(src_access_ptr, BufferProxy):
            src_access_ptr = src_access_ptr.access_ptr("r", offset=moved)
    first = access_ptr(src_access_ptr).region
    count = constant_that(lambda number: number in (1, 2, 4), num, f"num of {what}", "1, 2 or 4")
    if first.buffer.scope != "shared" or first.dtype.bits not in (8, 16, 32):
        given = f"{first.buffer.scope} memory of {first.dtype}"
        raise TileExpected(f"the source of {what}", given, "a place in a shared tile, of 8, 16 or 32 bits an element")
    each = 128 // first.dtype.bits
    here = row(first, each)
    place = registers(dst_access_ptr, offset, count * each // 4, f"the destination of {what}")
    load_matrices(trans is True or trans == 1, count, here, place)


# Where elements lie -------------------------------------------------------------------------------


def a_place(bits: int, lane: Value, local: Value) -> tuple[Value, Value]:  # numbers, or the program's
    """Row and column, within a tile of 16 rows, of an element that a thread has; of the right operand column and row,
    of 8 columns a register's half (`b_place`)."""
    packed = max(1, 32 // bits)
    register, within = local // packed, local % packed
    return lane // 4 + 8 * (register % 2), lane % 4 * packed + within + 4 * packed * (register // 2)


def b_place(bits: int, depth: int, lane: Value, local: Value) -> tuple[Value, Value]:  # numbers, or the program's
    """Column and row of an element of the right operand, of tiles of 8 columns one behind the other."""
    packed = max(1, 32 // bits)
    held = depth * 8 // 32
    within = local % held
    return lane // 4 + 8 * (local // held), lane % 4 * packed + within % packed + 4 * packed * (within // packed)


def result_place(lane: Value, local: Value) -> tuple[Value, Value]:  # numbers, or the program's
    """Row and column of a sum, of tiles of 16 rows and 8 columns side by side."""
    return lane // 4 + 8 * (local % 4 // 2), lane % 4 * 2 + local % 2 + 8 * (local // 4)


# Sparse products of tiles -------------------------------------------------------------------------


@word
def gemm_sp(
    A_sparse: object,
    E: object,
    B: object,
    C: object,
    transpose_A: bool = False,
    transpose_E: bool = False,
    transpose_B: bool = False,
    policy: object = GemmWarpPolicy.Square,
    clear_accum: object = False,
    k_pack: int = 1,
    wg_wait: int = 0,
    annotations: object = None,
    order: str = "rows",
) -> None:
    """`C += A @ B` with 2:4 structured sparsity: two of every four adjacent elements along the rows of A are zero, and
    omitted.

    Parameters
    ----------
    transpose_B : as that of `gemm`.
    A_sparse : ``(M, K / 2)``, what was kept of A; shared.  ``(K / 2, M)`` with `transpose_A`.
    E : where it stood: of uint8 ``(M, K / 8)``, as `formats.sparse.compress` gives both; of a wider integer the same
        bytes as fewer columns. Float32 with one byte for four columns keeps one of every two neighbours.
    B : ``(K, N)``, or ``(N, K)`` with `transpose_B`.
    C, policy, clear_accum : as those of `gemm`.
    transpose_A, transpose_E : the tile is given with its dimensions swapped, and transposed into another one first.
    k_pack, wg_wait, annotations : accepted for TileLang's sake; the compiler decides.
    order : of E: ``"rows"``, or ``"lanes"`` as `formats.sparse.in_lanes` makes it, which a warp reads in one access.

    Examples
    --------
    >>> values, B2 = T.alloc_shared((64, 32), "float16"), T.alloc_shared((64, 64), "float16")
    >>> places = T.alloc_shared((64, 8), "uint8")
    >>> T.fill(values, 1)
    >>> T.fill(B2, 1)
    >>> T.fill(places, 0x44)
    >>> T.clear(tile)
    >>> T.gemm_sp(values, places, B2, tile)
    """
    in_kernel("T.gemm_sp")
    names = ("A_sparse", "E", "B", "C")
    kept = _transposed(A_sparse) if transpose_A else A_sparse
    a, e, b, c = (
        region_of(tile, f"operand {name} of T.gemm_sp")
        for name, tile in zip(names, (kept, _bytes(E, bool(transpose_E)), B, C))
    )
    drop = condition(clear_accum) if is_symbolic(clear_accum) else bool(clear_accum)
    chosen = choice(getattr(policy, "value", policy), tuple(p.value for p in GemmWarpPolicy), "policy of T.gemm_sp")
    by = choice(order, ops.ORDERS, "order of T.gemm_sp")
    operator = ops.SparseGemm(a, e, b, c, bool(transpose_B), drop, chosen, by, span=statement_here())
    record_tiles(operator, "T.gemm_sp", A_sparse=a, E=e, B=b, C=c)


def _transposed(tile: object) -> BufferProxy:
    """A shared tile with the dimensions of another one swapped."""
    region = region_of(tile, "operand A_sparse of T.gemm_sp")
    rows, columns = matrix_shape(region)
    made: BufferProxy = alloc_shared((columns, rows), region.dtype)
    transpose(tile, made)
    return made


def _bytes(tile: object, swapped: bool) -> Any:
    """Metadata as bytes, a row of them for each row of A."""
    region = region_of(tile, "operand E of T.gemm_sp")
    size = region.dtype.bits // 8
    if region.dtype == UINT8 and not swapped:
        return tile
    if not region.dtype.is_integer or size == 0 or not isinstance(tile, BufferProxy):
        raise NumberExpected("operand E of T.gemm_sp", "a whole tile of 8, 16 or 32-bit integers", describe(tile))
    rows, columns = matrix_shape(region)
    seen: BufferProxy = view(tile, (rows, columns * size), UINT8)
    if not swapped:
        return seen
    made: BufferProxy = alloc_shared((columns, rows * size), UINT8)
    source, destination = region_of(seen, "E"), region_of(made, "E")

    def byte(row: Var, place: Var) -> list[Any]:
        word, inside = place // size, place % size
        column: Expr = row * size + inside
        return [store_element(destination, (row, place), element(source, (word, column)))]

    in_kernel("T.gemm_sp").append(parallel((columns, rows * size), byte, span=statement_here()))
    return made
