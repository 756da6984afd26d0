"""Quantising torch models and single weights, and loading converted checkpoints into models.

torch and the layers that need it are imported when a model is given, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.checkpoints import open_checkpoint
from tilewright.conversion.calibration import Calibrated, blocks_of
from tilewright.conversion.checkpoint import SKIPPED, skipping
from tilewright.conversion.experts import GatheredExperts, quantize_stack, stacks_to_quantize
from tilewright.conversion.layers import (
    declared_activations,
    extra_tensors,
    read_layer,
    recognise,
)
from tilewright.conversion.modules import (
    check_place,
    give_memory,
    is_embedding,
    is_linear,
    layers_to_quantize,
    made_layer,
    name_what_is_left,
    numbers_of,
    replace_layer,
    say_so,
)
from tilewright.conversion.schemes import QuantizationScheme, quantization_scheme
from tilewright.conversion.settings import quantization_settings
from tilewright.conversion.words import OURS
from tilewright.errors import CannotQuantize, MissingTensor, WrongArgumentKind
from tilewright.matmul.arrays import as_torch
from tilewright.progress import Progress

METHODS = ("nearest", "gptq")


def quantize(
    model_or_weight: Any,
    scheme: str | QuantizationScheme = "w4a16",
    *,
    calibration: Iterable[Any] | None = None,
    method: str | None = None,
    act_order: bool = False,
    damping: float = 0.01,
    skip: str | Iterable[str] = SKIPPED,
    run: Callable[[Any, Any], Any] | None = None,
    progress: Progress | None = None,
) -> Any:
    """Quantise a weight, or every linear layer of a torch model in place.

    Parameters
    ----------
    model_or_weight : a weight ``[N, K]`` (an array or a tensor of floats), or a `torch.nn.Module`.
    scheme : as in `conversion.quantization_scheme`: ``"w4a16"``, ``"w8a8"``, ``"uint4-g64-asym"``, ``"mxfp4"``, ...
    calibration : inputs of the model, one batch at a time; with them weights are rounded by GPTQ.
    method : ``"nearest"`` or ``"gptq"``; by default GPTQ with calibration, to nearest without.
    act_order, damping : of GPTQ, see `quant.gptq.gptq_quantize`.
    skip : a regular expression; layers with a match in their name stay as they are.  Or a list of names: those of layers, or of
        what layers are in.
    run : how a batch is given to the model; by default ``model(**batch)`` for mappings, ``model(*batch)`` for tuples
        and lists, ``model(batch)`` else.
    progress : a bar to move on, one step a layer and an expert; by default one of its own.

    Returns
    -------
    a `QuantizedWeight` for a weight; the model itself, whose `torch.nn.Linear` layers (and GPT-2's ``Conv1D``) have become
    `tilewright.Linear`, its experts in tensors of three dimensions `tilewright.nn.Experts`; a new layer where the model is nothing but one.

    Raises
    ------
    CannotQuantize : weights that are not finite or not there, no layer to quantise, calibration that reaches no layer.

    Notes
    -----
    A head whose weight is that of an embedding stays.  Layers that a model calls by several names stay one.  Experts that a model keeps in
    tensors of three dimensions are rounded where their module computes as `nn.expert_form` knows it; a warning names others.

    Calibrated layers are rounded block after block (the children of the model's longest list of modules), each with inputs from
    the model as quantised so far, as Frantar et al. do; every block costs one run over the calibration.  An expert is
    rounded with the tokens that are sent to it; one that gets fewer than its weights have columns learns from others' as well.
    """
    how = quantization_scheme(scheme)
    if model_or_weight is None or isinstance(model_or_weight, (str, Path)):
        raise WrongArgumentKind(
            f"a {type(model_or_weight).__name__} was given for a model or a weight",
            hint="convert_checkpoint(path, destination, scheme) quantises what is in files",
        )
    if not _is_module(model_or_weight):
        return how.quantize(model_or_weight)
    method = method or ("nearest" if calibration is None else "gptq")
    if method not in METHODS or (method == "gptq") != (calibration is not None):
        wanted = "calibration batches" if method == "gptq" else "no calibration"
        known = method in METHODS
        raise CannotQuantize(
            f"the method {method!r} takes {wanted}" if known else f"no method {method!r}", hint="nearest, gptq"
        )
    if is_linear(model_or_weight) and calibration is None:
        return made_layer(model_or_weight, how.quantize(numbers_of("the layer", model_or_weight)), how.activations)
    stays = skipping("skip", skip, (name for name, _ in model_or_weight.named_modules() if name))
    stacks = stacks_to_quantize(model_or_weight, stays)
    layers = layers_to_quantize(model_or_weight, stays, bool(stacks))
    with progress or Progress(len(layers) + sum(stack.count for stack in stacks.values())) as bar:
        if calibration is None:
            for name, linear in layers.items():
                bar.step(name)
                replace_layer(model_or_weight, name, linear, how.quantize(numbers_of(name, linear)), how.activations)
            for name, stack in stacks.items():
                quantize_stack(model_or_weight, name, stack, how, bar)
        else:
            rounding = Calibrated(model_or_weight, how, list(calibration), run, act_order, damping, bar)
            for block in blocks_of(model_or_weight, {**layers, **stacks}):
                rounding.quantise(block)
    name_what_is_left(model_or_weight)
    say_so(model_or_weight, how.activations)
    return model_or_weight


def load_quantized(
    model: Any, checkpoint: str | Path, *, activations: str | None = None, progress: Progress | None = None
) -> Any:
    """Fill a torch model from a quantised checkpoint, ours or any that `convert_checkpoint` reads.

    The linear layers whose weights are quantised there become `tilewright.Linear`; all other tensors are loaded as they are.  A model
    on the meta device gets its tensors on the processor; its dense weights are never there.  Embeddings get the numbers of codes.

    Parameters
    ----------
    activations : what activations are quantised to: ``"int8"``, ``"float8_e4m3fn"``, or ``"declared"`` for what the checkpoint's
        configuration says of each layer (W8A8 and fp8 checkpoints, BitNet).  By default floats are multiplied as they come, but
        for checkpoints that `convert_checkpoint` made by a scheme with quantised activations.
    progress : a bar to move on, one step a layer; by default one of its own.

    Raises
    ------
    MissingTensor : a parameter of the model that the checkpoint lacks, or a quantised weight for which it has no layer.
    InvalidCheckpoint, InvalidTensor : see `convert_checkpoint`.
    """
    if not _is_module(model):
        raise WrongArgumentKind(
            f"a {type(model).__name__} was given for a model", hint="load_quantized fills a torch.nn.Module"
        )
    source = open_checkpoint(checkpoint)
    settings = quantization_settings(source.config, source.directory)
    found = recognise(source, settings)
    known = dict(model.named_modules())
    absorbed = {name for layer in found for name in layer.tensors}
    quantised: dict[str, str | None] = {}
    fresh, biases = set(), dict[str, Any]()
    experts = GatheredExperts(model)
    with progress or Progress(len(found)) as bar:
        for layer in found:
            bar.step(layer.name)
            own = layer.form == OURS and bool(settings.get("activations"))  # of a scheme: a part of the weight
            declared = activations == "declared" or (own and activations is None)
            asked = declared_activations(source, layer, settings) if declared else activations
            quantised[layer.name] = asked
            for name, weight in read_layer(source, layer, settings).items():
                if experts.take(name, weight, asked):
                    continue
                if is_embedding(known.get(name), weight):  # which is looked up in, not multiplied by
                    biases[f"{name}.weight"] = weight.to_dense().astype(np.float32)
                    continue
                check_place(name, known.get(name), weight)
                replace_layer(model, name, known[name], weight, asked)
                fresh.add(name)
            biases |= extra_tensors(source, layer)
    for name in (name for name in source if name.endswith(".bias")):
        experts.take_bias(name, source)
    biases = {name: values for name, values in biases.items() if not experts.take_bias(name, biases)}
    inside = tuple(f"{name}." for name in experts.put_in_place())
    give_memory(model)
    state = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if not name.startswith(inside) and (name.endswith(".bias") or name.rpartition(".")[0] not in fresh)
    }
    for name in biases.keys() & state.keys():
        state[name].copy_(as_torch(biases[name], "cpu"))
    read = {name for name in state if name in source and name not in absorbed}
    filled = {
        state[name].data_ptr() for name in read | (biases.keys() & state.keys())
    }  # what is tied to one of them has its numbers
    for name, tensor in state.items():
        if name not in read and name not in biases and tensor.data_ptr() not in filled:
            raise MissingTensor(f"{name} is missing: the model has such a tensor")
    for name in read:
        state[name].copy_(as_torch(source[name], "cpu").reshape(state[name].shape))
    kinds = set(quantised.values())
    say_so(model, quantised if len(kinds) > 1 else next(iter(kinds), None))
    return model


def _is_module(candidate: Any) -> bool:
    return hasattr(candidate, "named_modules") and hasattr(candidate, "state_dict")
