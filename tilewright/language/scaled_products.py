"""`T.fp8_scaled_matmul`: a product of 8-bit floats whose scales are applied to its sums.

It records what an author would write with `T.gemm`: products of runs of K into a sum of their own, which is scaled and
added to C. Hopper's matrix unit keeps about 14 bits of a sum of 8-bit products, so that a run has 128 columns at most
where nothing else is asked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NoReturn

from tilewright import ops
from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import ALL, FLOAT32, INT32, UINT8
from tilewright.language.buffers import region_of
from tilewright.language.memory import alloc_fragment, alloc_shared
from tilewright.language.mistakes import AuthorError
from tilewright.language.proxies import Scalar, as_expr, frame_of
from tilewright.language.recording import called, in_kernel, statement_here, word
from tilewright.language.tile_ops import record_tiles
from tilewright.ops.base import shape_text

OPERANDS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")

E8M0 = ALL["float8_e8m0fnu"]

POWERS = UINT8.name, E8M0.name
"""Types of scales that are powers of two."""

RUN = 128
"""Columns of K whose products the matrix unit adds up by itself."""

WHAT = "T.fp8_scaled_matmul"


class WrongOperandType(AuthorError, TypeError):
    """An operand of `T.fp8_scaled_matmul` of another type."""


class WrongOperandShape(AuthorError, ValueError):
    """Operands of `T.fp8_scaled_matmul` whose shapes do not go together."""


@called("BlockScaledLayout")
@dataclass(frozen=True, slots=True)
class BlockScaledLayout:
    """How scales of blocks are given: the format of one, and the columns of K that it serves."""

    scale_format: str
    scale_block_size: int

    @classmethod
    def e8m0_k32(cls) -> BlockScaledLayout:
        """Powers of two, as uint8 or float8_e8m0fnu, one for each 32 columns of K."""
        return cls("e8m0", 32)


@word
def e8m0_to_float(code: object) -> Scalar:
    """The float32 of a power of two in eight bits, uint8 or float8_e8m0fnu: byte 0 is 2**-127, byte 255 NaN.

    Parameters
    ----------
    code : a scalar of one of the two types.

    Examples
    --------
    >>> C[i, 0] = T.e8m0_to_float(T.cast(N[i], "uint8"))
    """
    operand = as_expr(code, what="what T.e8m0_to_float converts")
    if operand.dtype.name not in POWERS:
        raise WrongOperandType(
            f"T.e8m0_to_float takes uint8 or {E8M0}, not {operand.dtype}", hint="T.cast converts numbers"
        )
    return Scalar(_as_float(operand), frame_of(code))


def _as_float(code: ir.Expr) -> ir.Expr:
    number = code if code.dtype != UINT8 else ir.Reinterpret(E8M0, code)
    return ir.cast(number, FLOAT32)


@word
def fp8_scaled_matmul(
    A_fp8: object,
    A_scale: object,
    B_fp8: object,
    B_scale: object,
    C_out: object,
    *,
    transpose_B: bool = False,
    accum_dtype: object = "float32",
    exact: bool = False,
    fast: bool = False,
    target: object = None,
    scale_format: str | None = None,
    scale_block_size: int | None = None,
    block_scale_layout: BlockScaledLayout | None = None,
    a_scale_offset: object = None,
    b_scale_offset: object = None,
    c_row_offset: object = None,
    c_col_offset: object = None,
    simd_group_width: object = None,
    outputs_per_block: object = None,
) -> None:
    """``C_out += (A_fp8 * A_scale) @ (B_fp8 * B_scale)`` on tiles of 8-bit floats.

    Parameters
    ----------
    transpose_B : whether B lies as ``(N, K)``.
    A_fp8 : ``(M, K)``, `float8_e4m3fn`, `float8_e5m2` or their fnuz forms; a tile, or a region of a tensor.
    B_fp8 : ``(K, N)``, or ``(N, K)`` with `transpose_B`; its type may differ from A's.
    A_scale, B_scale : float32, float16, bfloat16 or float8_e8m0fnu: one element for all, one for each row of A (column
        of B), or ``(M, G)`` and ``(N, G)`` (``(N / b, G)`` for blocks of b columns): one for each of the G equal parts
        of K. Of e8m0 also ``(G,)``, shared by all rows; byte 0 is 2**-127 and byte 255 NaN.
    C_out : ``(M, N)``, float32, float16 or bfloat16.
    accum_dtype : must be float32; the interpreter and processors add up in float64.
    exact : convert the operands to float16 or bfloat16, which the matrix unit accumulates in float32.
    fast : accumulate over all of K in the matrix unit, without promotion to float32.
    target, simd_group_width, outputs_per_block : accepted; the kernel's own target decides.
    scale_format : ``"e8m0"``: scales are powers of two, uint8 ones too.
    scale_block_size : columns of K that a scale of a part serves; checked, and tells a line of G scales from one for
        each row or column where these are G too.
    block_scale_layout : both of these at once, such as ``T.BlockScaledLayout.e8m0_k32()``.
    a_scale_offset, b_scale_offset : the first row of A's, or column of B's, scales that is meant, where they are those
        of more.
    c_row_offset, c_col_offset : where in C the product begins, where C is larger.

    Raises
    ------
    WrongOperandType (a TypeError), WrongOperandShape (a ValueError) : with the operand and its shape.

    Notes
    -----
    C is added to, as by `T.gemm`: clear it before the loop over K.

    Examples
    --------
    >>> a, b = T.alloc_shared((64, 64), "float8_e4m3fn"), T.alloc_shared((64, 64), "float8_e4m3fn")
    >>> scale = T.alloc_shared((1,), "float32")
    >>> T.fill(a, 1)
    >>> T.fill(b, 1)
    >>> T.fill(scale, 0.5)
    >>> T.clear(tile)
    >>> T.fp8_scaled_matmul(a, scale, b, scale, tile)
    """
    in_kernel(WHAT)
    named = {"A_fp8": A_fp8, "A_scale": A_scale, "B_fp8": B_fp8, "B_scale": B_scale, "C_out": C_out}
    a, of_a, b, of_b, c = (region_of(value, f"{name} of {WHAT}") for name, value in named.items())
    if str(accum_dtype) != "float32":
        raise WrongOperandShape(f"accum_dtype must be float32, not {accum_dtype}", hint="leave accum_dtype out")
    if exact and fast:
        raise AuthorError("exact=True and fast=True ask for opposite sums", hint="leave one of them out")
    if block_scale_layout is not None:
        scale_format, scale_block_size = block_scale_layout.scale_format, block_scale_layout.scale_block_size
    if scale_format not in (None, "e8m0", "float32"):
        raise WrongOperandShape(f"scale_format is {scale_format!r}", hint="'e8m0', or leave it out")
    _check_types(a, of_a, b, of_b, c, scale_format == "e8m0")
    if c_row_offset is not None or c_col_offset is not None:
        lines = a.extents[-2], b.extents[-2 if transpose_B else -1]
        for axis, offset, size in ((-2, c_row_offset, lines[0]), (-1, c_col_offset, lines[1])):
            c = _part_of(c, axis, offset, size) if len(c.extents) > 1 else c
    M, N, K = _sizes(a, b, c, transpose_B)
    of_a, of_b = _from(of_a, a_scale_offset, M), _from(of_b, b_scale_offset, N)
    scales = _Scale(of_a, "A", M, K, "row", scale_block_size), _Scale(of_b, "B", N, K, "column", scale_block_size)
    for name, scale in (("A_scale", scales[0]), ("B_scale", scales[1])):
        in_blocks = scale.parts > 1 or scale.region.dtype in (E8M0, UINT8)
        if scale_block_size is not None and in_blocks and scale.run != scale_block_size:
            raise WrongOperandShape(
                f"{name} has a scale for each {scale.run} columns of K, but scale_block_size is {scale_block_size}",
                hint=f"{K // scale_block_size} scales a row are needed for K = {K}",
            )
    # Of e5m2 the least numbers are subnormal halves, which MI200's products take for zeros.
    wider = "float16" if min(a.dtype.least, b.dtype.least) >= 2.0**-14 else "bfloat16"
    left, right = (_tile(one, wider if exact else None) for one in (a, b))
    run = math.gcd(*(scale.run for scale in scales), K) if any(s.parts > 1 for s in scales) else K
    run = run if fast or exact else math.gcd(run, RUN) if run > RUN else run
    for first in range(0, K, run):
        part = alloc_fragment((M, N), "float32")
        runs = _run(left, -1, first, run), _run(right, -1 if transpose_B else -2, first, run)
        product = ops.Gemm(*runs, ir.whole(part.buffer), False, bool(transpose_B), True, span=statement_here())
        record_tiles(product, WHAT, A_fp8=runs[0], B_fp8=runs[1])
        _add(part.buffer, scales, first, c)


def _check_types(a: ir.Region, of_a: ir.Region, b: ir.Region, of_b: ir.Region, c: ir.Region, powers: bool) -> None:
    for name, operand in (("A_fp8", a), ("B_fp8", b)):
        if operand.dtype.name not in OPERANDS:
            raise WrongOperandType(
                f"{name} must be FP8, but {operand.buffer.name!r} is {operand.dtype}",
                hint=f"one of {', '.join(OPERANDS)}",
            )
    for name, scale in (("A_scale", of_a), ("B_scale", of_b)):
        if not scale.dtype.is_float and not (powers and scale.dtype == UINT8):
            raise WrongOperandType(
                f"{name} must be a floating-point tile, but {scale.buffer.name!r} is {scale.dtype}",
                hint="float32, float16, bfloat16 or float8_e8m0fnu; with scale_format='e8m0' also uint8",
            )
    if not c.dtype.is_float:
        raise WrongOperandType(f"C output must be float32, but {c.buffer.name!r} is {c.dtype}", hint="or a half type")


def _sizes(a: ir.Region, b: ir.Region, c: ir.Region, transpose_B: bool) -> tuple[int, int, int]:
    """M, N and K."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, region in (("A_fp8", a), ("B_fp8", b), ("C_out", c)):
        shape = tuple(extent for extent in region.extents[-2:] if isinstance(extent, int))
        if len(region.extents) < 2 or len(shape) < 2:
            raise WrongOperandShape(
                f"{name} must be at least 2D, of known extents, but {region.buffer.name!r} has shape "
                f"{shape_text(region)}",
                hint="pass a tile, or a slice of a tensor with constant extents",
            )
        shapes[name] = shape
    (M, K), second, (rows, columns) = shapes["A_fp8"], shapes["B_fp8"], shapes["C_out"]
    N, K_of_b = second if transpose_B else second[::-1]
    for what, one, other in (
        ("K", (K, "A"), (K_of_b, "B")),
        ("M", (M, "A"), (rows, "C")),
        ("N", (N, "B"), (columns, "C")),
    ):
        if one[0] != other[0]:
            raise WrongOperandShape(
                f"{what} mismatch: {one[0]} in {one[1]}, {other[0]} in {other[1]}",
                hint=f"B is {'(N, K)' if transpose_B else '(K, N); transpose_B=True takes (N, K)'}",
            )
    return M, N, K


