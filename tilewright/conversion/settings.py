"""What a configuration says of quantisation: every word of it is looked at once, when it is read; readers may then
count on them.

A configuration is somebody else's file. What each word may be is in `methods`: a word that no reader knows, and a value
that it does not, are errors that name the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tilewright.conversion.methods import EVERYWHERE, METHODS, OURS, TABLE, TEXT, Kind, Method, block_of
from tilewright.errors import InvalidTensor

Settings = Mapping[str, Any]
"""What a checkpoint's configuration says of its quantisation, in the words of the library whose form the tensors
have."""


def quantization_settings(config: Mapping[str, Any], where: object = "the checkpoint") -> Settings:  # of JSON
    """The part of a configuration that is about quantisation, empty where there is none; `where` is the checkpoint, for
    messages. Raises InvalidTensor for an unknown way of quantising, a word that nobody reads, a value that its reader
    does not know."""
    old = config.get("compression_config")
    found = config.get("quantization_config") or old or _of_a_part(config, where)
    if is_mlx(config.get("quantization")) and not (isinstance(found, Mapping) and found.get("quantized_by") == OURS):
        found = _of_mlx(config["quantization"])
    if not isinstance(found, Mapping):
        raise InvalidTensor(
            f"{where}: the configuration says quantization_config: {_shown(found)}, where a table is due"
        )
    if not found:
        return found
    _check_kinds(found, {"quant_method": TEXT}, where, "")
    said = {key: value for key, value in found.items() if value is not None}
    if found is old:
        said = {"quant_method": "compressed-tensors", **said}
    said = dict(_of_its_library(said))
    method = said.get("quant_method")
    known = f"what can be read: {', '.join(sorted(METHODS))}"
    if method is None:
        words = ", ".join(map(str, said)) or "a table without a word"
        raise InvalidTensor(
            f"{where}: the configuration speaks of quantisation ({words}) and names no quant_method", hint=known
        )
    if method not in METHODS:
        raise InvalidTensor(f"{where}: the checkpoint is quantised by {method!r}", hint=known)
    _check(METHODS[method], said, where, "")
    _check_transforms(said.get("transform_config") or {})
    return said


def with_own_file(settings: Settings, own: Mapping[str, object], where: object) -> Settings:
    """The settings with what the quantiser's own file beside a configuration, in the same words, says more than this.
    Raises InvalidTensor where the two say different things that readers go by."""
    if not own or own.get("quant_method") != settings.get("quant_method"):
        return settings
    beside = quantization_settings({"quantization_config": own}, where)
    for word in METHODS[beside["quant_method"]].reads:
        if word in settings and word in beside and _lower(settings[word]) != _lower(beside[word]):
            raise InvalidTensor(
                f"{where}: the configuration says {word}: {_shown(settings[word])}, and the quantiser's own file "
                f"beside it {_shown(beside[word])}",
                hint="remove the one that is not of these weights",
            )
    return {**beside, **settings}


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _check(known: Method, said: Settings, where: object, inside: str) -> None:
    """Whether every word is known, and its value, in all tables of a table."""
    _check_kinds(said, {**known.reads, **dict.fromkeys((*known.inside, *known.each), TABLE)}, where, inside)
    for word, one in known.inside.items():
        _check(one, said.get(word) or {}, where, f"{inside}{word}: ")
    for word, one in known.each.items():
        for name, table in (said.get(word) or {}).items():
            _check_kinds({name: table}, {name: TABLE}, where, f"{inside}{word}: ")
            _check(one, table or {}, where, f"{inside}{word}: {name}: ")
    for word, value in said.items():
        if word == "quant_method" or any(word in words for words in _known(known)):
            continue
        if not _says_nothing(value):
            raise InvalidTensor(
                f"{where}: the configuration says {inside}{word}: {_shown(value)}, which nothing here reads",
                hint="weights may mean something else by it: save the checkpoint without, or report the form",
            )


def _says_nothing(value: object) -> bool:
    """Whether a word is there and off: libraries write all that they know, most of it unused."""
    return value is None or value is False or (isinstance(value, (str, list, tuple, Mapping)) and not value)


def _check_kinds(said: Mapping[str, object], words: Mapping[str, Kind], where: object, inside: str) -> None:
    for word, (what, fits) in words.items():
        value = said.get(word)
        if value is not None and not fits(value):
            raise InvalidTensor(
                f"{where}: the configuration says {inside}{word}: {_shown(value)}, where {what} is due",
                hint="null, or no such word, stands for what is usual",
            )


def _known(known: Method) -> tuple[Mapping[str, object], ...]:
    """All the words that a table may have."""
    return known.reads, known.ignored, known.inside, known.each, EVERYWHERE


def _check_transforms(transform: Settings) -> None:
    """Whether layers multiply by their weights alone: those of QuaRot and SpinQuant may rotate what comes in and goes
    out."""
    for name, group in (transform.get("config_groups") or {}).items():
        applied = (group or {}).get("apply") or ()
        places = {str(one.get("location") if isinstance(one, Mapping) else one) for one in applied}
        running = sorted(place for place in places if not place.startswith("weight"))
        if running:
            raise InvalidTensor(
                f"the checkpoint rotates activations while it runs (transform_config {name}: "
                f"{', '.join(running)}), which its layers here do not",
                hint="checkpoints whose rotations are all in the weights can be read",
            )


def _shown(value: object) -> str:
    """A value, or how it begins."""
    text = repr(value)
    return text if len(text) < 80 else f"{text[:76]} ..."


def _of_a_part(config: Mapping[str, object], where: object) -> Any:
    """What the configuration of a part says, the language model's of one that sees; nothing where none does. Raises
    InvalidTensor where parts say different things."""
    parts = [part for part in config.values() if isinstance(part, Mapping)]
    said = [part.get("quantization_config") or _of_a_part(part, where) for part in parts]
    found = [one for place, one in enumerate(said) if one and one not in said[:place]]
    if len(found) > 1:
        raise InvalidTensor(f"{where}: parts of the configuration say different things of quantisation")
    return found[0] if found else {}


def is_mlx(said: object) -> bool:
    """Whether a table is MLX's, which has no name of a way of quantising."""
    return isinstance(said, Mapping) and {"bits", "group_size"} <= said.keys() and not said.get("quant_method")


