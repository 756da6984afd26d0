"""The linear layers of torch models: which they are, what they hold, and what takes their places."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from tilewright.conversion.choices import LOOKED_UP, SKIPPED_BY_NAME
from tilewright.conversion.counting import count_codes
from tilewright.conversion.linear_checks import borrowed_weights, computes_as_linear, quantised_elsewhere
from tilewright.conversion.methods import OURS
from tilewright.conversion.names import keep_names
from tilewright.errors import CannotQuantize, MissingTensor, WrongArgumentShape, an
from tilewright.libraries import torch
from tilewright.matmul.packed import PackedWeight
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.tensors import Array

_HOOKS = (
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)  # fmt: skip


def is_linear(module: object) -> bool:
    """Whether a module multiplies by a matrix and does nothing else.

    That is `torch.nn.Linear` itself, the ``Conv1D`` of GPT-2, and a subclass of the first that computes the same:
    others have some for the sake of rounding or of a name.
    """
    if is_transposed(module):
        return True
    if not isinstance(module, torch.nn.Linear) or quantised_elsewhere(module) is not None:
        return False
    return type(module) is torch.nn.Linear or computes_as_linear(module)


def needing_numbers(modules: Mapping[str, object]) -> set[str]:
    """Names of the modules of a model that cannot hold codes: they look rows up, compute in their own way (routers), or
    another computes with their weight."""
    return borrowed_weights(modules) | {name for name, module in modules.items() if _is_no_product(module)}


def _is_no_product(module: Any) -> bool:
    matrix = module._parameters.get("weight")
    of_numbers = matrix is not None and matrix.ndim == 2 and matrix.is_floating_point() and matrix.element_size() > 1
    other = isinstance(module, torch.nn.Linear) or not hasattr(module, "in_features")  # another library's layer has
    return of_numbers and other and not is_linear(module)


def is_transposed(module: object) -> bool:
    """The ``Conv1D`` of GPT-2, whose weight is ``[K, N]``."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def layer_shape(module: Any) -> tuple[int, int]:
    """N and K of a linear layer of any kind."""
    if is_transposed(module):
        return int(module.weight.shape[1]), int(module.weight.shape[0])
    return int(module.out_features), int(module.in_features)


def weight_of(module: Any) -> Any:
    """The weight ``[N, K]`` of a linear layer, where it is."""
    weight = module.weight.detach()
    return weight.T if is_transposed(module) else weight


def layers_to_quantize(model: torch.nn.Module, skip: re.Pattern[str], others: bool = False) -> dict[str, Any]:  # layers
    """The linear layers of a model by name, without those that stay (`why_layers_stay`). Raises CannotQuantize where
    there is none, and says what there is instead; `others` says that there are experts to quantise, so that this is no
    error."""
    from tilewright.nn import Linear

    reasons = why_layers_stay(model, skip)
    modules = dict(model.named_modules())
    found = {name: modules[name] for name, reason in reasons.items() if reason is None}
    if found or others:
        return found
    of_linear = {name for name, module in modules.items() if isinstance(module, torch.nn.Linear) or is_linear(module)}
    linear = {name: reason for name, reason in reasons.items() if {name, name.rpartition(".")[0]} & of_linear}
    skipped = [name for name, reason in linear.items() if reason == SKIPPED_BY_NAME]
    if any(isinstance(module, Linear) for module in modules.values()):
        hint = "its layers are quantised already"
    elif skipped:
        hint = f"skip= names all it has: {', '.join(skipped[:3])}"
    elif linear:
        hint = ": ".join(map(str, next(iter(linear.items()))))
    else:
        kinds = {
            type(module).__name__ for module in modules.values() if next(module.parameters(False), None) is not None
        }
        hint = (
            f"torch.nn.Linear can be quantised; its parameters belong to {', '.join(sorted(kinds)[:5]) or 'no module'}"
        )
    raise CannotQuantize("the model has no linear layer to quantise", hint=hint)


