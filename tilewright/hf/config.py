"""What transformers is asked to do: a scheme for dense weights, or to run a checkpoint's quantised ones as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from transformers.utils.quantization_config import QuantizationConfigMixin

from tilewright.conversion.checkpoint import SKIPPED
from tilewright.conversion.methods import OURS
from tilewright.conversion.modules import our_settings
from tilewright.conversion.schemes import QuantizationScheme, quantization_scheme
from tilewright.errors import WrongArgumentKind


class QuantizationConfig(QuantizationConfigMixin):
    """For ``from_pretrained(..., quantization_config=...)``.

    Parameters
    ----------
    scheme : as in `tilewright.quantize`: ``"w4a16"``, ``"int4"``, ``"uint4-g64-asym"``, ``"mxfp4"``, ...
    group : columns that share a scale, None for all; by default what the scheme says.
    zeros : ``"none"``, ``"middle"`` or ``"group"`` as in `tilewright.quant.quantize`; by default what the scheme says.
    activations : type that activations are quantised to in the same call, ``"int8"`` or ``"float8_e4m3fn"``; by default
        what the scheme says, which for most is: as they come.
    skip : a regular expression; layers with a match in their name stay as they are.  Or a list of names.

    Raises
    ------
    UnknownFormat : no such scheme.

    Examples
    --------
    >>> QuantizationConfig("int4", group=64)
    QuantizationConfig(int4, group=64)
    """

    def __init__(
        self,
        scheme: str | QuantizationScheme = "w4a16",
        *,
        group: int | str | None = "as the scheme says",
        zeros: str | None = None,
        activations: str | None = None,
        skip: str | Iterable[str] = SKIPPED,
    ) -> None:
        made = quantization_scheme(scheme)
        if group is None or isinstance(group, int):
            made = replace(made, group=group)
        elif group != "as the scheme says":
            raise WrongArgumentKind(f"group is {group!r}", hint="a number of columns, or None for all of a row")
        self.quant_method: Any = OURS  # transformers' type knows the methods of its own only
        self.scheme: QuantizationScheme | None = replace(
            made, zeros=zeros or made.zeros, activations=activations or made.activations
        )
        self.skip = skip
        self.activations: str | Mapping[str, str | None] | None = self.scheme.activations

    @classmethod
    def as_stored(cls, activations: str | None = None) -> QuantizationConfig:
        """Run the quantised weights of a checkpoint as they are, whoever wrote it, on our kernels.

        Parameters
        ----------
        activations : as in `tilewright.load_quantized`: ``"declared"`` for what the checkpoint says; by default as they
            come.
        """
        made = cls()
        made.scheme, made.activations = None, activations
        return made

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any], return_unused_kwargs: bool = False, **kwargs: object) -> Any:
        """The configuration that files of ours speak of."""
        made = cls.as_stored(config_dict.get("activations"))
        return (made, kwargs) if return_unused_kwargs else made

    def to_dict(self) -> dict[str, Any]:
        """What is written beside the weights."""
        scheme = {} if self.scheme is None else {"scheme": self.scheme.name}
        return {**our_settings(self.activations), **scheme}

    def __repr__(self) -> str:
        if self.scheme is None:
            return "QuantizationConfig.as_stored()"
        return f"QuantizationConfig({self.scheme.name}, group={self.scheme.group})"
