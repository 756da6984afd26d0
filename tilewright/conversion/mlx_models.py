"""What mlx-lm changes in the tensors of some models before it saves them: other libraries' models compute with the
numbers as they were."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from tilewright.checkpoints import Checkpoint
from tilewright.conversion.settings import Settings, quantization_settings
from tilewright.errors import InvalidTensor

_ONE_ADDED = re.compile(r"(\.(input|post_attention)_layernorm|(^|\.)model\.norm|\.[qk]_norm)\.weight$")
"""Norms of Qwen 3 Next and Qwen 3.5, whose models add one to them themselves."""

_FOLDED = {"falcon_h1": True, "step3p5": False}
"""Models whose weights mlx-lm multiplies by numbers of the configuration (``..._multiplier``), or to some of which it
adds one."""


def settings_of(source: Checkpoint) -> Settings:
    """What a checkpoint says of its quantisation, as `quantization_settings`; tensors that mlx-lm has changed are read
    as they were from then on.

    Raises
    ------
    InvalidTensor : as there, or mlx-lm has changed weights in a way that is not undone here.
    """
    settings = quantization_settings(source.config, source.directory)
    if settings.get("quant_method") != "mlx":
        return settings
    parts = (source.config, *(part for part in source.config.values() if isinstance(part, Mapping)))
    kinds = {str(part.get("model_type")) for part in parts}
    # It has changed them where it has turned the filters of convolutions, too.
    turned = any(name.endswith("conv1d.weight") and source[name].shape[-1:] == (1,) for name in source)
    if turned and any(kind.startswith(("qwen3_next", "qwen3_5")) for kind in kinds):
        source.added = {name: -1.0 for name in source if _ONE_ADDED.search(name) and source[name].ndim == 1}
    factors = [value for part in parts for key, value in part.items() if re.search("multipliers?$", key)]
    folds = any(np.any(np.asarray(value) != 1) for value in factors)
    kind = next((one for one, of_numbers in _FOLDED.items() if one in kinds and (folds or not of_numbers)), None)
    if kind is not None:
        raise InvalidTensor(
            f"{source.directory}: mlx-lm changes weights of a {kind} before it saves them, by what others' models "
            "do as well",
            hint="convert or quantise the dense model instead",
        )
    return settings