def why_layers_stay(model: torch.nn.Module, skip: re.Pattern[str]) -> dict[str, str | None]:
    """Why each module with a matrix stays as it is, by its name; None for the linear layers that can be quantised.

    A parameter that is not called ``weight`` has a line of its own: experts in three dimensions, tables that a model
    looks up itself.
    """
    modules = dict(model.named_modules())
    embedded = {id(module.weight) for module in modules.values() if isinstance(module, torch.nn.Embedding)}
    whole = set(getattr(model, "_keep_in_fp32_modules", None) or ())  # layers whose results are beyond half precision
    reasons: dict[str, str | None] = {}
    taken = borrowed_weights(modules)
    for name, module in modules.items():
        if not name or not is_linear(module):
            for key, tensor in module._parameters.items():
                if tensor is not None and tensor.ndim > 1:
                    full = name if name and key == "weight" else f"{name}.{key}".lstrip(".")
                    reasons[full] = SKIPPED_BY_NAME if skip.search(full) else _why_not_linear(module, key)
        elif id(module.weight) in embedded:
            reasons[name] = "its weight is that of an embedding"
        elif skip.search(name):
            reasons[name] = SKIPPED_BY_NAME
        elif whole & set(name.split(".")):
            reasons[name] = "the model keeps it in float32"
        elif _is_of_an_adapter(name, modules):
            reasons[name] = "an adapter's"
        elif name in taken:
            reasons[name] = "another module computes with its weight, and does not call it"
        else:
            reasons[name] = None
    return reasons


def _why_not_linear(module: object, parameter: str) -> str:
    """Why a matrix of a module stays that is no linear layer."""
    kind = type(module).__name__
    if isinstance(module, torch.nn.Embedding):
        return LOOKED_UP
    if isinstance(module, torch.nn.Linear):
        more = quantised_elsewhere(module)
        if more is not None:
            return f"{kind} has {more}: another library's, quantised already"
        return f"{kind} computes something else than torch.nn.Linear"
    if getattr(module, parameter).ndim == 3 and parameter != "weight":
        return f"experts, if it is, that {kind} multiplies in no way that is known here"
    return f"{kind} is no linear layer" if parameter == "weight" else f"a parameter of {kind}"


def _is_of_an_adapter(name: str, modules: Mapping[str, object]) -> bool:
    """Whether a layer is what PEFT has put beside another: those are trained, and small."""
    tuners = sys.modules.get("peft.tuners.tuners_utils")
    parts = name.split(".")
    owners = [".".join(parts[:end]) for end in range(1, len(parts))]
    inner = [owner for owner in owners if tuners is not None and isinstance(modules[owner], tuners.BaseTunerLayer)]
    return bool(inner) and parts[inner[-1].count(".") + 1] != "base_layer"


def name_what_is_left(model: torch.nn.Module) -> None:
    """Warn where most of a model's numbers are in tensors of three dimensions."""
    stacked = {name: parameter.numel() for name, parameter in model.named_parameters() if parameter.ndim == 3}
    if 2 * sum(stacked.values()) > sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers())):
        warnings.warn(
            f"{len(stacked)} tensors of experts stay as they are, {next(iter(stacked))} among them: their module "
            "computes in no "
            "way that is known here. tilewright.PackedExperts and grouped_matmul are for those",
            stacklevel=3,
        )


def made_layer(old: Any, weight: PackedWeight, activations: str | None, device: Any = None) -> Any:
    """A `tilewright.Linear` for a layer, with its bias, its mode and its hooks, on the device given, else where the old
    one is, or on the processor for one without memory."""
    from tilewright.nn import Linear

    tensors = (*old.parameters(), *old.buffers())
    device = device or next((tensor.device for tensor in tensors if not tensor.is_meta), torch.device("cpu"))
    bias = old.bias
    if bias is not None and bias.is_meta:  # it is filled from the file
        bias = torch.full_like(bias, torch.nan, device=device)
    made = Linear.from_packed(weight, bias, activations=activations, device=device)
    if getattr(old.weight, "dtype", torch.uint8).is_floating_point:
        made.dense_dtype = old.weight.dtype
    take_hooks(old, made)
    return made


def take_hooks(old: Any, made: Any) -> None:
    """Give a module the hooks and the mode of the one in whose place it stands."""
    for kind in _HOOKS:
        # torch's own normalisations of weights are hooks that write the weight: it has been taken as they left it.
        kept = {key: hook for key, hook in getattr(old, kind).items() if getattr(hook, "name", "") != "weight"}
        getattr(made, kind).update(kept)
    made.train(old.training)
    _take_places(old, made)


def _take_places(old: object, made: object) -> None:
    """Give a module the hook by which accelerate brings a module's inputs, or its numbers, to a device.

    Numbers that are kept elsewhere between calls, codes among them, come to a GPU for a call. Where processors compute,
    they stay in memory: there is nowhere else for them to come from.
    """
    hooks = sys.modules.get("accelerate.hooks")
    hook = getattr(old, "_hf_hook", None)
    if hooks is None or hook is None:
        return
    for one in getattr(hook, "hooks", (hook,)):
        if not isinstance(one, hooks.AlignDevicesHook) or (one.offload and str(one.execution_device) == "cpu"):
            continue
        hooks.add_hook_to_module(
            made,
            hooks.AlignDevicesHook(
                execution_device=one.execution_device,
                offload=one.offload,
                io_same_device=one.io_same_device,
                offload_buffers=one.offload,
                skip_keys=one.skip_keys,
            ),
            append=True,
        )


