"""Which tensors of a checkpoint are one weight, and in whose form: a table of forms, each told by the ending of a name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.conversion import readers
from tilewright.conversion.readers import Tensors
from tilewright.conversion.settings import Settings, checked_settings
from tilewright.errors import InvalidTensor, MissingTensor
from tilewright.quant.files import CODES, METADATA, SUFFIXES
from tilewright.quant.importers.bitsandbytes import STATES
from tilewright.quant.importers.torchao import PARTS
from tilewright.quant.weight import QuantizedWeight

__all__ = [
    "FORMS", "Form", "Layer", "Settings", "Tensors", "declared_activations", "dense_weights", "extra_tensors",
    "quantization_settings", "read_layer", "recognise",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layer:
    """A quantised weight in a checkpoint.

    Attributes
    ----------
    name : of the layer, as in ``model.layers.0.mlp.up_proj``.
    form : whose form its tensors have.
    main : the tensor with the codes; the weight is converted with the shard that this is in.
    tensors : all that belong to it.
    """

    name: str
    form: str
    main: str
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Form:
    """One way to write a quantised weight.

    Attributes
    ----------
    main : ending of the tensor with the codes.
    others : endings of the tensors that may go with it.
    holds : whether a tensor of that ending is such a weight: by its companions, its type and the settings.
    read : the weights, by name: one, or one an expert.
    methods : what a configuration calls the way of quantising.
    extra : tensors that become others beside the weights, by name: biases of experts.
    """

    main: str
    others: tuple[str, ...]
    holds: Callable[[Tensors, str, Settings], bool]
    read: Callable[[Tensors, str, Settings], dict[str, QuantizedWeight]]
    methods: tuple[str, ...] = field(default=())
    extra: Callable[[Tensors, str], dict[str, np.ndarray]] = lambda tensors, layer: {}


def quantization_settings(config: Mapping[str, Any], where: Any = "the checkpoint") -> Settings:
    """The part of a configuration that is about quantisation, empty where there is none.

    Raises
    ------
    InvalidTensor : it says what cannot be.
    """
    return checked_settings(config, where, {name for form in FORMS.values() for name in form.methods})


def recognise(tensors: Tensors, settings: Settings) -> list[Layer]:
    """The quantised weights among tensors, in the order of their names.

    Raises
    ------
    InvalidTensor : the settings name a way of quantising that cannot be read, or codes belong to no form.
    MissingTensor : scales or zero points belong to no codes.
    """
    method = settings.get("quant_method")
    if method is not None and not any(method in form.methods for form in FORMS.values()):
        known = sorted({name for form in FORMS.values() for name in form.methods})
        raise InvalidTensor(f"the checkpoint is quantised by {method!r}", hint=f"what can be read: {', '.join(known)}")
    _no_rotations(settings)
    found = []
    for name in tensors:
        for form_name, form in FORMS.items():
            layer = name.removesuffix(form.main)
            if name.endswith(form.main) and form.holds(tensors, layer, settings):
                belonging = tuple(layer + ending for ending in (form.main, *form.others) if layer + ending in tensors)
                found.append(Layer(layer, form_name, name, belonging))
                break
    _no_codes_are_left(tensors, found, settings)
    _no_parts_are_left(tensors, found)
    return found


def _no_rotations(settings: Settings) -> None:
    """Whether layers multiply by their weights alone: those of QuaRot and SpinQuant may rotate what comes in and goes out."""
    groups = (settings.get("transform_config") or {}).get("config_groups") or {}
    for name, group in groups.items():
        places = {str(one.get("location")) for one in (group or {}).get("apply") or () if isinstance(one, Mapping)}
        running = sorted(place for place in places if not place.startswith("weight"))
        if running:
            raise InvalidTensor(
                f"the checkpoint rotates activations while it runs (transform_config {name}: {', '.join(running)}), which its layers here do not",
                hint="checkpoints whose rotations are all in the weights can be read",
            )


_ENDINGS = (".weight", ".qweight", ".weight_packed", ".W_q", "_blocks", "._weight_qdata", ".B")
"""Ends of names of tensors that hold codes."""


def _no_codes_are_left(tensors: Tensors, found: list[Layer], settings: Settings) -> None:
    """Whether every tensor of codes belongs to a weight: what nobody reads must not pass for one of floats."""
    taken = {name for layer in found for name in layer.tensors}
    for name in tensors:
        if name in taken or name in readers.blocks_of(tensors):
            continue
        tensor, method = tensors[name], settings.get("quant_method")
        codes = tensor.dtype.kind in "iu" and name.endswith(_ENDINGS)
        if tensor.ndim in (2, 3, 4) and (codes or tensor.dtype.name in _FLOAT8):
            said = f"the configuration says {method}" if method else "the configuration says nothing of quantisation"
            raise InvalidTensor(
                f"{name} is {tensor.dtype.name} {list(tensor.shape)}: codes, but what belongs to them is not there",
                hint=f"{said}; forms that can be read: {', '.join(FORMS)}",
            )


_PARTS = (
    ".qzeros", ".g_idx", ".scaled_zeros", ".SCB", ".nbits", ".weight.absmax", ".weight.quant_map", ".weight_scale", ".weight_scale_inv",
    ".weight_scale_2", ".weight_global_scale", ".weight_zero_point", ".weight_g_idx", "._weight_scale", *(".weight" + state for state in STATES.values()),
)  # fmt: skip
"""Ends of names of tensors that go with codes, and mean nothing alone."""


def _no_parts_are_left(tensors: Tensors, found: list[Layer]) -> None:
    """Whether there are codes to every part of a weight: a layer would be gone in silence."""
    taken = {name for layer in found for name in layer.tensors}
    for name in tensors:
        part = next((ending for ending in _PARTS if name.endswith(ending)), None)
        if part is None and name.endswith("_scales") and tensors[name].dtype.name in ("uint8", "float8_e8m0fnu"):
            part = "_scales"
        if part is None or name in taken:
            continue
        layer = name.removesuffix(part)
        if not any(layer + ending in tensors for ending in _ENDINGS):
            raise MissingTensor(
                f"{name} is there, but no codes are: {layer} has neither {_ENDINGS[0]} nor {', '.join(_ENDINGS[1:])}",
                hint="a shard is missing, or the checkpoint is of another kind",
            )


def read_layer(tensors: Tensors, layer: Layer, settings: Settings) -> dict[str, QuantizedWeight]:
    """The weights of a layer by their names.

    Raises
    ------
    InvalidTensor, MissingTensor : tensors that make no weight of that form.
    """
    try:
        return FORMS[layer.form].read(tensors, layer.name, settings)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        # A reader that lacks a check: its file is to blame all the same, and is named.
        raise InvalidTensor(
            f"{layer.name}: its tensors make no weight of the form {layer.form} ({type(error).__name__}: {error})"
        ) from error


def extra_tensors(tensors: Tensors, layer: Layer) -> dict[str, np.ndarray]:
    """What becomes of a layer's tensors beside its weights, by name."""
    return FORMS[layer.form].extra(tensors, layer.name)


