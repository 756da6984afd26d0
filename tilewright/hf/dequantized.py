"""A transformers model whose codes have become numbers again, in modules of the classes that it is made of."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from tilewright.conversion.modules import is_transposed, put_in_place
from tilewright.nn import Experts, ExpertWeights, Linear


def dequantize(model: PreTrainedModel, dtype: torch.dtype | str | None) -> PreTrainedModel:
    """Put dense modules in the places of ours, with weights and biases of a type (by default each layer's own)."""
    kind = getattr(torch, dtype) if isinstance(dtype, str) else dtype  # a configuration that was saved has its name
    with torch.device("meta"):
        own = dict(type(model)(model.config).named_modules())
    for name, module in list(model.named_modules()):
        dense = own.get(name.removesuffix(".base_layer"))  # what PEFT calls a layer beside its adapter
        if isinstance(module, Linear):
            if dense is None:
                dense = torch.nn.Linear(module.in_features, module.out_features, device="meta")
            numbers = module.dequantize().to(kind or module.dense_dtype)
            _fill(dense, "weight", numbers.T.contiguous() if is_transposed(dense) else numbers)
            _fill(dense, "bias", None if module.bias is None else module.bias.detach().to(numbers.dtype))
        elif dense is not None and isinstance(module, Experts):
            for one in module.names:
                _fill_stack(dense, one, getattr(module, one), module.form.columns, kind)
        elif dense is not None and isinstance(module, ExpertWeights):
            _fill_stack(dense, "weight", module, False, kind)
        else:
            continue
        put_in_place(model, name, module, dense)
    return model


def _fill(dense: torch.nn.Module, name: str, numbers: torch.Tensor | None) -> None:
    setattr(dense, name, None if numbers is None else torch.nn.Parameter(numbers))


def _fill_stack(
    dense: torch.nn.Module, name: str, weights: ExpertWeights, columns: bool, kind: torch.dtype | None
) -> None:
    """Give a module of experts a tensor of three dimensions, and the biases that belong to it."""
    numbers = torch.stack([one.data.T if columns else one.data for one in weights])
    numbers = numbers.to(kind or getattr(dense, name).dtype)
    _fill(dense, name, numbers)
    if weights.bias is not None:
        _fill(dense, f"{name}_bias", weights.bias.to(numbers.dtype))
