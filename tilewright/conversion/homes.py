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
    ".masked_bias", "inv_freq", ".cos_cached", ".sin_cached", ".mask_token", ".masked_spec_embed",
)  # fmt: skip
"""Endings of tensors that a model computes itself, or has no use for: what was measured of keys and values,
what stands in training for what is hidden."""


def check_homes(model: torch.nn.Module, source: Mapping[str, np.ndarray], homeless: Mapping[str, str]) -> None:
    """Without a bias, a norm or a factor that a checkpoint has of a module the model's computes something else.

    Whole parts that a model leaves out are no such tensors (`_is_left_out`). Nor are zeros, integers, the model's
    buffers, and what transformers passes over.

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
    places = {held: _place(held, known) for held in homeless}
    matrices = {places[held] for held, name in homeless.items() if source[name].ndim > 1}
    for held, name in homeless.items():
        parent, part = places[held]
        if held in buffers or held.endswith(_PASSED) or any(re.search(one, held) for one in ignored):
            continue
        if not parent or _is_left_out(known, parent, held, (parent, part) in matrices):
            continue
        values = source[name]
        if values.dtype.name not in FLOATS or not np.asarray(values).astype(np.float32).any():
            continue
        raise InvalidTensor(
            f"{name} is in the checkpoint, and the model's {parent} ({type(known[parent]).__name__}) has no such "
            "tensor",
            hint="is the configuration this model's? words like attention_bias and mlp_bias say what layers have",
        )


def _place(held: str, known: Mapping[str, torch.nn.Module]) -> tuple[str, str]:
    """The nearest module of the model that a tensor is in, and what it would be in there: itself, or a module."""
    parts = held.split(".")
    count = next((count for count in range(len(parts) - 1, 0, -1) if ".".join(parts[:count]) in known), 0)
    return ".".join(parts[:count]), parts[count]


def _is_left_out(known: Mapping[str, torch.nn.Module], parent: str, held: str, has_matrix: bool) -> bool:
    """Whether a tensor is of a module that a model may lack and compute the same. In a block, that is one of a list
    (its experts); outside, what is beside blocks (BERT's pooler), or has a matrix (the head of another task)."""
    if parent == held.rpartition(".")[0]:
        return False
    parts, module = parent.split("."), known[parent]
    inside = any(_is_list(known[".".join(parts[:count])]) for count in range(1, len(parts)))
    held_here = (module, *module.children()) if inside else module.modules()
    return (has_matrix and not inside) or any(map(_is_list, held_here))


def _is_list(module: torch.nn.Module) -> bool:
    return isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict))
