"""Which tensors of a checkpoint are one weight, and in whose form: a table of forms, each told by the ending of a
name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tilewright.conversion import float_readers as floats
from tilewright.conversion import readers
from tilewright.conversion.choices import LOOKED_UP, SKIPPED_BY_NAME
from tilewright.conversion.declared import check_declared
from tilewright.conversion.readers import Tensors
from tilewright.conversion.settings import Settings
from tilewright.conversion.settings import declared_activations as settings_activations
from tilewright.conversion.unread_tensors import Layer, ReadTensors, check_unread
from tilewright.errors import InvalidTensor, TilewrightError
from tilewright.quant.files import CODES, METADATA, METADATA_BEFORE, SUFFIXES, read_weight
from tilewright.quant.importers import (
    from_eetq,
    from_marlin,
    from_marlin_24,
    from_nvfp4,
    from_qqq,
    read_bitsandbytes,
    read_hqq,
    read_sinq,
    read_torchao,
)
from tilewright.quant.importers.arrays import FLOATS
from tilewright.quant.importers.assemble import smoothed
from tilewright.quant.importers.bitsandbytes import STATES
from tilewright.quant.importers.torchao import PARTS, torchao_activations
from tilewright.quant.weight import QuantizedWeight

__all__ = [
    "FORMS", "Form", "Layer", "Settings", "Tensors", "declared_activations", "extra_tensors",
    "is_column_major", "is_looked_up", "read_layer", "recognise", "why_dense_stay",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Form:
    """One way to write a quantised weight.

    Attributes
    ----------
    main : ending of the tensor with the codes.
    others : endings of the tensors that may go with it.
    holds : whether a tensor of that ending is such a weight: by its companions, its type and the settings.
    read : the weight, or weights by name, one an expert.
    methods : what a configuration calls the way of quantising.
    extra : tensors that become others beside the weights, by name: biases of experts.
    """

    main: str
    others: tuple[str, ...]
    holds: Callable[[Tensors, str, Settings], bool]
    read: Callable[[Tensors, str, Settings], readers.Weights]
    methods: tuple[str, ...] = field(default=())
    extra: Callable[[Tensors, str], dict[str, np.ndarray]] = lambda tensors, layer: {}


def recognise(tensors: Tensors, settings: Settings) -> list[Layer]:
    """The quantised weights among tensors, in the order of their names. Raises as `check_unread`."""
    method = settings.get("quant_method")
    # A form that some way of quantising has is none of another's: the same types of tensors may mean other numbers
    # there.
    tried = [(one, form) for one, form in FORMS.items() if not (method and form.methods and method not in form.methods)]
    found = []
    for name in tensors:
        for form_name, form in tried:
            layer = name.removesuffix(form.main)
            if name.endswith(form.main) and form.holds(tensors, layer, settings):
                belonging = tuple(layer + ending for ending in (form.main, *form.others) if layer + ending in tensors)
                found.append(Layer(layer, form_name, name, belonging))
                break
    check_unread(tensors, found, settings, FORMS)
    return found


def read_layer(tensors: Tensors, layer: Layer, settings: Settings) -> dict[str, QuantizedWeight]:
    """The weights of a layer by their names. Raises InvalidTensor, MissingTensor for tensors that make no weight of
    that form."""
    tensors = ReadTensors(tensors)
    try:
        found = FORMS[layer.form].read(tensors, layer.name, settings)
        check_declared(found, layer.name, settings)
        if isinstance(found, QuantizedWeight):  # activations may be multiplied by modelopt's factors first
            factors = f"{layer.name}.pre_quant_scale"
            there = factors in layer.tensors and settings.get("quant_method") == "modelopt"
            found = {layer.name: smoothed(found, tensors[factors] if there else None, factors)}
        tensors.check(layer, NOT_READ)
        return found
    except TilewrightError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        # A reader that lacks a check: its file is to blame all the same, and is named.
        raise InvalidTensor(
            f"{layer.name}: its tensors make no weight of the form {layer.form} ({type(error).__name__}: {error})"
        ) from error


def extra_tensors(tensors: Tensors, layer: Layer) -> dict[str, np.ndarray]:
    """What becomes of a layer's tensors beside its weights, by name."""
    return FORMS[layer.form].extra(tensors, layer.name)


