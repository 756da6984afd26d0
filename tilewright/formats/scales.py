"""Scale schemes: which elements of a weight share a scale, and in which type scales are held."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.errors import UnknownFormat
from tilewright.formats.catalog import number_format
from tilewright.formats.number import Format


@dataclass(frozen=True, slots=True)
class Scheme:
    """A format with its scales.

    Attributes
    ----------
    name : as asked for.
    format : of the codes.
    block : rows and columns of the weight that share a scale; 0 stands for all of them.
    scale_dtype : type in which scales are held.
    tensor_scale : whether one more float32 scale belongs to the whole weight.
    """

    name: str
    format: Format
    block: tuple[int, int]
    scale_dtype: str = "float32"
    tensor_scale: bool = False

    @property
    def bits_per_element(self) -> float:
        """Storage of one element of a large weight."""
        scale_bits = number_format(self.scale_dtype).bits
        return self.format.bits + (scale_bits / (self.block[0] * self.block[1]) if all(self.block) else 0.0)


def _mx(name: str, of: str) -> Scheme:
    return Scheme(name, number_format(of), (1, 32), "e8m0")


SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        _mx("mxfp4", "e2m1"),
        _mx("mxfp6_e3m2", "e3m2"),
        _mx("mxfp6_e2m3", "e2m3"),
        _mx("mxfp8", "e4m3"),
        _mx("mxfp8_e5m2", "e5m2"),
        _mx("mxint8", "int8"),
        Scheme("nvfp4", number_format("e2m1"), (1, 16), "e4m3", tensor_scale=True),
        Scheme("fp8_block", number_format("e4m3"), (128, 128)),
        Scheme("nf4_block", number_format("nf4"), (1, 64)),
        Scheme("bitnet", number_format("ternary"), (0, 0)),
    )
}
"""Formats that come with a scheme of their own (OCP Microscaling 1.0; NVIDIA's nvfp4; DeepSeek's 128 x 128 blocks)."""


def scheme(name: str) -> Scheme:
    """The scheme of a name.

    Raises
    ------
    UnknownFormat : no such scheme.
    """
    if name not in SCHEMES:
        raise UnknownFormat(name, sorted(SCHEMES), what="scheme")
    return SCHEMES[name]
