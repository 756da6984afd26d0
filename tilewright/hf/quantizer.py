"""The quantiser that transformers calls while it loads: dense weights are rounded as they come, stored ones are read by
our readers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.base import HfQuantizer

from tilewright.checkpoints import open_checkpoint, open_files
from tilewright.conversion.checkpoint import skipping
from tilewright.conversion.dequantized import make_dense
from tilewright.conversion.experts import Stack, replace_stack, stacks_to_quantize
from tilewright.conversion.gathered_experts import GatheredExperts
from tilewright.conversion.joined import JoinedLayers
from tilewright.conversion.layers import recognise
from tilewright.conversion.model import place_weights
from tilewright.conversion.modules import (
    is_transposed,
    layers_to_quantize,
    needing_numbers,
    quantised_modules,
    replace_layer,
)
from tilewright.conversion.names import keep_names, names_in
from tilewright.conversion.remade import settings_of
from tilewright.conversion.schemes import QuantizationScheme
from tilewright.errors import CannotQuantize, MissingTensor
from tilewright.formats import SCHEMES, number_format
from tilewright.hf.config import QuantizationConfig
from tilewright.matmul.arrays import as_torch
from tilewright.matmul.packed import PackedWeight
from tilewright.memory import give_back
from tilewright.progress import Progress


class TilewrightQuantizer(HfQuantizer):
    """Loads transformers' models with `tilewright.Linear` in the places of linear layers.

    transformers loads what is not quantised, in its way: names, types, devices, ties. A dense weight that a scheme
    takes is rounded when transformers has read it, so that at most one is in memory. Quantised weights of a checkpoint
    are not loaded by transformers at all: their layers stand aside (`_Aside`) until everything else is there, and our
    readers fill them then, one after the other.
    """

    quantization_config: QuantizationConfig

    def __init__(self, quantization_config: QuantizationConfig, **kwargs: object) -> None:
        super().__init__(quantization_config, **kwargs)
        self._dense: _Dense | None = None
        self._stored: _Stored | None = None
        self._unfilled: Unfilled | None = None

    def _process_model_before_weight_loading(
        self, model: object, checkpoint_files: list[str] | None = None, **kwargs: object
    ) -> None:
        scheme, self._unfilled = self.quantization_config.scheme, Unfilled(model)
        if scheme is not None:
            self._dense = _Dense(model, scheme, self.quantization_config.skip)
        else:
            self._stored = _Stored(model, checkpoint_files or [], self.quantization_config.activations)
            self._unfilled.later = self._stored.filled.keys()

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        if self._unfilled is not None:
            self._unfilled.check()
        if self._dense is not None:
            self._dense.put_in_place()
        if self._stored is not None:
            self.quantization_config.activations = self._stored.put_in_place()
        self._dense = self._stored = self._unfilled = None
        keep_names(model, quantised_modules(model))
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.is_meta and getattr(model.get_submodule(name.rpartition(".")[0]), "_hf_hook", None) is None:
                raise MissingTensor(f"{name} is missing: the model has such a tensor, and no file gave it numbers")
        return model

    def param_needs_quantization(self, model: object, param_name: str, **kwargs: object) -> bool:
        return self._dense is not None and param_name in self._dense

    def param_element_size(self, model: object, param_name: str, param: torch.Tensor) -> float:
        if self._dense is not None and param_name in self._dense:
            return self._dense.bytes_each
        return float(param.element_size())

    def get_quantize_ops(self) -> ConversionOps:
        assert self._dense is not None
        return _Round(self._dense)

    def _dequantize(
        self, model: transformers.PreTrainedModel, dtype: torch.dtype | str | None = None
    ) -> transformers.PreTrainedModel:
        make_dense(model, dtype)
        return model

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        """Adapters can be trained: there are gradients for activations."""
        return True

    @property
    def is_compileable(self) -> bool:
        return True


class _Dense:
    """Layers of a model whose dense weights a scheme takes, and what has become of those that were read."""

    def __init__(self, model: Any, scheme: QuantizationScheme, skip: Any) -> None:
        self.model, self.scheme = model, scheme
        stays = skipping("skip", skip, (name for name, _ in model.named_modules() if name))
        tied = {name.removesuffix(".weight") for name in getattr(model, "all_tied_weights_keys", {})}
        self.stacks = stacks_to_quantize(model, stays)
        self.layers = {
            name: layer
            for name, layer in layers_to_quantize(model, stays, bool(self.stacks)).items()
            if name not in tied
        }
        # Packed: codes of a byte each, of all layers together, would be several times the model that comes of them.
        self._made: dict[str, tuple[list[PackedWeight], torch.device]] = {}

    @property
    def bytes_each(self) -> float:
        """Of a number, its part of the scales included."""
        known = SCHEMES.get(self.scheme.format)
        of = number_format(self.scheme.format) if known is None else known.format
        return of.bits / 8 + 2 / (self.scheme.group or 4096)

    def __contains__(self, name: str) -> bool:
        owner, _, last = name.rpartition(".")
        return (owner in self.layers and last == "weight") or (
            owner in self.stacks and last in self.stacks[owner].names
        )

    def take(self, name: str, values: torch.Tensor) -> None:
        """Round a weight that was read.  Raises CannotQuantize."""
        owner = name.rpartition(".")[0]
        if owner in self.layers:
            rows = [values.T if is_transposed(self.layers[owner]) else values]
        else:
            rows = [one.T if self.stacks[owner].columns else one for one in values]
        named = [name if len(rows) == 1 else f"{name}[{number}]" for number in range(len(rows))]
        self._made[name] = [self.scheme.pack(row, one) for one, row in zip(named, rows)], values.device
        # accelerate moves all that a layer has to its device before ours is in its place: as large a tensor, without
        # memory, stands for what is not there any more.
        empty = torch.nn.Parameter(values.new_empty(()).expand(values.shape), requires_grad=False)
        empty.__dict__["_is_hf_initialized"] = True
        self.model.get_submodule(owner)._parameters[name.rpartition(".")[2]] = empty
        give_back()

    def put_in_place(self) -> None:
        """Replace the layers whose weights were read; those of others are transformers' own, which says so."""
        for name, layer in self.layers.items():
            if f"{name}.weight" in self._made:
                load_offloaded(layer)
                (weight,), device = self._made.pop(f"{name}.weight")
                replace_layer(self.model, name, layer, weight, self.scheme.activations, device)
                give_back()
        for name, stack in self.stacks.items():
            self._put_stack(name, stack)

    def _put_stack(self, name: str, stack: Stack) -> None:
        there = [f"{name}.{one}" in self._made for one in stack.names]
        if not any(there):
            return
        if not all(there):
            raise MissingTensor(f"{name} has one of {' and '.join(stack.names)} in the checkpoint: both are due")
        load_offloaded(stack.module)
        made = {one: self._made.pop(f"{name}.{one}") for one in stack.names}
        biases = {one: stack.bias(one) for one in stack.names}
        device = next(iter(made.values()))[1]
        weights = {one: packed for one, (packed, _) in made.items()}
        replace_stack(self.model, name, stack, weights, biases, self.scheme.activations, device)


