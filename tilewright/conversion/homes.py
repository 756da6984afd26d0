"""Tensors of a checkpoint for which a model has no place."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from tilewright.conversion.layers import NOT_READ
from tilewright.errors import InvalidTensor
from tilewright.libraries import torch
from tilewright.quant.importers.arrays import FLOATS

_PASSED = (
    *(ending for ending in NOT_READ if ending.startswith(".")), ".kv_scale", ".kv_cache_scaling_factor", ".prob_scale",
    ".masked_bias", "rotary_emb.inv_freq",
)  # fmt: skip
"""Endings of tensors that a model computes itself, or has no use for: what was measured of keys and values."""


def check_homes(model: torch.nn.Module, source: Mapping[str, np.ndarray], homeless: Mapping[str, str]) -> None:
    """Without a bias, a norm or a factor that a checkpoint has of a module the model's computes something else.

    Whole parts and blocks that a model leaves out are no such tensors: those whose nearest module of the model is the
    model, or a list of modules, or holds one, as what holds all blocks does (BERT's pooler is beside them). Nor are
    zeros, integers, the model's buffers, and what transformers passes over.

    Parameters
    ----------
    homeless : names of tensors, by what the model would call them.

    Raises
    ------
    InvalidTensor : a tensor of a module that has none such, and no module of its name.
    """
    known = dict(model.named_modules())
    buffers = {name for name, _ in model.named_buffers()}
    ignored = [str(one) for one in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()]
    for held, name in homeless.items():
        parts = held.split(".")
        above = [".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]
        parent = next((one for one in above if one in known), "")
        if not parent or held in buffers or held.endswith(_PASSED) or any(re.search(one, held) for one in ignored):
            continue
        if parent != above[0] and _may_lack_parts([known[one] for one in above if one in known]):
            continue
        module = known[parent]
        values = source[name]
        if values.dtype.name not in FLOATS or not np.asarray(values).astype(np.float32).any():
            continue
        raise InvalidTensor(
            f"{name} is in the checkpoint, and the model's {parent} ({type(module).__name__}) has no such tensor",
            hint="is the configuration this model's? words like attention_bias and mlp_bias say what layers have",
        )


def _may_lack_parts(modules: list[torch.nn.Module]) -> bool:
    """Whether a module, the first of these, is a list of modules or holds one; what is in a list (a block) itself has
    to hold it as its own (its experts). The others are what it is in."""
    module, *around = modules
    inside = any(map(_is_list, around))
    return any(map(_is_list, (module, *module.children()) if inside else module.modules()))


def _is_list(module: torch.nn.Module) -> bool:
    return isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict))
