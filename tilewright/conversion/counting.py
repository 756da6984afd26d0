"""How many parameters transformers says that a model has: a layer of codes counts as the one in whose place it
stands."""

from __future__ import annotations

import functools
import math
import sys

from tilewright.libraries import torch


def numbers_of_codes(model: torch.nn.Module) -> int:
    """How many numbers a model's quantised layers stand for, their biases among them where these are no parameters."""
    from tilewright.nn import ExpertWeights, Linear

    count = 0
    for module in model.modules():
        if isinstance(module, Linear):
            count += module.in_features * module.out_features
        elif isinstance(module, ExpertWeights):
            count += sum(math.prod(weight.shape) for weight in module)
        else:
            continue
        bias = module._buffers.get("bias")
        count += 0 if bias is None else bias.numel()
    return count


def count_codes() -> None:
    """Let `num_parameters` of transformers' models count what is held in codes, as it does for bitsandbytes' layers.

    Codes are buffers, which it passes over: nothing is trained in them, and parameters of bytes would stand in
    optimisers' lists.
    """
    transformers = sys.modules.get("transformers")
    if transformers is None or hasattr(transformers.PreTrainedModel.num_parameters, "counts_codes"):
        return
    before = transformers.PreTrainedModel.num_parameters

    @functools.wraps(before)
    def num_parameters(self: torch.nn.Module, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        found = before(self, only_trainable, exclude_embeddings)
        return int(found) if only_trainable else int(found) + numbers_of_codes(self)

    num_parameters.counts_codes = True  # type: ignore[attr-defined]
    transformers.PreTrainedModel.num_parameters = num_parameters