def load_offloaded(module: Any) -> None:
    """Have the numbers of a module that accelerate keeps on a disk, its bias among them."""
    kept = getattr(getattr(module, "_hf_hook", None), "weights_map", None) or {}
    for name, tensor in module._parameters.items():
        if tensor is not None and tensor.is_meta and name in kept:
            module._parameters[name] = torch.nn.Parameter(kept[name].to(tensor.dtype), requires_grad=False)


class _Round(ConversionOps):
    """Rounds weights that transformers has read, in its list of operations."""

    def __init__(self, dense: _Dense) -> None:
        self._of = dense

    def convert(
        self, input_dict: Mapping[str, Any], *args: object, missing_keys: set[str] | None = None, **kwargs: object
    ) -> dict[str, Any]:
        left = {}
        for name, value in input_dict.items():
            values = value[0] if isinstance(value, list) else value
            if name not in self._of:
                left[name] = value
                continue
            self._of.take(name, values)
            if missing_keys is not None:
                missing_keys.discard(name)
        return left


class _Aside(torch.nn.Module):
    """In the place of a layer while transformers loads the others: as large, on the same device, with its bias if it
    has one, and with its sizes, by which models initialise the layers around it."""

    room: torch.Tensor

    def __init__(self, layer: Any, size: int, with_bias: bool) -> None:
        super().__init__()
        self.register_buffer("room", torch.empty(size, dtype=torch.uint8, device="meta"), persistent=False)
        self.bias = layer.bias if with_bias else None
        self.__dict__ |= {name: value for name, value in vars(layer).items() if not name.startswith("_")}
        for name, tensor in layer._parameters.items():  # models initialise parts of their parts by name
            if tensor is not None and name != "bias":
                self.__dict__[name] = torch.empty_like(tensor, device="meta")
                self.__dict__[name]._is_hf_initialized = True


