"""Schemes of quantisation by name: ``w4a16-g128``, ``w8a8``, ``uint4-g64-asym``, ``mxfp4``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tilewright.errors import CannotQuantize, UnknownFormat
from tilewright.formats import FORMATS, SCHEMES, number_format
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.rounding import packed_to_nearest
from tilewright.quant.quantize import to_nearest
from tilewright.quant.rounding import Rounding
from tilewright.quant.weight import QuantizedWeight

DEFAULT_GROUP = 128


@dataclass(frozen=True, slots=True)
class QuantizationScheme:
    """What becomes of a weight and of the activations that meet it.

    Attributes
    ----------
    name : as asked for.
    format : number format of the codes, or one of `formats.SCHEMES` with groups of its own.
    group : columns that share a scale, None for all.
    zeros : ``"none"``, ``"middle"`` or ``"group"`` as in `quant.quantize`; None for the format's own.
    activations : type that activations are quantised to in the same call, one scale a token; None for as they are.
    """

    name: str
    format: str
    group: int | None = DEFAULT_GROUP
    zeros: str | None = None
    activations: str | None = None

    def quantize(self, weight: object, name: str = "the weight") -> QuantizedWeight:
        """Round a weight ``[N, K]`` to nearest; `name` is its name in messages.  Raises CannotQuantize."""
        return to_nearest(weight, self.rounding, name=name)

    def pack(self, weight: object, name: str = "the weight") -> PackedWeight:
        """`quantize`, packed, on the weight's device: rounded on a GPU where there is one.  Raises CannotQuantize."""
        return packed_to_nearest(weight, self.rounding, name)

    @property
    def rounding(self) -> Rounding:
        """How weights are rounded to nearest."""
        return Rounding.of(self.format, self.group, self.zeros, None, self.scale_dtype and self.scale_dtype_for)

    def scale_dtype_for(self, largest: float) -> str | None:
        """`scale_dtype`; float32 for a weight whose largest magnitude makes scales that float16 has not."""
        held = self.scale_dtype
        return "float32" if held == "float16" and not _LEAST < largest < _MOST else held

    @property
    def scale_dtype(self) -> str | None:
        """Type of the scales: float16 for groups, float32 for one a channel; None where the format says."""
        if self.format in SCHEMES:
            return None
        return "float32" if self.group is None else "float16"


_LEAST, _MOST = 2.0**-10, 2.0**15
"""Largest weights whose scales float16 holds: with all its bits down to a thousandth of them, and finite."""

_WIDTHS = re.compile(r"w([1-8])a(8|16)")
_ACTIVATIONS = {"int8": "int8", "fp8": "float8_e4m3fn", "e4m3": "float8_e4m3fn"}


def quantization_scheme(name: str | QuantizationScheme) -> QuantizationScheme:
    """The scheme of a name.

    A name is ``wXaY`` (bits of the weights, 16 or 8 of the activations), a number format or a name of
    `formats.SCHEMES`, followed by any of ``-gN`` (columns of a group), ``-channel`` (one scale a row), ``-sym``,
    ``-asym`` (a zero point for each group), ``-int8`` and ``-fp8`` (what activations are quantised to; ``w8a8-fp8`` has
    such weights too). Without more words groups have 128 columns, weights of 8 bits one scale a row.

    Examples
    --------
    >>> quantization_scheme("w4a8-g64")
    QuantizationScheme(name='w4a8-g64', format='int4', group=64, zeros=None, activations='int8')

    Raises
    ------
    UnknownFormat : no such format, or a word that means nothing.
    """
    if isinstance(name, QuantizationScheme):
        return name
    head, *words = str(name).lower().split("-")
    widths = _WIDTHS.fullmatch(head)
    if widths:
        bits, eight = int(widths[1]), widths[2] == "8"
        made = QuantizationScheme(name, f"int{bits}" if eight or bits in (1, 8) else f"uint{bits}")
        made = replace(made, group=None if bits == 8 else DEFAULT_GROUP, activations="int8" if eight else None)
    elif head in SCHEMES:
        made = QuantizationScheme(name, head, group=None)
    else:
        try:
            of = number_format(head)
        except UnknownFormat:
            known = ["w4a16", "w8a8", "w4a8", "w8a16", "w2a16", "w2a8", *SCHEMES, *FORMATS]
            raise UnknownFormat(head, known, what="scheme") from None
        if of.is_dense:
            raise CannotQuantize(f"{of} holds no codes", hint="formats of 1 to 8 bits do, int4 or e2m1 for example")
        made = QuantizationScheme(name, of.name, group=None if of.bits == 8 else DEFAULT_GROUP)
    for word in words:
        made = _with_word(made, word)
    return made


def _with_word(made: QuantizationScheme, word: str) -> QuantizationScheme:
    if re.fullmatch(r"g[1-9]\d*", word) and made.format not in SCHEMES:
        return replace(made, group=int(word[1:]))
    if word == "channel" and made.format not in SCHEMES:
        return replace(made, group=None)
    if word in _ACTIVATIONS:
        eight = made.format == "int8" and word != "int8"
        return replace(made, activations=_ACTIVATIONS[word], format="e4m3" if eight else made.format)
    if word == "sym":
        return made
    if word == "asym" and number_format(made.format).kind in ("int", "uint"):
        return replace(made, format=f"u{made.format.removeprefix('u')}", zeros="group")
    raise UnknownFormat(word, ["g128", "channel", "sym", "asym", "int8", "fp8"], what="word of a scheme")