def replace_layer(
    model: torch.nn.Module,
    name: str,
    old: torch.nn.Module,
    weight: PackedWeight,
    activations: str | None,
    device: object = None,
) -> None:
    """Put a `tilewright.Linear` in the place of a layer, under all names that it has."""
    put_in_place(model, name, old, made_layer(old, weight, activations, device))


def put_in_place(model: torch.nn.Module, name: str, old: torch.nn.Module, made: torch.nn.Module) -> None:
    """Put a module in the place of another, under all names that it has, with its mode and its hooks."""
    take_hooks(old, made)
    others = [other for other, module in model.named_modules(remove_duplicate=False) if module is old and other != name]
    for one in (name, *others):
        parent, _, last = one.rpartition(".")
        setattr(model.get_submodule(parent), last, made)


def check_place(name: str, module: object, weight: QuantizedWeight) -> None:
    """A module can be replaced by a layer with a weight of a checkpoint. Raises MissingTensor where it is no linear
    layer, WrongArgumentShape where it is of another shape."""
    if module is None or not (hasattr(module, "in_features") or is_linear(module)):
        what = "no such linear layer" if module is None else f"{an(type(module).__name__)} there"
        raise MissingTensor(
            f"the checkpoint has a quantised weight {name}, the model {what}",
            hint="are its layers named as in the checkpoint? experts in one tensor are for tilewright.PackedExperts",
        )
    if layer_shape(module) != weight.shape:
        raise WrongArgumentShape(
            f"{name} is {list(weight.shape)} in the checkpoint, {list(layer_shape(module))} in the model"
        )


def give_memory(model: Any) -> None:  # of transformers, perhaps
    """Give memory to the tensors of a model that are on the meta device, so that they can be filled; tied ones stay
    tied.

    Buffers that no file holds are worked out by the model, where it says how (transformers' ``_init_weights``). Raises
    MissingTensor for one that nobody works out.
    """
    made: dict[int, tuple[Array, Array]] = {}
    for prefix, module in model.named_modules():
        alone = [name for name in sorted(module._non_persistent_buffers_set) if _is_meta(module._buffers.get(name))]
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if not _is_meta(tensor):
                    continue
                if id(tensor) not in made:
                    empty = torch.empty_like(tensor, device="cpu")
                    if name in alone and empty.is_floating_point():
                        empty.fill_(torch.nan)
                    if isinstance(tensor, torch.nn.Parameter):
                        empty = torch.nn.Parameter(empty, requires_grad=tensor.requires_grad)
                    made[id(tensor)] = tensor, empty
                held[name] = made[id(tensor)][1]
        if alone and callable(getattr(model, "_init_weights", None)):
            with torch.device("cpu"):  # whatever torch makes tensors on
                model._init_weights(module)
        for name in alone:
            if not module._buffers[name].is_floating_point() or module._buffers[name].isnan().any():
                raise MissingTensor(
                    f"{prefix}.{name} is on the meta device, and files hold no such buffer".lstrip("."),
                    hint="make the model where its buffers are worked out (accelerate.init_empty_weights leaves "
                    "them), or set it first",
                )


def _is_meta(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and tensor.is_meta


def say_so(model: Any, activations: str | Mapping[str, str | None] | None) -> None:  # of transformers, perhaps
    """Write into a transformers model's configuration, which is saved with it, whose its weights are now.

    Without a ``quant_method``: transformers passes over one that it does not know, and would give a model of random
    weights.
    """
    if callable(getattr(getattr(model, "config", None), "to_dict", None)):
        model.config.quantization_config = our_settings(activations)
        keep_names(model, quantised_modules(model))
        count_codes()


def quantised_modules(model: torch.nn.Module) -> list[str]:
    """The names of a model's modules that hold codes."""
    from tilewright.nn import Experts, ExpertWeights, Linear

    return [name for name, module in model.named_modules() if isinstance(module, (Linear, Experts, ExpertWeights))]


def our_settings(activations: str | Mapping[str, str | None] | None = None) -> dict[str, Any]:  # JSON
    """What a configuration says of weights of ours; and what activations are quantised to, for all layers or by their
    names."""
    made: dict[str, Any] = {"quantized_by": OURS, "version": 1}
    return made if activations is None else {**made, "activations": activations}