def _of_mlx(found: Settings) -> Settings:
    """MLX's ``quantization``: words, and beside them the names of layers with words of their own, or false."""
    layers = {key: value for key, value in found.items() if isinstance(value, Mapping)}
    whole = {
        key: value for key, value in found.items() if key not in layers and not ("." in key and value in (True, False))
    }
    return {"quant_method": "mlx", **whole, "quantization": layers}


def _of_its_library(found: Settings) -> Settings:
    """The settings in the words of the library whose form the tensors have."""
    if found.get("quantized_by") == OURS:
        return {**found, "quant_method": OURS}
    method = str(found.get("quant_method", "")).removeprefix("intel/").replace("_", "-")
    if method == "auto-round":
        return _of_auto_round(found)
    if not method and found.keys() & {"load_in_4bit", "load_in_8bit"}:
        return {**found, "quant_method": "bitsandbytes"}  # what its first users wrote
    if not method and found.get("sinq"):
        return {**found, "quant_method": "sinq"}
    return found


_FLOATS = re.compile(r"^(mx_fp|nv_fp|fp)[48]?(_?e2m1|_?e4m3(fn)?)?(_rceil|_with_static_gs|_static|_dynamic|_sym)*$")
"""Kinds of floats of AutoRound, without the way in which their scales were found (``nv_fp4_with_static_gs``,
``mx_fp_rceil``)."""


def _of_auto_round(found: Settings) -> Settings:
    """AutoRound's configuration as that of the library whose packing it used; its floats are named and lie as
    compressed-tensors' do, those in blocks as DeepSeek's."""
    if str(found.get("data_type", "int")).startswith(("mx_fp", "nv_fp", "fp")):
        layers = found.get("extra_config")
        if isinstance(layers, Mapping):
            named = {name: _of_one_name(one) for name, one in layers.items() if isinstance(one, Mapping)}
            found = {**found, "extra_config": {**layers, **named}}
        if block_of(found.get("group_size")):
            return {"weight_block_size": found["group_size"], **_of_one_name(found), "quant_method": "fp8"}
        return {**_of_one_name(found), "quant_method": "auto-round"}
    said = found.get("packing_format", found.get("backend", "auto"))
    packing = {part.removeprefix("auto_") for part in str(said).split(":")} - _KERNELS
    if packing <= {"round", "awq"} and "awq" in packing:
        return {**found, "quant_method": "awq", "version": "gemm"}
    if packing <= {"round", "gptq"} and packing != {"round"}:
        return {**found, "quant_method": "gptq", "checkpoint_format": "gptq"}
    if packing <= {"round", "gptqmodel"}:  # its own: zero points as they are, where GPTQ's first form has one less
        return {**found, "quant_method": "gptq", "checkpoint_format": "gptq_v2"}
    raise InvalidTensor(
        f"the checkpoint is quantised by AutoRound in the packing {said!r}",
        hint="auto_round, auto_round:auto_gptq and auto_round:auto_awq can be read",
    )


