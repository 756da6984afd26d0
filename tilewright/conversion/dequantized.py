"""A model whose codes have become numbers again, in modules of the classes that it is made of."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tilewright.conversion.modules import is_transposed, put_in_place
from tilewright.errors import CannotQuantize, WrongArgumentKind
from tilewright.libraries import torch

if TYPE_CHECKING:
    from tilewright.nn import ExpertWeights


def dequantize(model: Any, dtype: torch.dtype | str | None = None) -> Any:  # of the class of what was given
    """Put dense modules in the places of a model's quantised layers and experts, with the numbers of their codes.

    Parameters
    ----------
    model : a `torch.nn.Module` that `quantize` or `load_quantized` has been given, or transformers has loaded.
    dtype : of the weights and biases of those modules; by default each layer's before it was quantised.

    Returns
    -------
    the model, whose layers are `torch.nn.Linear` again (GPT-2's ``Conv1D``); a new layer where it is a layer of ours.

    Raises
    ------
    CannotQuantize : experts in a model that is not of transformers: their dense class is not known.
    """
    from tilewright.nn import Experts, ExpertWeights, Linear

    if not hasattr(model, "named_modules"):
        raise WrongArgumentKind.given(model, "a model", hint="a QuantizedWeight has dequantize() of its own")
    if isinstance(model, Linear):
        around = torch.nn.Sequential(model)
        make_dense(around, dtype)
        return around[0]
    if getattr(model, "hf_quantizer", None) is not None:
        return model.dequantize(dtype)
    experts = [name for name, module in model.named_modules() if isinstance(module, (Experts, ExpertWeights))]
    if experts and not _is_of_transformers(model):
        raise CannotQuantize(
            f"{experts[0]} holds experts of codes, and what class they had is not known",
            hint="a transformers model says it; quantise a copy of the model to keep the numbers",
        )
    make_dense(model, dtype)
    if hasattr(getattr(model, "config", None), "quantization_config"):
        del model.config.quantization_config
    return model


def make_dense(model: torch.nn.Module, dtype: torch.dtype | str | None) -> None:
    """What `dequantize` does to a model's modules."""
    from tilewright.nn import Experts, ExpertWeights, Linear

    kind = getattr(torch, dtype) if isinstance(dtype, str) else dtype  # a configuration that was saved has its name
    own: dict[str, torch.nn.Module] = {}
    if _is_of_transformers(model):
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


def _is_of_transformers(model: object) -> bool:
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(model, transformers.PreTrainedModel)


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