class _Stored:
    """The quantised weights of a checkpoint, and the layers of a model that stand aside for them.

    Attributes
    ----------
    aside : layers and experts by name, and what stands in their places.
    filled : dense tensors of the model that get the numbers of codes when all others are there, as they were before: a
        file may have codes under their names, or what describes codes, and transformers before 5.20 loads that.
    """

    def __init__(self, model: Any, files: list[str], activations: Any) -> None:
        if not files:
            raise CannotQuantize(
                "there are no files to take quantised weights from", hint="from_pretrained takes a directory or a name"
            )
        self.model, self.activations = model, activations if isinstance(activations, str) else None
        first = Path(files[0])
        stored = first.suffix == ".safetensors"
        self.source = open_files([*map(Path, files)]) if stored else open_checkpoint(first)
        self.settings = settings_of(self.source)
        self.found = recognise(self.source, self.settings)
        if not self.found:
            raise CannotQuantize(
                f"{first.parent} has no quantised weight", hint="QuantizationConfig(scheme) rounds dense ones"
            )
        self.renamed = names_in(model, self.source)
        self.aside: dict[str, tuple[Any, _Aside]] = {}
        self.filled: dict[str, torch.Tensor] = {}
        experts, modules = GatheredExperts(model), dict(model.named_modules())
        of_numbers = needing_numbers(modules)
        joined = JoinedLayers(self.renamed, (layer.name for layer in self.found))
        places = {layer.name: joined.places(layer.name) for layer in self.found}
        for layer in self.found:
            size = sum(self.source[tensor].nbytes for tensor in layer.tensors) // len(places[layer.name])
            for name in places[layer.name]:
                owner = experts.owner(name) or (name if name in modules else None)
                if owner is None:
                    continue  # which place_weights has a word about
                if owner in of_numbers:
                    self.filled[f"{owner}.weight"] = torch.empty_like(modules[owner].weight, device="meta")
                    modules[owner]._is_hf_initialized = True  # RWKV's initialiser would ask for two dimensions
                elif owner not in self.aside:
                    self.aside[owner] = modules[owner], _Aside(modules[owner], size, owner == name)
                    self._put(owner, self.aside[owner][1])
        taken, held = {name for layer in self.found for name in layer.tensors}, dict(model.named_parameters())
        made = {self.renamed(name) for name in self.source.made if name not in taken} & held.keys()
        self.filled |= {name: torch.empty_like(held[name], device="meta") for name in made}
        # transformers would report them as tensors that nobody has asked for.
        ignored = {f"^{re.escape(name)}$" for one in taken for name in (one, self._renamed_tensor(one))}
        ignored |= {f"^{re.escape(name)}(\\.|$)" for name in self.aside}
        ignored |= {f"^{re.escape(name)}\\." for names in places.values() for name in names}
        model._keys_to_ignore_on_load_unexpected = set(model._keys_to_ignore_on_load_unexpected or ()) | ignored

    def _renamed_tensor(self, name: str) -> str:
        owner, _, last = name.rpartition(".")
        return f"{self.renamed(owner)}.{last}"

    def _put(self, name: str, module: torch.nn.Module) -> None:
        parent, _, last = name.rpartition(".")
        setattr(self.model.get_submodule(parent), last, module)

    def put_in_place(self) -> Any:
        """Fill the layers; what activations are quantised to."""
        devices: dict[str, torch.device] = {}
        for name, (old, aside) in self.aside.items():
            devices[name] = aside.room.device
            load_offloaded(aside)
            if aside.bias is not None:
                old.bias = aside.bias
            self._put(name, old)
        for name, before in self.filled.items():
            held = self.model.get_parameter(name)
            if held.shape != before.shape:
                held.requires_grad_(False).data = torch.empty_like(before, device=held.device)
        with Progress(len(self.found)) as bar:
            placed = place_weights(
                self.model, self.source, self.found, self.settings, self.activations, bar, self.renamed, devices
            )
        for name in self.filled.keys() & placed.tensors.keys():
            held = self.model.get_parameter(name)
            held.requires_grad_(False).data = held.data.to(self.filled[name].dtype)
        state = self.model.state_dict()
        for name, values in placed.tensors.items():
            state[name].copy_(as_torch(values, "cpu"))
        return placed.said


class Unfilled:
    """Listens to what transformers finds missing while it loads a model.

    Parameters
    ----------
    model : that is about to be loaded.

    Attributes
    ----------
    later : tensors of the model that are filled afterwards; what files have under their names is none of transformers'.
    """

    def __init__(self, model: Any) -> None:
        self.model, self.missing = model, set[str]()
        self.later: Collection[str] = ()
        adjust = model._adjust_missing_and_unexpected_keys

        def told(found: Any) -> None:
            adjust(found)
            found.missing_keys -= set(self.later)
            found.mismatched_keys = {one for one in found.mismatched_keys if one[0] not in self.later}
            self.missing = set(found.missing_keys)

        model._adjust_missing_and_unexpected_keys = told

    def check(self) -> None:
        """All that is missing is new: a part that the stored model has not. Raises MissingTensor where the files lack a
        tensor of the very model that they hold."""
        self.model.__dict__.pop("_adjust_missing_and_unexpected_keys", None)
        missing = sorted(self.missing - self._new(self.missing))
        if not missing:
            return
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise MissingTensor(
            f"{', '.join(missing[:4])}{more}: the model has such tensors, and no file gave them numbers",
            hint="a file of the checkpoint is missing or incomplete, or its tensors are called otherwise",
        )

    def _new(self, names: set[str]) -> set[str]:
        """Those of names of the model's that the stored model has not: a head for another task."""
        stored = next(iter(getattr(self.model.config, "architectures", None) or ()), None)
        of = getattr(transformers, stored or "", None)
        if not names or of is None or stored == type(self.model).__name__:
            return set()
        with torch.device("meta"):
            known = {_inside(name, of.base_model_prefix) for name in of(self.model.config).state_dict()}
        return {name for name in names if _inside(name, self.model.base_model_prefix) not in known}


def _inside(name: str, prefix: str) -> str:
    """A tensor's name without the base model's, which a model with a head puts before it."""
    return name.removeprefix(f"{prefix}.")