def declared_activations(settings: Settings, layer: str) -> str | None:
    """What the configuration says that a layer's activations are quantised to; None for as they are, or for 4 bits.

    Their static scales are not used: activations are quantised as they come, one scale a token.
    """
    method = settings.get("quant_method")
    if method == "tilewright":
        return settings.get("activations") or settings.get("declared_activations")
    if method == "bitnet":
        return "int8"
    if method in ("fp8", "fbgemm_fp8") or settings.get("quant_algo") in ("FP8", "FP8_PER_CHANNEL_PER_TOKEN"):
        return "float8_e4m3fn"
    for group in (settings.get("config_groups") or {}).values() if method == "compressed-tensors" else ():
        said = (group or {}).get("input_activations")
        if said and said.get("num_bits") == 8 and _targets(group, layer):
            return "int8" if said.get("type", "int") == "int" else "float8_e4m3fn"
    return None


def _targets(group: Mapping[str, Any], layer: str) -> bool:
    """Whether a group of compressed-tensors' means a layer: by its class, its name or a regular expression."""
    targets = group.get("targets") or []
    return any(
        re.match(target[3:], layer) is not None if target.startswith("re:") else target in ("Linear", layer)
        for target in map(str, targets)
    )


def _method(*names: str) -> Callable[[Tensors, str, Settings], bool]:
    return lambda tensors, layer, settings: settings.get("quant_method", names[0]) in names


def _has(*endings: str) -> Callable[[Tensors, str, Settings], bool]:
    return lambda tensors, layer, settings: all(layer + ending in tensors for ending in endings)


def _has_any(*endings: str) -> Callable[[Tensors, str, Settings], bool]:
    return lambda tensors, layer, settings: any(layer + ending in tensors for ending in endings)


def _of_type(ending: str, *types: str) -> Callable[[Tensors, str, Settings], bool]:
    def holds(tensors: Tensors, layer: str, settings: Settings) -> bool:
        return layer + ending in tensors and tensors[layer + ".weight"].dtype.name in types

    return holds


_PACKED = ("compressed-tensors",)
_COMPANIONS = (".weight_scale", ".weight_shape", ".weight_zero_point", ".weight_g_idx")
_STATIC = (".input_scale", ".input_zero_point", ".input_global_scale", ".output_scale", ".k_scale", ".v_scale")
"""Scales of activations that were measured beforehand: activations are quantised as they come, so these go."""
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
_HQQ = (
    "scale", "zero", "nbits", "group_size", "shape", "axis", "packing", "unpack_view_dtype", "view_as_float", "quant_scale",
    "quant_zero", "compute_dtype", "offload_meta", "encoded_state_dict", "stores_quant_config", "channel_wise", "optimize",
    "round_zero",
)  # fmt: skip
_BNB = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", *STATES.values())


