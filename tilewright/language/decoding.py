"""Codes of few bits as authors take them apart: by their group's scale, or from the records of a packed weight."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright import ops
from tilewright.ir import nodes as ir
from tilewright.language.buffers import region_of
from tilewright.language.mistakes import NumberExpected
from tilewright.language.pairs import pair
from tilewright.language.proxies import as_expr, constant, describe
from tilewright.language.recording import in_kernel, statement_here, word
from tilewright.language.tensor_proxies import TensorProxy
from tilewright.language.tile_ops import record_tiles
from tilewright.machine.fragment_records import FragmentRecords


@word
def decode(
    source: object,
    destination: object,
    *,
    scale: object = None,
    zero: object = None,
    zeros_mode: str = "original",
    group_size: object = None,
    axis: object = -1,
    codebook: Iterable[float] | None = None,
) -> None:
    """Low-bit codes become operands: ``destination = (source - zero) * scale``.

    Parameters
    ----------
    axis : the dimension whose elements share scales.
    source, destination : tiles of one shape; the source holds codes of 8 bits or fewer.
    scale, zero : a tile with one element a group along `axis`, or a scalar.
    zeros_mode : ``"original"``: ``(w - z) * s``; ``"rescale"``: ``w * s - z``; ``"quantized"``: as original,
        with integer zeros.
    group_size : elements along `axis` that share a scale.
    codebook : the values of the codes, a list of Python's numbers, unless a code is its own value.

    Examples
    --------
    >>> codes = T.alloc_fragment((64, 64), "uint4")
    >>> T.clear(codes)
    >>> T.decode(codes, tile, scale=2.0, zero=8)
    """
    in_kernel("T.decode")
    codes, values = pair(source, destination, "T.decode")
    factors = _scale(scale, "scale"), _scale(zero, "zero"), zeros_mode
    group = None if group_size is None else constant(group_size, "group_size of T.decode")
    if isinstance(codebook, TensorProxy):
        raise NumberExpected("the codebook of T.decode", "a list of Python's numbers", describe(codebook))
    table = None if codebook is None else tuple(float(v) for v in codebook)
    along = constant(axis, "axis of T.decode")
    operator = ops.Decode(values, codes, *factors, group, along, table, span=statement_here())
    record_tiles(operator, "T.decode", source=codes, destination=values)


def _scale(value: object, name: str) -> ir.Region | ir.Expr | None:
    if value is None:
        return None
    return region_of(value, f"{name} of T.decode") if isinstance(value, TensorProxy) else as_expr(value)


@word
def unpack(
    source: object,
    form: FragmentRecords,
    codes: object = None,
    scale: object = None,
    zero: object = None,
    first: int = 0,
    offset: int | None = None,
    scaled: bool = False,
    zeros_mode: str | None = None,
    table: object = None,
    lifted: bool = False,
) -> None:
    """Take records of a packed weight apart.

    Parameters
    ----------
    first : the column of the codes that a record's first one goes to.
    source : the 32-bit words of one record, or of several, stacked.
    form : their order.
    codes : a fragment of the form's operand type: rows of the records, and columns from `first` on.
    scale, zero : float32 fragments with one number for each row.
    offset : what is subtracted from codes; None selects the fastest conversion:
        ``(code + form.raw_bias) * form.raw_unit(row // 8 % 2)``.
    scaled : multiply codes by the scale of their row and group, in the operand's type.
    zeros_mode : ``"original"`` also takes ``zero * scale`` from scaled codes, ``"rescale"`` takes ``zero``.
    table : for codes that are looked up: a shared uint32 tile (256, 32) with, in every column, the register that the
        two codes of a byte become.
    lifted : scaled codes are multiples of `form.lifted_unit`: one operation fewer, if the scales are within a small
        range.
    """
    in_kernel("T.unpack")
    tiles: list[ir.Region | None] = [
        None if tile is None else region_of(tile, f"{name} of T.unpack")
        for name, tile in (("codes", codes), ("scale", scale), ("zero", zero), ("table", table))
    ]
    of_codes, of_scale, of_zero, of_table = tiles
    words = region_of(source, "the source of T.unpack")
    how = int(first), offset, bool(scaled), zeros_mode, of_table, bool(lifted)
    operator = ops.Unpack(words, form, of_codes, of_scale, of_zero, *how, span=statement_here())
    record_tiles(operator, "T.unpack", source=words, codes=of_codes, scale=of_scale, zero=of_zero, table=of_table)