def _of_one_name(said: Settings) -> Settings:
    """What AutoRound says of a layer, whose kind of floats has one name."""
    named = said.get("data_type") is not None
    return {**said, "data_type": _FLOATS.sub(r"\1", str(said["data_type"]))} if named else said


_KERNELS = {"auto", "exllamav2", "triton", "tritonv2", "marlin", "cuda", "torch"}
"""What may stand beside a packing in the words of AutoRound's first versions: what multiplies by it."""


def weights_settings(settings: Settings, layer: str) -> list[Settings]:
    """What compressed-tensors says of a layer's weight: one entry, or those of all groups where none means the layer.

    A layer's name counts before a regular expression, and that before a class.
    """
    groups = [group for group in (settings.get("config_groups") or {}).values() if group and group.get("weights")]
    return [group["weights"] for group in _nearest(groups, layer)]


def all_groups(said: object) -> list[int]:
    """Every size of groups that a configuration, or a part of it, speaks of."""
    if not isinstance(said, Mapping):
        return []
    own = [said["group_size"]] if type(said.get("group_size")) is int else []
    return own + [size for part in said.values() for size in all_groups(part)]


def groups_of_layer(settings: Settings, layer: str) -> list[int]:
    """Those that compressed-tensors' and modelopt's say of a layer; of all where they say none of it."""
    return [size for said in weights_settings(settings, layer) for size in all_groups(said)] or all_groups(settings)


def _nearest(groups: list[Mapping[str, Any]], layer: str) -> list[Mapping[str, Any]]:
    """The groups that mean a layer most closely; all where none does."""
    nearest = min((_distance(group, layer) for group in groups), default=None)
    return [group for group in groups if _distance(group, layer) == nearest]


_ALGORITHMS = {
    **dict.fromkeys(("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "MXFP8", "W4A8_MXFP4_FP8", "W4A8_NVFP4_FP8", "W4A8_AWQ"),
        "float8_e4m3fn"),
    "W8A8_SQ_PER_CHANNEL": "int8",
}  # fmt: skip
"""What modelopt's ways of quantising make of activations; the others multiply them as they come, or as 4 bits."""


def _algorithm(settings: Settings, layer: str) -> str | None:
    """modelopt's way of quantising a layer: that of all, or of what it is in (``layers.0.experts``)."""
    whole, layers = settings.get("quant_algo"), settings.get("quantized_layers") or {}
    if whole != "MIXED_PRECISION":
        return whole
    parts = layer.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((layers[name].get("quant_algo") for name in names if name in layers), None)


def declared_activations(settings: Settings, layer: str) -> str | None:
    """What the configuration says that a layer's activations are quantised to; None for as they are, or for 4 bits.

    Their static scales are not used: activations are quantised as they come, one scale a token.
    """
    method = settings.get("quant_method")
    if method == OURS:
        said = settings.get("activations") or settings.get("declared_activations")
        return said.get(layer) if isinstance(said, Mapping) else said
    if method in ("bitnet", "qqq"):
        return "int8"
    if method in ("fp8", "mxfp8", "w4afp8", "fbgemm_fp8"):
        return "float8_e4m3fn"
    algorithm = _algorithm(settings, layer)
    if algorithm is not None:
        return _ALGORITHMS.get(algorithm)
    groups = [group for group in (settings.get("config_groups") or {}).values() if group]
    for group in _nearest(groups, layer) if method in ("compressed-tensors", "modelopt") else ():
        said = group.get("input_activations")
        if said and said.get("num_bits") == 8 and _distance(group, layer) < _NOT_MEANT:
            return "int8" if said.get("type", "int") == "int" else "float8_e4m3fn"
    return None


_NOT_MEANT = 3


def _distance(group: Mapping[str, Any], layer: str) -> int:
    """How a group means a layer: by its name or that of what it is in (0), by a regular expression (1), by its class
    (2), not (3)."""
    ways = [_NOT_MEANT]
    for target in map(str, group.get("targets") or []):
        if target.startswith("re:"):
            ways += [1] if re.match(target[3:], layer) else []
        else:
            ways += [0] if f"{layer}.".startswith(f"{target}.") else [2] if target == "Linear" else []
    return min(ways)