def _is_awq(tensors: Tensors, layer: str, settings: Settings) -> bool:
    return settings.get("quant_method") == "awq" or layer + ".scaled_zeros" in tensors


FORMS: dict[str, Form] = {
    "tilewright": Form(f".{CODES}", tuple(f".{s}" for s in SUFFIXES[1:]), _has(f".{METADATA}"), readers.own, ("tilewright",)),
    "awq": Form(".qweight", (".qzeros", ".scaled_zeros", ".scales"), _is_awq, readers.awq, ("awq",)),
    "bitblas": Form(
        ".qweight", (".scales", ".zeros", ".qzeros"), lambda t, n, s: "bitblas" in (s.get("checkpoint_format"), s.get("quant_method")),
        readers.bitblas, ("bitblas",),
    ),
    "gptq-marlin": Form(".B", (".s",), _has(".s"), readers.gptq_marlin, ("gptq", "marlin")),
    "gptq": Form(".qweight", (".qzeros", ".scales", ".g_idx"), _method("gptq"), readers.gptq, ("gptq",)),
    "bitsandbytes": Form(
        ".weight", tuple(".weight" + ending for ending in _BNB), _has_any(*(".weight" + state for state in STATES.values())),
        readers.bitsandbytes, ("bitsandbytes",),
    ),
    "bitsandbytes-int8": Form(
        ".weight", (".SCB", ".weight_format"), _has(".SCB"), readers.bitsandbytes_int8, ("bitsandbytes",)
    ),
    "hqq": Form(".W_q", tuple("." + name for name in _HQQ), _has(".scale", ".zero"), readers.hqq, ("hqq",)),
    "torchao": Form(
        "._weight_qdata", tuple(f"._weight_{part}" for part in PARTS[1:]), _has("._weight_scale"), readers.torchao, ("torchao",)
    ),
    "nvfp4-pack-quantized": Form(
        ".weight_packed", (".weight_scale", ".weight_global_scale", *_STATIC), _has(".weight_scale", ".weight_global_scale"),
        readers.packed_nvfp4, _PACKED,
    ),
    "mx-pack-quantized": Form(
        ".weight_packed", (".weight_scale", *_STATIC),
        lambda t, n, s: n + ".weight_scale" in t and t[n + ".weight_scale"].dtype.name in ("uint8", "float8_e8m0fnu"),
        readers.packed_mx, _PACKED,
    ),
    "pack-quantized": Form(
        ".weight_packed", (*_COMPANIONS, *_STATIC), _has(".weight_scale"), readers.pack_quantized, _PACKED
    ),
    "nvfp4": Form(
        ".weight", (".weight_scale", ".weight_scale_2", *_STATIC), _has(".weight_scale", ".weight_scale_2"), readers.nvfp4,
        ("modelopt",),
    ),
    "int8": Form(".weight", (*_COMPANIONS, *_STATIC), _of_type(".weight_scale", "int8"), readers.int8, _PACKED),
    "fp8": Form(
        ".weight", (".weight_scale", *_STATIC), _of_type(".weight_scale", *_FLOAT8), readers.float8,
        (*_PACKED, "fp8", "fbgemm_fp8", "modelopt"),
    ),
    "fp8-block": Form(
        ".weight", (".weight_scale_inv", ".activation_scale", *_STATIC), _of_type(".weight_scale_inv", *_FLOAT8), readers.float8, ("fp8",)
    ),
    "fp8-plain": Form(
        ".weight", (".scale_weight", ".scale_input"),
        lambda t, n, s: not s and t[n + ".weight"].ndim == 2 and t[n + ".weight"].dtype.name in _FLOAT8, readers.float8,
    ),
    "bitnet": Form(".weight", (".weight_scale",), _of_type(".weight_scale", "uint8"), readers.bitnet, ("bitnet",)),
    "mxfp4": Form(
        "_blocks", ("_scales", "_bias"), _has("_scales"), readers.mxfp4, ("mxfp4",), extra=readers.mxfp4_biases
    ),
    "gguf": Form("", (), lambda tensors, name, settings: name in readers.blocks_of(tensors), readers.gguf),
}  # fmt: skip
"""Forms in the order in which a tensor is tried against them."""


def dense_weights(tensors: Tensors, names: Iterable[str], skip: Callable[[str], bool]) -> list[str]:
    """Layers whose weight is a matrix of floats that a scheme may quantise, by name.

    Parameters
    ----------
    names : of tensors to look at.
    skip : says of a layer's name that it stays as it is.
    """
    found = []
    for name in names:
        layer = name.removesuffix(".weight")
        if layer == name or skip(layer):
            continue
        tensor = tensors[name]
        if (
            tensor.ndim == 2
            and tensor.dtype.name in ("float16", "bfloat16", "float32", "float64")
            and min(tensor.shape) > 1
        ):
            found.append(layer)
    return found
