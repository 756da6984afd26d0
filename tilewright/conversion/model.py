"""Quantising torch models and single weights, and loading converted checkpoints into models.

torch and the layers that need it are imported when a model is given, not before.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from tilewright.checkpoints import Checkpoint, open_checkpoint
from tilewright.conversion.calibration import Calibrated, blocks_of
from tilewright.conversion.checkpoint import SKIPPED, skipping
from tilewright.conversion.choices import Choices
from tilewright.conversion.experts import quantize_stack, stacks_to_quantize
from tilewright.conversion.gathered_experts import GatheredExperts
from tilewright.conversion.gguf_models import as_in_model
from tilewright.conversion.homes import check_homes
from tilewright.conversion.joined import JoinedLayers
from tilewright.conversion.layers import Layer, declared_activations, extra_tensors, read_layer, recognise
from tilewright.conversion.methods import OURS
from tilewright.conversion.modules import (
    check_place,
    give_memory,
    is_linear,
    layers_to_quantize,
    made_layer,
    name_what_is_left,
    needing_numbers,
    replace_layer,
    say_so,
    weight_of,
    why_layers_stay,
)
from tilewright.conversion.names import Names, names_in
from tilewright.conversion.remade import settings_of
from tilewright.conversion.schemes import QuantizationScheme, quantization_scheme
from tilewright.conversion.settings import Settings
from tilewright.errors import CannotQuantize, InvalidTensor, MissingTensor, WrongArgumentKind, WrongArgumentShape
from tilewright.libraries import torch
from tilewright.matmul.arrays import as_torch
from tilewright.matmul.packed import PackedWeight
from tilewright.progress import Progress

METHODS = ("nearest", "gptq")


def quantize(
    model_or_weight: Any,
    scheme: str | QuantizationScheme = "w4a16",
    *,
    calibration: Iterable[object] | None = None,
    method: str | None = None,
    act_order: bool = False,
    damping: float = 0.01,
    skip: str | Iterable[str] = SKIPPED,
    run: Callable[..., object] | None = None,
    progress: Progress | None = None,
    report: Callable[[str], object] | None = None,
) -> Any:  # of the kind of what was given
    """Quantise a weight, or every linear layer of a torch model in place.

    Parameters
    ----------
    model_or_weight : a weight ``[N, K]`` (an array or a tensor of floats), or a `torch.nn.Module`.
    scheme : as in `conversion.quantization_scheme`: ``"w4a16"``, ``"w8a8"``, ``"uint4-g64-asym"``, ``"mxfp4"``, ...
    calibration : inputs of the model, one batch at a time; with them weights are rounded by GPTQ.
    method : ``"nearest"`` or ``"gptq"``; by default GPTQ with calibration, to nearest without.
    act_order, damping : of GPTQ, see `quant.gptq.gptq_quantize`.
    skip : a regular expression; layers with a match in their name stay as they are. Or a list of names: those of
        layers, or of what layers are in.
    run : how a batch is given to the model; by default ``model(**batch)`` for mappings, ``model(*batch)`` for tuples
        and lists, ``model(batch)`` else.
    progress : a bar to move on, one step a layer and an expert; by default one of its own.
    report : is told which layers were taken and which were not, and why, a line for all that differ in numbers alone:
        ``print`` for example. By default standard error is where that is a terminal.

    Returns
    -------
    a `QuantizedWeight` for a weight; the model itself, whose `torch.nn.Linear` layers (and GPT-2's ``Conv1D``) have
    become `tilewright.Linear`, its experts in tensors of three dimensions `tilewright.nn.Experts`; a new layer where
    the model is nothing but one.

    Raises
    ------
    CannotQuantize : weights that are not finite or not there, no layer to quantise, calibration that reaches no layer.

    Notes
    -----
    A head whose weight is that of an embedding stays. Layers that a model calls by several names stay one. Experts that
    a model keeps in tensors of three dimensions are rounded where their module computes as `nn.expert_form` knows it; a
    warning names others.

    Calibrated layers are rounded block after block (the children of the model's longest list of modules), each with
    inputs from the model as quantised so far, as Frantar et al. do; every block costs one run over the calibration. An
    expert is rounded with the tokens that are sent to it; one that gets fewer than its weights have columns learns from
    others' as well.
    """
    how = quantization_scheme(scheme)
    if model_or_weight is None or isinstance(model_or_weight, (str, Path)):
        hint = "convert_checkpoint(path, destination, scheme) quantises what is in files"
        raise WrongArgumentKind.given(model_or_weight, "a model or a weight", hint)
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
        packed = how.pack(weight_of(model_or_weight), "the layer's weight")
        return made_layer(model_or_weight, packed, how.activations)
    stays = skipping("skip", skip, (name for name, _ in model_or_weight.named_modules() if name))
    stacks = stacks_to_quantize(model_or_weight, stays)
    layers = layers_to_quantize(model_or_weight, stays, bool(stacks))
    experts = {f"{name}.{one}": None for name, stack in stacks.items() for one in stack.names}
    choices = Choices({**why_layers_stay(model_or_weight, stays), **experts})
    with progress or Progress(len(layers) + sum(stack.count for stack in stacks.values())) as bar:
        if calibration is None:
            for name, linear in layers.items():
                bar.step(name)
                packed = how.pack(weight_of(linear), f"{name}.weight")
                replace_layer(model_or_weight, name, linear, packed, how.activations)
            for name, stack in stacks.items():
                quantize_stack(model_or_weight, name, stack, how, bar)
        else:
            rounding = Calibrated(model_or_weight, how, list(calibration), run, act_order, damping, bar)
            for block in blocks_of(model_or_weight, {**layers, **stacks}):
                rounding.quantise(block)
    (report or bar.tell)(str(choices))
    name_what_is_left(model_or_weight)
    say_so(model_or_weight, how.activations)
    return model_or_weight


def load_quantized(
    model: torch.nn.Module, checkpoint: str | Path, *, activations: str | None = None, progress: Progress | None = None
) -> Any:  # the model that was given
    """Fill a torch model from a quantised checkpoint, ours or any that `convert_checkpoint` reads.

    The linear layers whose weights are quantised there become `tilewright.Linear`; all other tensors are loaded as they
    are. A model on the meta device gets its tensors on the processor; its dense weights are never there. Embeddings get
    the numbers of codes.

    Parameters
    ----------
    activations : what activations are quantised to: ``"int8"``, ``"float8_e4m3fn"``, or ``"declared"`` for what the
        checkpoint's configuration says of each layer (W8A8 and fp8 checkpoints, BitNet). By default floats are
        multiplied as they come, but for checkpoints that `convert_checkpoint` made by a scheme with quantised
        activations.
    progress : a bar to move on, one step a layer; by default one of its own.

    Raises
    ------
    MissingTensor : a parameter of the model that the checkpoint lacks, or a quantised weight for which it has no layer.
    InvalidCheckpoint, InvalidTensor : see `convert_checkpoint`.
    """
    if not _is_module(model):
        raise WrongArgumentKind.given(model, "a model", hint="load_quantized fills a torch.nn.Module")
    opened = open_checkpoint(checkpoint)
    source = as_in_model(opened, model)
    settings = settings_of(source)
    found = recognise(source, settings)
    renamed = names_in(model, source) if source is opened else Names()
    absorbed = {name for layer in found for name in layer.tensors}
    there = {renamed(name): name for name in source if name not in absorbed}
    with progress or Progress(len(found)) as bar:
        placed = place_weights(model, source, found, settings, activations, bar, renamed)
    give_memory(model)
    _fill(model, source, there, placed, renamed)
    say_so(model, placed.said)
    return model


@dataclass
class Placed:
    """What a checkpoint's quantised weights have become in a model.

    Attributes
    ----------
    activations : what those of each layer are quantised to.
    layers : names of the layers that took the places of others.
    tensors : others that became of the weights: biases of experts, numbers of weights that a model looks up in or
        computes with itself.
    experts : names of the modules of experts that took the places of others.
    """

    activations: dict[str, str | None] = field(default_factory=dict)
    layers: set[str] = field(default_factory=set)
    tensors: dict[str, Any] = field(default_factory=dict)
    experts: set[str] = field(default_factory=set)

    @property
    def said(self) -> str | dict[str, str | None] | None:
        """What a configuration says of the activations: one word where all layers have it."""
        kinds = set(self.activations.values())
        return self.activations if len(kinds) > 1 else next(iter(kinds), None)


def place_weights(
    model: torch.nn.Module,
    source: Checkpoint,
    found: Iterable[Layer],
    settings: Settings,
    activations: str | None,
    bar: Progress,
    renamed: Names,
    devices: Mapping[str, torch.device | str] = MappingProxyType({}),
) -> Placed:
    """Put the quantised weights that were `found` in a checkpoint in the places of a model's layers and experts, which
    `renamed` has the names of, on the `devices` that are given by name, else where they are; `activations` as in
    `load_quantized`. Raises MissingTensor, WrongArgumentShape: there is no such layer, or it is of another shape."""
    known = dict(model.named_modules())
    of_numbers = needing_numbers(known)
    placed, experts = Placed(), GatheredExperts(model)
    joined = JoinedLayers(renamed, (layer.name for layer in found))
    for layer in found:
        bar.step(layer.name)
        own = layer.form == OURS and bool(settings.get("activations"))  # of a scheme: a part of the weight
        declared = activations == "declared" or (own and activations is None)
        asked = declared_activations(source, layer, settings) if declared else activations
        placed.activations[layer.name] = asked
        read = read_layer(source, layer, settings)
        for name, weight in (whole for one in read.items() for whole in joined.take(*one).items()):
            if experts.take(name, weight, asked):
                continue
            if name in of_numbers and tuple(known[name].weight.shape) == weight.shape:
                placed.tensors[f"{name}.weight"] = weight.to_dense().astype(np.float32)
                continue
            check_place(name, known.get(name), weight)
            _check_bias(source, layer.name, known[name])
            replace_layer(model, name, known[name], PackedWeight.pack(weight), asked, devices.get(name))
            placed.layers.add(name)
        placed.tensors |= {renamed(name): values for name, values in extra_tensors(source, layer).items()}
    joined.check()
    held = {tensor for layer in found for tensor in layer.tensors}
    for name in source:
        if name not in held:
            layer_name, ending = name.removesuffix(".weight"), ".weight" * name.endswith(".weight")
            experts.take_dense(renamed(layer_name) + ending, functools.partial(source.__getitem__, name))
        if name.endswith(".bias"):
            experts.take_bias(renamed(name.removesuffix(".bias")) + ".bias", source[name])
        elif name.endswith("_bias"):
            experts.take_bias(renamed(name), source[name])
    held_by_model = dict(model.named_parameters())
    placed.tensors = {name: values for name, values in placed.tensors.items() if not experts.take_bias(name, values)}
    made = (one for one in source.made if one not in held)
    placed.tensors |= {renamed(one): source[one] for one in made if renamed(one) in held_by_model}
    placed.experts = experts.put_in_place(devices)
    return placed


def _check_bias(source: Checkpoint, layer: str, module: Any) -> None:
    """The model adds the bias that a checkpoint has (GPTQ's writers give one of zeros to layers without). Raises
    InvalidTensor."""
    bias = source.get(f"{layer}.bias")
    if module.bias is None and bias is not None and np.asarray(bias).astype(np.float32).any():
        raise InvalidTensor(
            f"{layer}.bias is in the checkpoint, and the model's layer has no bias",
            hint="is the configuration this model's? words like attention_bias and mlp_bias say which layers have one",
        )


def _fill(model: torch.nn.Module, source: Checkpoint, there: Mapping[str, str], placed: Placed, renamed: Names) -> None:
    """Fill what is no quantised weight: with the checkpoint's other tensors, whose names are by the model's in `there`,
    and with those that `renamed` makes of tensors that are none of the model's. Raises MissingTensor for one that the
    checkpoint lacks."""
    inside = tuple(f"{name}." for name in placed.experts)
    modules = dict(model.named_modules(remove_duplicate=False))
    replaced = {modules[name] for name in placed.layers}
    state = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if not name.startswith(inside)
        and (name.endswith(".bias") or modules.get(name.rpartition(".")[0]) not in replaced)
    }
    for name in placed.tensors.keys() & state.keys():
        state[name].copy_(as_torch(placed.tensors[name], "cpu"))
    read, made = {name for name in state if name in there}, placed.tensors.keys() & state.keys()
    # Experts of codes leave a note under the name that dense ones have.
    others = [one for held, one in there.items() if held not in state and not held.startswith(inside)]
    for name, values in renamed.joined(source, others):
        if name in state and state[name].shape == values.shape:
            state[name].copy_(values)
            made.add(name)
    homeless = {one: there[one] for one in there if there[one] in others and not renamed.is_joined(there[one])}
    check_homes(model, source, {held: name for held, name in homeless.items() if held not in placed.tensors})
    # What is tied to one of them has its numbers.
    filled = {state[name].data_ptr() for name in read | made}
    for name, tensor in state.items():
        if name not in read | made and tensor.data_ptr() not in filled:
            raise MissingTensor(f"{name} is missing: the model has such a tensor")
    for name in read:
        values, held = as_torch(source[there[name]], "cpu"), state[name]
        if not _same_order(values.shape, held.shape):
            raise WrongArgumentShape(
                f"{there[name]} is {list(values.shape)} in the checkpoint, {name} {list(held.shape)} in the model"
            )
        held.copy_(values.reshape(held.shape))


def _same_order(one: Iterable[int], other: Iterable[int]) -> bool:
    """Whether numbers in their order are those of another shape: dimensions of one are several of the other, or
    extents of 1; a matrix is never its transpose."""
    ends = [set(itertools.accumulate(shape, operator.mul, initial=1)) for shape in (one, other)]
    return max(ends[0]) == max(ends[1]) and (ends[0] <= ends[1] or ends[1] <= ends[0])


def _is_module(candidate: object) -> bool:
    return hasattr(candidate, "named_modules") and hasattr(candidate, "state_dict")
