"""What is left of a checkpoint beside the weights that were recognised: nothing of a quantised weight may be passed
over in silence."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.conversion.methods import OURS
from tilewright.conversion.readers import Tensors, blocks_of
from tilewright.conversion.settings import Settings
from tilewright.errors import InvalidTensor, MissingTensor
from tilewright.quant.files import CODES, METADATA, stack_note
from tilewright.quant.importers.bitsandbytes import STATES


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


class ReadTensors(Mapping[str, np.ndarray]):
    """Tensors of a checkpoint that keep which of them were looked at."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors, self._read = tensors, set[str]()
        self.blocks = blocks_of(tensors)

    @property
    def metadata(self) -> Mapping[str, str]:
        """The texts in the heads of all files."""
        found: Mapping[str, str] = getattr(self._tensors, "metadata", {})
        return found

    def __getitem__(self, name: str) -> np.ndarray:
        found = self._tensors[name]
        self._read.add(name)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def check(self, layer: Layer, endings: Collection[str]) -> None:
        """Whether all tensors of a layer were looked at, but its codes and those of some endings. Raises
        InvalidTensor: its form knows what is there, and this weight of the form has none of it."""
        for name in layer.tensors:
            if name not in self._read and name != layer.main and name.removeprefix(layer.name) not in endings:
                raise _unread(self, name, f"{layer.main}, a weight in the form {layer.form}")


_ENDINGS = (
    ".weight", ".qweight", ".weight_packed", ".W_q", "_blocks", "._weight_qdata", ".B", ".B_24", ".weight._data",
    ".q_weight",
)  # fmt: skip
"""Ends of names of tensors that hold codes."""

_PARTS = (
    ".qzeros", ".g_idx", ".scaled_zeros", ".SCB", ".nbits", ".weight.absmax", ".weight.quant_map", ".weight_scale",
    ".weight_scale_inv", ".weight_scales",
    ".weight_scale_2", ".weight_global_scale", ".weight_zero_point", ".weight_g_idx", ".weight_shape",
    ".pre_quant_scale", "._weight_scale", ".s_channel", ".q_invperm",
    ".weight._scale", ".weight._shift", *(".weight" + state for state in STATES.values()),
)  # fmt: skip
"""Ends of names of tensors that go with codes, and mean nothing alone."""

_BESIDE = "bias"
"""What a layer may have beside its weight's own tensors, also with words before it (a router's
``e_score_correction_bias``): it is added, and copied as it is."""

_FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn")


def check_unread(tensors: Tensors, found: list[Layer], settings: Settings, forms: Mapping[str, object]) -> None:
    """What no reader takes belongs to no weight. Raises InvalidTensor for codes that belong to none of the forms, or a
    companion of a weight that was found which its reader does not know; MissingTensor for scales or zero points that
    belong to no codes."""
    _no_layer_stands_twice(found)
    taken = {name for layer in found for name in layer.tensors}
    free = [name for name in tensors if name not in taken and name not in blocks_of(tensors)]
    _no_codes_are_left(tensors, free, settings, forms)
    _no_parts_are_left(tensors, free)
    _no_metadata_is_left(tensors, free, settings)
    _no_companions_are_left(tensors, free, found)


def _no_layer_stands_twice(found: list[Layer]) -> None:
    """Whether each weight has codes in one form alone."""
    seen: dict[str, Layer] = {}
    for layer in found:
        other = seen.setdefault(layer.name.removesuffix(".weight"), layer)
        if other is not layer:
            raise InvalidTensor(
                f"{layer.main} is beside {other.main}: two weights of one layer, in the forms {layer.form} and "
                f"{other.form}",
                hint="save the checkpoint without one of them",
            )


def _no_codes_are_left(tensors: Tensors, free: list[str], settings: Settings, forms: Mapping[str, object]) -> None:
    """Whether every tensor of codes belongs to a weight: what nobody reads must not pass for one of floats."""
    for name in free:
        tensor, method = tensors[name], settings.get("quant_method")
        if tensor.ndim > 1 and not name.endswith((*_PARTS, "_scales")) and _holds_codes(name, tensor):
            said = f"the configuration says {method}" if method else "the configuration says nothing of quantisation"
            raise InvalidTensor(
                f"{name} is {tensor.dtype.name} {list(tensor.shape)}: codes, but what belongs to them is not there",
                hint=f"{said}; forms that can be read: {', '.join(forms)}",
            )