def declared_activations(tensors: Tensors, layer: Layer, settings: Settings) -> str | None:
    """What a checkpoint says that a layer's activations are quantised to; None for as they are, or for 4 bits."""
    if layer.form == "torchao":
        return torchao_activations(layer.name, getattr(tensors, "metadata", {}))
    return settings_activations(settings, layer.name)


def _has(*endings: str) -> Callable[[Tensors, str, Settings], bool]:
    return lambda tensors, layer, settings: all(layer + ending in tensors for ending in endings)


def _has_any(*endings: str) -> Callable[[Tensors, str, Settings], bool]:
    return lambda tensors, layer, settings: any(layer + ending in tensors for ending in endings)


def _of_type(ending: str, *types: str) -> Callable[[Tensors, str, Settings], bool]:
    def holds(tensors: Tensors, layer: str, settings: Settings) -> bool:
        return layer + ending in tensors and tensors[layer + ".weight"].dtype.name in types

    return holds


_PACKED = ("compressed-tensors", "auto-round")
_COMPANIONS = (".weight_scale", ".weight_shape", ".weight_zero_point", ".weight_g_idx")
_STATIC = (
    ".input_scale", ".input_zero_point", ".input_global_scale", ".input_scale_ub", ".output_scale",
    ".output_zero_point", ".q_scale", ".k_scale", ".v_scale", ".k_zero_point", ".v_zero_point", ".k_bias", ".v_bias",
)  # fmt: skip
"""Scales of activations, keys and values that were measured beforehand: these are quantised as they come, or kept, so
the scales go."""
NOT_READ = (
    *_STATIC, ".activation_scale", ".qscale_act", ".scale_input", ".act_global_scale", ".backward_hadamard_matrix",
    "._weight_act_quant_scale", "._weight_act_quant_zero_point", "._weight_act_per_tensor_scale", "_bias",
    *(f"{start}.{word}" for start in ("", ".meta") for word in ("compute_dtype", "unpack_view_dtype", "view_as_float")),
    *(f".{word}" for word in ("offload_meta", "encoded_state_dict", "stores_quant_config", "channel_wise", "optimize")),
    ".round_zero", ".meta.group_size",
)  # fmt: skip
"""Endings of tensors that forms know and whose numbers no weight needs: the static scales, what training takes, biases
that go beside the weights, and what HQQ and SINQ say of how a weight was found or is run. Whatever else a form knows
and its reader does not look at is an error."""
_SMOOTHED = (".pre_quant_scale", *_STATIC)
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
_BLOCKED = ("fp8", "mxfp8", "w4afp8")
_SCALES_OF_FP8 = (".weight_scale_inv", ".scale", ".qscale_weight")
"""Names of one thing: DeepSeek's, DeepSeek V4's, Mistral's."""
_HQQ = (
    "scale", "zero", "nbits", "group_size", "shape", "axis", "packing", "unpack_view_dtype", "view_as_float",
    "quant_scale", "quant_zero", "compute_dtype", "offload_meta", "encoded_state_dict", "stores_quant_config",
    "channel_wise", "optimize", "round_zero",
)  # fmt: skip
_SINQ = (
    "nbits", "group_size", "shape", "scale", "scale.x", "scale.s", "scale.m", "scale.shape", "zero", "zero.x", "zero.s",
    "zero.m", "zero.shape", "scale2", "axis", "packing", "method", "compute_dtype", "unpack_view_dtype",
    "view_as_float",
)  # fmt: skip
_BNB = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", *STATES.values())


def _is_awq(tensors: Tensors, layer: str, settings: Settings) -> bool:
    return settings.get("quant_method") == "awq" or layer + ".scaled_zeros" in tensors


