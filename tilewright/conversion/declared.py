"""What a configuration declares of a weight must hold of what its tensors make: a file that contradicts its
configuration means something else to other libraries, which go by the one or by the other."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.conversion.readers import Weights
from tilewright.conversion.settings import Settings, weights_settings
from tilewright.errors import InvalidTensor
from tilewright.quant.weight import QuantizedWeight


def check_declared(found: Weights, layer: str, settings: Settings) -> None:
    """Whether a layer's weights are symmetric and of integers or floats where the configuration says so. Raises
    InvalidTensor."""
    weights = [found] if isinstance(found, QuantizedWeight) else list(found.values())
    said = weights_settings(settings, layer)
    word = _says_symmetric(settings, said)
    if word is not None and any(_has_points(weight) for weight in weights):
        raise InvalidTensor(
            f"{layer} has zero points that are not the middle of its codes, where the configuration says {word}",
            hint="a file of another version or another checkpoint's configuration",
        )
    kinds = {str(entry.get("type")).lower() for entry in said}
    for weight in weights:
        kind = "int" if weight.format.name.lstrip("u").startswith("int") else "float"
        if len(kinds) == 1 and kinds < {"int", "float"} and kinds != {kind}:
            raise InvalidTensor(
                f"{layer} is of {weight.format.name}, where the configuration says weights: type: {kinds.pop()}"
            )


def _says_symmetric(settings: Settings, said: list[Settings]) -> str | None:
    """The words by which a configuration says that a layer has no zero points; None where it does not."""
    method = settings.get("quant_method")
    if said:
        return "symmetric: true" if all(entry.get("symmetric") is True for entry in said) else None
    layers = [one for word in ("dynamic", "extra_config") for one in (settings.get(word) or {}).values()]
    if any(isinstance(one, Mapping) and one.get("sym") is False for one in layers):
        return None
    if method == "gptq":
        return "sym: true" if settings.get("sym") is True else None
    return "zero_point: false" if method == "awq" and settings.get("zero_point") is False else None


def _has_points(weight: QuantizedWeight) -> bool:
    """Whether a zero point is another number than the middle of unsigned codes, or than 0."""
    if weight.zeros is None:
        return False
    unsigned = weight.format.name.startswith("uint")
    middle = 1 << (weight.format.bits - 1) if unsigned else 0
    return bool((np.asarray(weight.zeros, np.float64) != middle).any())