def _holds_codes(name: str, tensor: np.ndarray) -> bool:
    """Whether the numbers of a matrix are codes, by its name or by what they are: masks are zeros and ones, and indices
    are less than the words that codes are packed into."""
    size = tensor.dtype.itemsize
    if tensor.dtype.kind not in "iu":
        return tensor.dtype.name in _FLOAT8
    if name.endswith(_ENDINGS) or size == 2 or not tensor.size:
        return name.endswith(_ENDINGS) or size == 2
    low, high = int(tensor.min()), int(tensor.max())
    return low < 0 or high > 1 if size == 1 else max(-low, high) >= _NO_INDEX


_NO_INDEX = 1 << 30


def _no_parts_are_left(tensors: Tensors, free: list[str]) -> None:
    """Whether there are codes to every part of a weight: a layer would be gone in silence, or its floats mean something
    else."""
    for name in free:
        part = next((ending for ending in _PARTS if name.endswith(ending)), None)
        if part is None and name.endswith("_scales") and tensors[name].dtype.name in ("uint8", "float8_e8m0fnu"):
            part = "_scales"
        if part is None:
            continue
        layer = name.removesuffix(part)
        there = [layer + ending for ending in _ENDINGS if layer + ending in tensors]
        if not there:
            raise MissingTensor(
                f"{name} is there, but no codes are: {layer} has neither {_ENDINGS[0]} nor {', '.join(_ENDINGS[1:])}",
                hint="a shard is missing, or the checkpoint is of another kind",
            )
        raise _unread(tensors, name, f"{there[0]}, which is {tensors[there[0]].dtype.name}")


def _no_metadata_is_left(tensors: Tensors, free: list[str], settings: Settings) -> None:
    """Whether there are codes to all metadata of ours, which have the names of dense weights."""
    for name in free if settings.get("quant_method") in (None, OURS) else ():
        layer, _, last = name.rpartition(".")
        values = tensors[name]
        bytes_of = last == METADATA and values.ndim == 1 and values.dtype.name == "uint8"
        if bytes_of and not np.array_equal(values, stack_note()):
            raise MissingTensor(
                f"{layer}.{CODES} is missing: {name} describes the codes of a weight", hint="a shard may be missing"
            )


def _no_companions_are_left(tensors: Tensors, free: list[str], found: list[Layer]) -> None:
    """Whether all that is named after a quantised weight is read: a factor that nobody knows would be left out."""
    # Ours were written here: what else has their name is another tensor of the module (a router's table).
    weights = {layer.name.removesuffix(".weight"): layer for layer in found if layer.form != OURS}
    for name in free:
        nearest = next(((owner, rest) for owner, rest in _owners(name) if owner in weights), None)
        if nearest is None or nearest[1] == _BESIDE or nearest[1].endswith(f"_{_BESIDE}"):
            continue
        if nearest[1] in ("rms_norm.weight", "norm.weight"):
            raise InvalidTensor(
                f"{name} belongs to a layer that normalises its input itself, which a linear layer does not",
                hint="give the model a norm of its own before the layer",
            )
        layer = weights[nearest[0]]
        raise _unread(tensors, name, f"{layer.main}, a weight in the form {layer.form}")


def _owners(name: str) -> list[tuple[str, str]]:
    """The names that a tensor's may be formed of, the longest first: ``a.b.c_d`` is of ``a.b.c`` (``d``), ``a.b``
    (``c_d``) and ``a`` (``b.c_d``)."""
    whole, _, last = name.rpartition(".")
    before = f"{whole}." if whole else ""
    places = [place for place, letter in enumerate(last) if letter == "_" and place]
    parts = name.split(".")
    made = [(before + last[:place], last[place + 1 :]) for place in reversed(places)]
    return made + [(".".join(parts[:count]), ".".join(parts[count:])) for count in range(len(parts) - 1, 0, -1)]


def _unread(tensors: Tensors, name: str, beside: str) -> InvalidTensor:
    tensor = tensors[name]
    return InvalidTensor(
        f"{name} ({tensor.dtype.name} {list(tensor.shape)}) is beside {beside}, and nothing here reads it",
        hint="the weight may mean something else by it: save the checkpoint without, or report the form",
    )