def _is_nvfp4(tensors: Tensors, layer: str, settings: Settings) -> bool:
    scale = layer + ".weight_scale"
    return scale in tensors and f"{scale}_2" in tensors and tensors[scale].dtype.name not in FLOATS


def _is_fp8(tensors: Tensors, layer: str, settings: Settings) -> bool:
    of_bytes = settings.get("expert_dtype") == "fp4" or settings.get("quant_method") == "w4afp8"
    types = (*_FLOAT8, "int8", "uint8") if of_bytes else _FLOAT8
    return any(_of_type(scale, *types)(tensors, layer, settings) for scale in _SCALES_OF_FP8)


def _is_modelopt_int4(tensors: Tensors, layer: str, settings: Settings) -> bool:
    return settings.get("quant_method") == "modelopt" and _of_type(".weight_scale", "uint8")(tensors, layer, settings)


FORMS: dict[str, Form] = {
    "tilewright": Form(f".{CODES}", tuple(f".{s}" for s in SUFFIXES[1:]),
        _has_any(f".{METADATA}", f".{METADATA_BEFORE}"), lambda t, n, s: read_weight(t, n),
        ("tilewright",)),
    "awq": Form(".qweight", (".qzeros", ".scaled_zeros", ".scales"), _is_awq, readers.awq, ("awq",)),
    "bitblas": Form(
        ".qweight", (".scales", ".zeros", ".qzeros"), lambda t, n,
        s: "bitblas" in (s.get("checkpoint_format"), s.get("quant_method")),
        readers.bitblas, ("bitblas", "gptq", "awq"),
    ),
    "gptq-marlin": Form(".B", (".s",), _has(".s"),
        lambda t, n, s: from_marlin(t[n + ".B"], t[n + ".s"], bits=s.get("bits", 4), name=n), ("gptq", "marlin")),
    "gptq-marlin-24": Form(".B_24", (".s", ".B_meta"), _has(".s", ".B_meta"),
        lambda t, n, s: from_marlin_24(t[n + ".B_24"], t[n + ".s"], t[n + ".B_meta"], bits=s.get("bits", 4), name=n),
        ("gptq", "marlin")),
    "gptq": Form(".qweight", (".qzeros", ".scales", ".g_idx"), lambda t, n, s: bool(s), readers.gptq, ("gptq",)),
    "bitsandbytes": Form(
        ".weight", tuple(".weight" + ending for ending in _BNB),
        _has_any(*(".weight" + state for state in STATES.values())),
        lambda t, n, s: read_bitsandbytes(t, f"{n}.weight"), ("bitsandbytes",),
    ),
    "bitsandbytes-int8": Form(
        ".weight", (".SCB", ".weight_format"), _has(".SCB"), readers.bitsandbytes_int8, ("bitsandbytes",)
    ),
    "eetq": Form(".weight", (".weight_scales",), _of_type(".weight_scales", "int8"),
        lambda t, n, s: from_eetq(t[n + ".weight"], t[n + ".weight_scales"], name=n), ("eetq",)),
    "hqq": Form(".W_q", tuple("." + name for name in _HQQ), _has(".scale", ".zero"),
        lambda t, n, s: read_hqq(t, n), ("hqq",)),
    "sinq": Form(".W_q", tuple(f".meta.{name}" for name in _SINQ), _has_any(".meta.scale", ".meta.scale.x"),
        lambda t, n, s: read_sinq(t, n), ("sinq",)),
    "qqq": Form(".B", (".s_channel", ".s_group"), _has(".s_channel", ".s_group"),
        lambda t, n, s: from_qqq(t[n + ".B"], t[n + ".s_channel"], t[n + ".s_group"], name=n), ("qqq",)),
    "exl2": Form(".q_weight", (".q_scale", ".q_scale_max", ".q_groups", ".q_invperm"), _has(".q_scale"),
        readers.exl2, ("exl2",)),
    "fp-quant": Form(
        ".qweight", (".scales", ".weight_global_scale", ".act_global_scale", ".forward_hadamard_matrix",
            ".backward_hadamard_matrix"),
        lambda t, n, s: s.get("quant_method") == "fp_quant", floats.fp_quant, ("fp_quant",)),
    "paroquant": Form(".qweight", (".qzeros", ".scales", ".theta", ".pairs", ".channel_scales"), _has(".theta"),
        readers.paroquant, ("paroquant",)),
    "torchao": Form(
        "._weight_qdata", tuple(f"._weight_{part}" for part in PARTS[1:]), _has("._weight_scale"),
        lambda t, n, s: read_torchao(t, n, getattr(t, "metadata", {})),
        ("torchao",)
    ),
    "quanto": Form(
        ".weight._data", (".weight._scale", ".input_scale", ".output_scale"), lambda t, n, s: not s, readers.quanto,
        ("quanto",)
    ),
    "quanto-packed": Form(
        ".weight._data._data", (".weight._scale", ".weight._shift", ".input_scale", ".output_scale"), lambda t, n,
        s: not s, readers.quanto, ("quanto",)
    ),
    "nvfp4-pack-quantized": Form(
        ".weight_packed", (".weight_scale", ".weight_global_scale", *_STATIC),
        _has(".weight_scale", ".weight_global_scale"),
        lambda t, n, s: from_nvfp4(*(t[n + end] for end in (".weight_packed", ".weight_scale", ".weight_global_scale")),
            divides=True, name=n), _PACKED,
    ),
    "mx-pack-quantized": Form(
        ".weight_packed", (".weight_scale", *_STATIC),
        lambda t, n, s: n + ".weight_scale" in t and t[n + ".weight_scale"].dtype.name in ("uint8", "float8_e8m0fnu"),
        floats.packed_mx, _PACKED,
    ),
    "marlin-24": Form(".weight_packed", (".scale_packed", ".meta"), _has(".scale_packed", ".meta"),
        readers.marlin_24, _PACKED),
    "pack-quantized": Form(
        ".weight_packed", (*_COMPANIONS, *_STATIC), _has(".weight_scale"), readers.pack_quantized, _PACKED
    ),
    "nvfp4": Form(
        ".weight", (".weight_scale", ".weight_scale_2", *_SMOOTHED), _is_nvfp4, floats.nvfp4, ("modelopt",),
    ),
    "modelopt-4-bits": Form(".weight", (".weight_scale", ".weight_scale_2", *_SMOOTHED), _is_modelopt_int4,
        floats.modelopt,
        ("modelopt",)),
    "int8": Form(
        ".weight", (".weight_scale", ".weight_zero_point", ".weight_g_idx", *_SMOOTHED),
        _of_type(".weight_scale", "int8"), readers.int8,
        (*_PACKED, "modelopt"),
    ),
    "fp8": Form(
        ".weight", (".weight_scale", *_SMOOTHED), _of_type(".weight_scale", *_FLOAT8), floats.float8,
        (*_PACKED, *_BLOCKED, "fbgemm_fp8", "modelopt"),
    ),
    "fp8-block": Form(
        ".weight", (*_SCALES_OF_FP8, ".activation_scale", ".qscale_act", *_STATIC), _is_fp8, floats.float8, _BLOCKED
    ),
    "fp8-experts": Form(
        "", ("_scale_inv", "_scale"), lambda t, n, s: floats.scales_of_experts(n, s) in t and t[n].ndim == 3,
        floats.experts_of_float8, (*_BLOCKED, "fbgemm_fp8"),
    ),
    "fp8-plain": Form(
        ".weight", (".scale_weight", ".scale_input"),
        lambda t, n, s: not s and t[n + ".weight"].ndim == 2 and t[n + ".weight"].dtype.name in _FLOAT8, floats.float8,
    ),
    "quark": Form(
        ".weight", (".weight_scale", ".weight_zero_point", *_STATIC),
        lambda t, n, s: s.get("quant_method") == "quark" and n + ".weight_scale" in t, floats.quark, ("quark",),
    ),
    "bitnet": Form(
        ".weight", (".weight_scale",), lambda t, n, s: bool(s) and _of_type(".weight_scale", "uint8")(t, n, s),
        floats.bitnet, ("bitnet",)
    ),
    "mxfp4": Form(
        "_blocks", ("_scales", "_bias"), _has("_scales"), floats.mxfp4, ("mxfp4",), extra=floats.mxfp4_biases
    ),
    "mlx": Form(
        ".weight", (".scales", ".biases", ".qbiases", ".global_scale"),
        lambda t, n, s: s.get("quant_method") in ("mlx", "metal") and t[n + ".weight"].dtype.name == "uint32",
        readers.mlx, ("mlx", "metal"),
    ),
    "gguf": Form("", (), lambda tensors, name, settings: name in readers.blocks_of(tensors), readers.gguf),
}  # fmt: skip
"""Forms in the order in which a tensor is tried against them."""