def _tile(region: ir.Region, wider: str | None) -> ir.Region:
    """An operand as matrix instructions take it: in shared memory or registers, as a wider type where one is named."""
    if region.buffer.scope != "global" and wider is None:
        return region
    tile = ir.whole(alloc_shared(tuple(region.extents[-2:]), wider or region.dtype.name).buffer)
    record_tiles(ops.Copy(region, tile, span=statement_here()), WHAT, source=region, destination=tile)
    return tile


def _part_of(region: ir.Region, axis: int, offset: object, size: ir.Extent) -> ir.Region:
    """So many lines of a region along one of its dimensions, from one on."""
    return _run(region, axis, ir.const(0) if offset is None else as_expr(offset, INT32), size)


def _from(region: ir.Region, offset: object, size: int) -> ir.Region:
    """The scales of the lines from one on."""
    return region if offset is None else _part_of(region, -1 if len(region.extents) == 1 else -2, offset, size)


def _run(region: ir.Region, axis: int, first: ir.Expr | int, size: ir.Extent) -> ir.Region:
    """A part of a region along one of its dimensions, counted from the end."""
    place = len(region.extents) + axis
    starts = [one + first if at == place else one for at, one in enumerate(region.starts)]
    extents = [size if at == place else one for at, one in enumerate(region.extents)]
    return ir.Region(region.buffer, tuple(starts), tuple(extents))


