"""What a configuration says of quantisation: a table of the words that readers ask for, and what each may be.

A configuration is somebody else's file.  Values are looked at here, once, when it is read: readers may then count on them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from tilewright.errors import InvalidTensor
from tilewright.quant.importers.awq import FORMS as AWQ_FORMS

Settings = Mapping[str, Any]
"""What a checkpoint's configuration says of its quantisation."""

Kind = tuple[str, Callable[[Any], bool]]
"""What a value is to be, for messages, and whether one is that."""


def _whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _one_of(*names: str) -> Kind:
    return f"one of {', '.join(names)}", lambda value: value in names


_MOST = 1 << 31
_TEXT: Kind = ("a text", lambda value: isinstance(value, str))
_TABLE: Kind = ("a table", lambda value: isinstance(value, Mapping))
_BITS: Kind = ("a number of bits from 1 to 16", _whole(1, 16))
_GROUP: Kind = ("a number of columns, or -1 for all", lambda value: value == -1 or _whole(1, _MOST)(value))


def block_of(value: Any) -> tuple[int, int] | None:
    """Rows and columns of a block, ``[128, 128]`` or ``"128x128"``; None where a value says none."""
    if isinstance(value, str) and re.fullmatch("[0-9]{1,9}x[0-9]{1,9}", value):
        value = [int(part) for part in value.split("x")]
    fits = isinstance(value, list) and len(value) == 2 and all(map(_whole(1, _MOST), value))
    return (value[0], value[1]) if fits else None


_BLOCK: Kind = ("rows and columns of a block, two numbers", lambda value: block_of(value) is not None)
_TRUTH: Kind = ("true or false", lambda value: isinstance(value, bool))
_TEXTS: Kind = ("a list of texts", lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value))

WORDS: Mapping[str, Kind] = {
    "packing_format": _TEXT, "format": _TEXT, "quant_algo": _TEXT, "activations": _TEXT,
    "declared_activations": _TEXT,
    "version": ("a text or a number", lambda value: isinstance(value, str) or _whole(0, _MOST)(value)),
    "checkpoint_format": _one_of("gptq", "gptq_v2", "marlin", "bitblas", "llm-awq", *AWQ_FORMS),
    "linear_class": _one_of("bitlinear", "autobitlinear"),
    "bits": _BITS, "w_bit": _BITS, "group_size": _GROUP, "weight_block_size": _BLOCK, "desc_act": _TRUTH,
    "load_in_4bit": _TRUTH, "load_in_8bit": _TRUTH,
    "dynamic": _TABLE, "extra_config": _TABLE, "transform_config": _TABLE, "config_groups": _TABLE,
}  # fmt: skip
"""Of a configuration; null stands for what is not said."""

_OF_GROUP: Mapping[str, Kind] = {"weights": _TABLE, "input_activations": _TABLE, "targets": _TEXTS}
_OF_NUMBERS: Mapping[str, Kind] = {
    "num_bits": _BITS, "group_size": _GROUP, "strategy": _TEXT, "type": _TEXT, "symmetric": _TRUTH,
    "block_structure": _BLOCK,
}  # fmt: skip
"""compressed-tensors' groups of layers, and what they say of numbers."""

_OF_TRANSFORM: Mapping[str, Kind] = {"apply": ("a list", lambda value: isinstance(value, list))}


def checked_settings(config: Mapping[str, Any], where: Any, methods: Collection[str]) -> Settings:
    """The part of a configuration that is about quantisation, empty where there is none.

    Parameters
    ----------
    where : the checkpoint, for messages.
    methods : ways of quantising whose words these are; what another one means by them is not looked at.

    Raises
    ------
    InvalidTensor : it says what cannot be.
    """
    found = config.get("quantization_config") or config.get("compression_config") or {}
    if not isinstance(found, Mapping):
        raise InvalidTensor(
            f"{where}: the configuration says quantization_config: {_shown(found)}, where a table is due"
        )
    _check(found, {"quant_method": _TEXT}, where, "")
    found = _of_its_library({key: value for key, value in found.items() if value is not None})
    if found.get("quant_method", next(iter(methods))) not in methods:
        return found
    _check(found, WORDS, where, "")
    for name, group in (found.get("config_groups") or {}).items():
        if _check_table(group, where, f"config_groups: {name}"):
            _check(group, _OF_GROUP, where, f"config_groups: {name}: ")
            for part in ("weights", "input_activations"):
                _check(group.get(part) or {}, _OF_NUMBERS, where, f"config_groups: {name}: {part}: ")
    transform = found.get("transform_config") or {}
    _check(transform, {"config_groups": _TABLE}, where, "transform_config: ")
    for name, group in (transform.get("config_groups") or {}).items():
        if _check_table(group, where, f"transform_config: config_groups: {name}"):
            _check(group, _OF_TRANSFORM, where, f"transform_config: config_groups: {name}: ")
    return found


def _check(said: Mapping[str, Any], words: Mapping[str, Kind], where: Any, inside: str) -> None:
    for word, (what, fits) in words.items():
        value = said.get(word)
        if value is not None and not fits(value):
            raise InvalidTensor(
                f"{where}: the configuration says {inside}{word}: {_shown(value)}, where {what} is due",
                hint="null, or no such word, stands for what is usual",
            )


def _check_table(group: Any, where: Any, name: str) -> bool:
    """Whether a group is there at all."""
    if group is not None and not isinstance(group, Mapping):
        raise InvalidTensor(f"{where}: the configuration says {name}: {_shown(group)}, where a table is due")
    return group is not None


def _shown(value: Any) -> str:
    """A value, or how it begins."""
    text = repr(value)
    return text if len(text) < 80 else f"{text[:76]} ..."


def _of_its_library(found: Settings) -> Settings:
    """The settings in the words of the library whose form the tensors have."""
    method = str(found.get("quant_method", "")).removeprefix("intel/").replace("_", "-")
    if method == "auto-round":
        return _of_auto_round(found)
    if not method and found.keys() & {"load_in_4bit", "load_in_8bit"}:
        return {**found, "quant_method": "bitsandbytes"}  # what its first users wrote
    return found


def _of_auto_round(found: Settings) -> Settings:
    """AutoRound's configuration as that of the library whose packing it used."""
    packing = str(found.get("packing_format", "auto_round:auto_gptq")).rpartition(":")[2].replace("auto_", "")
    if packing == "awq":
        return {**found, "quant_method": "awq", "version": "gemm"}
    if packing in ("gptq", "round"):
        return {**found, "quant_method": "gptq", "checkpoint_format": "gptq"}
    raise InvalidTensor(
        f"the checkpoint is quantised by AutoRound in the packing {found.get('packing_format')!r}",
        hint="auto_round:auto_gptq and auto_round:auto_awq can be read",
    )


def weights_settings(settings: Settings) -> list[Settings]:
    """What compressed-tensors says of weights, one entry a group of layers."""
    groups = settings.get("config_groups") or {}
    return [group["weights"] for group in groups.values() if group and group.get("weights")]