def why_dense_stay(
    tensors: Tensors, names: Iterable[str], skip: Callable[[str], bool], config: Mapping[str, object]
) -> dict[str, str | None]:
    """Why each layer with a matrix of floats, among the tensors named, stays as it is, by name; None for those that a
    scheme may quantise. `skip` says of a layer's name that it stays."""
    reasons: dict[str, str | None] = {}
    for name in names:
        layer, tensor = name.removesuffix(".weight"), tensors[name]
        if tensor.ndim < 2 or tensor.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
            continue
        if layer == name:
            reasons[name] = "it is not called weight"
        elif tensor.ndim > 2:
            reasons[layer] = f"it has {tensor.ndim} dimensions"
        elif f"{layer}.bias" not in tensors and is_looked_up(layer, tensor.shape, config):
            reasons[layer] = LOOKED_UP
        elif skip(layer):
            reasons[layer] = SKIPPED_BY_NAME
        else:
            reasons[layer] = "it has one row or column" if min(tensor.shape) <= 1 else None
    return reasons


_TABLE = re.compile(
    r"(?:^|_)(?:emb|embs|embed|embedding|embeddings|codebook)$|^embed_(?!out|proj)|[a-z]Embeddings?$|^relative_attention_bias$"
    r"|^(?:wte|wpe|pos|tok|tokens?|positions?|vocab)$"
)
"""What tables are called whose rows a model looks up: the last part of the layer's name."""