class _Scale:
    """The scales of an operand: how many columns of K and how many lines one serves, and along which axes they lie.

    `block` is how many columns of K one serves, where the author says so.
    """

    def __init__(self, region: ir.Region, of: str, size: int, K: int, line: str, block: int | None) -> None:
        extents = region.extents
        wide = [axis for axis, extent in enumerate(extents) if extent != 1]
        last = len(extents) - 1
        self.region, self.each, self.parts = region, 1, 1
        self.line_axis: int | None = None
        self.part_axis: int | None = None
        first = extents[wide[0]] if wide else 1
        shared = wide == [last] and (last > 0 or region.dtype in (E8M0, UINT8))  # by all lines
        said = shared and block is not None and isinstance(first, int) and first * block == K
        if len(wide) == 1 and (not isinstance(first, int) or first == size) and not said:
            self.line_axis = wide[0]
        elif shared:
            self.part_axis = last
        elif wide == [last - 1] or wide == [last - 1, last]:
            self.line_axis, self.part_axis = last - 1, last
        elif wide:
            self._refuse(of, size, K, line)
        lines, parts = (1 if axis is None else extents[axis] for axis in (self.line_axis, self.part_axis))
        if self.part_axis is not None:
            if not isinstance(parts, int) or not isinstance(lines, int) or K % parts or not 0 < lines <= size:
                self._refuse(of, size, K, line)
            else:
                self.parts, self.each = parts, -(-size // lines)
        self.run = K // self.parts

    def _refuse(self, of: str, size: int, K: int, line: str) -> NoReturn:
        raise WrongOperandShape(
            f"{of}_scale must be per-tensor, per-{line} or for parts of K, but {self.region.buffer.name!r} has "
            f"shape {shape_text(self.region)}",
            hint=f"one element, {size} of them, ({size}, G), or (blocks, G), where G divides K = {K}",
        )

    def at(self, line: ir.Expr, first: int) -> ir.Expr:
        """The scale of a row of A, or a column of B, for the run of K that begins at `first`."""
        place = list(self.region.starts)
        for axis, step in ((self.line_axis, line // self.each), (self.part_axis, ir.const(first // self.run))):
            if axis is not None:
                place[axis] = place[axis] + step
        return ir.Load(self.region.dtype, self.region.buffer, tuple(place))


def _add(part: ir.Buffer, scales: tuple[_Scale, _Scale], first: int, c: ir.Region) -> None:
    """``c[i, j] += part[i, j] * scale of row i * scale of column j``."""
    builder, span = in_kernel("T.Parallel"), statement_here()
    i, j = ir.Var(INT32, "i"), ir.Var(INT32, "j")
    frame = builder.push("T.Parallel", span)
    sums: ir.Expr = ir.Load(part.dtype, part, (i, j))
    leading = len(c.extents) - 2
    offsets = (*(ir.const(0),) * leading, i, j)
    place = tuple(start + step for start, step in zip(c.starts, offsets, strict=True))
    old = ir.cast(ir.Load(c.dtype, c.buffer, place), part.dtype)
    before, behind = _factors(scales[0].at(i, first), scales[1].at(j, first))
    for factor in before:
        sums = ir.binary("mul", sums, factor)
    total = ir.Call(part.dtype, "fma", (sums, behind, old))
    builder.append(ir.Store(c.buffer, place, ir.cast(total, c.dtype), span=span))
    builder.append(ir.Parallel((i, j), part.static_shape, builder.pop(frame), span=span))


def _factors(one: ir.Expr, other: ir.Expr) -> tuple[list[ir.Expr], ir.Expr]:
    """What a sum is multiplied by, one after the other, and last in its addition, so that nothing between is beyond
    float32 where the result is not: sums of a tile are zero or between 2**-32 and 2**48, and two scales together may be
    as large as 2**256."""
    one, other = sorted((one, other), key=lambda scale: (*POWERS, "float16", scale.dtype.name).index(scale.dtype.name))
    if one.dtype.name in POWERS:
        code = _code(one)
        if other.dtype.name in POWERS:  # about half of each exponent
            halves = [_parted(code, (code + 127) // 2), _parted(_code(other), (_code(other) + 128) // 2)]
            return [ir.binary("mul", halves[0][0], halves[1][0])], ir.binary("mul", halves[0][1], halves[1][1])
        first, second = _parted(code, ir.binary("min", ir.binary("max", code, ir.const(127 - 86)), ir.const(127 + 80)))
        return [first, _as_float(other)], second
    if one.dtype.name == "float16":
        return [_as_float(one)], _as_float(other)
    scale = _as_float(one)
    size = ir.Call(FLOAT32, "abs", (scale,))

    def chosen(small: float, large: float) -> ir.Expr:
        beyond = ir.Select(FLOAT32, ir.binary("gt", size, _float(2.0**80)), _float(large), _float(1.0))
        return ir.Select(FLOAT32, ir.binary("lt", size, _float(2.0**-86)), _float(small), beyond)

    return [ir.binary("mul", scale, chosen(2.0**38, 2.0**-48)), _as_float(other)], chosen(2.0**-38, 2.0**48)


def _code(power: ir.Expr) -> ir.Expr:
    return ir.cast(power if power.dtype == UINT8 else ir.Reinterpret(UINT8, power), INT32)


def _parted(code: ir.Expr, first: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """The power of two that another code says, and what makes it that of this one, which has its NaN."""
    one, other = (ir.binary("shl", exponent, ir.const(23)) for exponent in (first, code - first + 127))
    other = ir.Select(INT32, ir.binary("eq", code, ir.const(255)), ir.const(0x7FC00000), other)
    return ir.Reinterpret(FLOAT32, one), ir.Reinterpret(FLOAT32, other)


def _float(value: float) -> ir.Expr:
    return ir.Const(FLOAT32, value)
