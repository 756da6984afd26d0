"""What a model calls the layers of a checkpoint: transformers 5 has other names in memory than files have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from tilewright.errors import CannotQuantize

Renaming = Callable[[str], str]


def names_in(model: Any) -> Renaming:
    """How the name of a layer, or of a tensor, in a checkpoint becomes a model's.

    transformers says it of its own models (`get_model_conversion_mapping`): parts that are called differently, and the
    prefix of the base model where one side has it and the other not. Other models have the names of their files.

    Raises
    ------
    CannotQuantize : by the function, for a layer whose numbers transformers would bring into another order as it loads
        them.
    """
    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(model, transformers.PreTrainedModel):
        return lambda name: name
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
    except ImportError:  # transformers 4 has the names of files
        return lambda name: name
    mapping = get_model_conversion_mapping(model)
    renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
    converters = [one for one in mapping if isinstance(one, WeightConverter)]
    held = dict.fromkeys(model.state_dict(), True)

    def found(name: str, endings: tuple[str, ...] = ("", ".weight")) -> str:
        for ending in endings:
            renamed, _ = rename_source_key(name + ending, renamings, [], model.base_model_prefix, held)
            if renamed in held:
                return str(renamed.removesuffix(ending))
        weight, converted = rename_source_key(f"{name}.weight", renamings, converters, model.base_model_prefix, held)
        if converted is not None and weight in held and ".experts." not in name:
            raise CannotQuantize(
                f"{name}: transformers makes {weight} of it and of others as it loads them, which codes do not allow",
                hint="quantise the model after it is loaded: tilewright.quantize(model, scheme)",
            )
        renamed, _ = rename_source_key(name, renamings, [], model.base_model_prefix, held)
        return str(renamed)

    return found


def keep_names(model: Any, quantised: Iterable[str]) -> None:
    """Tell a transformers model to save quantised layers as they are: what it splits and turns on saving are dense
    weights.

    Parameters
    ----------
    quantised : names of modules that hold codes.
    """
    transformers = sys.modules.get("transformers")
    inside = tuple(f"{name}." for name in quantised)
    if transformers is None or not isinstance(model, transformers.PreTrainedModel) or not inside:
        return
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import PrefixChange, WeightConverter, apply_converters
    except ImportError:
        return
    known = getattr(model, "_weight_conversions", None)
    if known is None:  # as transformers does for a model that was not loaded
        known = [
            one for one in get_model_conversion_mapping(model, add_legacy=False) if not isinstance(one, PrefixChange)
        ]
    ours = [name for name in model.state_dict() if name.startswith(inside)]

    def touches(one: Any) -> bool:
        if not isinstance(one, WeightConverter):
            return False
        back = one.reverse_transform()
        return any(apply_converters(name, [back])[1] is not None for name in ours)

    model._weight_conversions = [one for one in known if not touches(one)]