_HEAD = re.compile(r"head|out|proj|decoder|logit|score|classif|cls|linear|fc|generator|unembed|dense")
"""What heads are called, which have as many rows as tables of words have."""


def is_looked_up(layer: str, shape: tuple[int, ...], config: Mapping[str, object]) -> bool:
    """Whether a matrix is a table whose rows a model looks up: by its name, or one row a word outside of the model's
    blocks.

    Files say no more; in a model `torch.nn.Embedding` does.
    """
    last = layer.rpartition(".")[2]
    if _TABLE.search(last) or layer in ("shared", "model.shared", "transformer.shared"):
        return True
    nested = (config, *(value for value in config.values() if isinstance(value, Mapping)))
    words = {one.get("vocab_size") for one in nested}
    return shape[0] in words and not re.search(r"(?<![^.])\d+(?![^.])", layer) and not _HEAD.search(last)


_BY_COLUMNS = {
    "gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp", "clvp_decoder", "gpt-sw3", "gpt2-double-heads",
}  # fmt: skip
"""Models of transformers whose layers are `Conv1D`: their weights lie ``[K, N]`` in files."""

_CONV1D = ("c_attn", "c_proj", "c_fc", "q_attn")


def is_column_major(tensors: Tensors, layer: str, config: Mapping[str, object]) -> bool:
    """Whether a dense weight is ``[K, N]``: its bias says so, or for square ones the model's type."""
    rows, columns = tensors[f"{layer}.weight"].shape
    bias = tensors.get(f"{layer}.bias")
    if rows != columns and bias is not None and bias.shape in ((rows,), (columns,)):
        return bool(bias.shape == (columns,))
    return config.get("model_type") in _BY_COLUMNS and layer.rpartition(".")[2] in _CONV1D
