"""Converting a checkpoint, shard by shard: quantised weights of any form, or dense ones by a scheme, become ours.

The result takes its name when it is whole (`checkpoints.whole`): an interruption or a full disk leaves nothing there,
and what was there before stays.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.checkpoints import Checkpoint, open_checkpoint, save_safetensors
from tilewright.checkpoints.bounds import is_file
from tilewright.checkpoints.directory import INDEX, QUANTISERS_OWN
from tilewright.checkpoints.whole import clear_leftovers, whole_directory
from tilewright.conversion.choices import Choices
from tilewright.conversion.experts import dense_stacks
from tilewright.conversion.gathered_experts import each_bias, each_expert
from tilewright.conversion.layers import (
    Layer,
    declared_activations,
    extra_tensors,
    is_column_major,
    read_layer,
    recognise,
    why_dense_stay,
)
from tilewright.conversion.methods import OURS
from tilewright.conversion.modules import our_settings
from tilewright.conversion.remade import settings_of
from tilewright.conversion.schemes import QuantizationScheme, quantization_scheme
from tilewright.conversion.settings import Settings
from tilewright.errors import CannotQuantize, InvalidCheckpoint, TilewrightWarning, WrongArgumentKind
from tilewright.progress import Progress
from tilewright.quant.files import stack_note, weight_tensors
from tilewright.quant.weight import QuantizedWeight
from tilewright.texts import write_text

SKIPPED = (
    r"^(model\.|transformer\.)?output$"
    r"|(^|[._])((un)?embed|wte|wpe|lm_head|norm[^.]*(\.[^.]*)?$|router|gate$|score|classifier)"
)
"""Layers that a scheme leaves as they are unless it is asked otherwise: embeddings, heads, norms and what is right
below them, routers of experts."""

_BIGGEST_COPY = 64 << 20
_NOT_COPIED = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".ot", ".onnx", ".unfinished")


@dataclass(frozen=True, slots=True)
class Converted:
    """What a conversion did.

    Attributes
    ----------
    path : of the result.
    weights : quantised weights in it.
    kept : tensors that stayed as they were.
    bytes_before, bytes_after : of all tensors.
    choices : which layers are of codes in the result and which are not, and why; ``print`` shows it in lines.
    """

    path: Path
    weights: int
    kept: int
    bytes_before: int
    bytes_after: int
    choices: Choices


@dataclass(frozen=True, slots=True)
class _ConversionPlan:
    """What is done with the tensors of a checkpoint."""

    source: Checkpoint
    settings: Settings
    layers: dict[str, Layer]
    dense: Mapping[str, str | None]
    stacks: dict[str, bool]
    scheme: QuantizationScheme | None

    @property
    def choices(self) -> Choices:
        """What is of codes in the result, and what is not."""
        codes = {*(layer.name for layer in self.layers.values()), *self.stacks}
        return Choices(
            {**dict.fromkeys(sorted(codes)), **{one: why for one, why in self.dense.items() if one not in codes}}
        )

    @property
    def absorbed(self) -> set[str]:
        """Tensors that are in the result under other names."""
        biases = {f"{name}_bias" for name in self.stacks if f"{name}_bias" in self.source}
        return {name for layer in self.layers.values() for name in layer.tensors} | biases

    def is_stack(self, name: str) -> bool:
        """Whether a tensor holds the weights of all experts of a layer of transformers."""
        form = self.layers[name].form if name in self.layers else None
        of_codes = form == "fp8-experts" or (form == "mxfp4" and self.source[name].ndim > 3)
        return name in self.stacks or of_codes

    def converted(self, name: str) -> Iterator[tuple[str, QuantizedWeight]]:
        """The weights that a tensor holds the codes of, or that become of it."""
        known = self.layers.get(name)
        if known is not None:
            yield from read_layer(self.source, known, self.settings).items()
        elif name.endswith(".weight") and self.dense.get(name.removesuffix(".weight"), "no such layer") is None:
            assert self.scheme is not None
            layer, numbers = name.removesuffix(".weight"), self.source[name]
            transposed = is_column_major(self.source, layer, self.source.config)
            yield layer, self.scheme.quantize(numbers.T if transposed else numbers, name)
        elif name in self.stacks:
            assert self.scheme is not None
            yield from each_expert(self.source, name, self.stacks[name], self.scheme)


def convert_checkpoint(
    source: str | Path,
    destination: str | Path,
    scheme: str | QuantizationScheme | None = None,
    *,
    skip: str | Iterable[str] = SKIPPED,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Converted:
    """Convert a checkpoint to ours.

    Quantised weights (GPTQ, AWQ, bitsandbytes, compressed-tensors, fp8, BitNet, mxfp4, HQQ, torchao, GGUF) are taken
    over code by code; dense ones become codes where `scheme` says so; all other tensors are copied.

    Parameters
    ----------
    source : a safetensors or GGUF file, or a directory of safetensors shards.
    destination : the directory to make; a file name that ends in ``.safetensors`` for a single file.
    scheme : for dense weights, as in `quantization_scheme`; None leaves them as they are.
    skip : a regular expression; dense layers with a match in their name are left as they are. Or a list of names: those
        of layers, or of what layers are in.
    overwrite : whether a checkpoint of that name may be replaced.
    progress : a bar to move on, one step a tensor; by default one of its own.

    Returns
    -------
    what was done.  Memory needed: the largest shard of the result, and one weight.

    Raises
    ------
    InvalidCheckpoint : the source cannot be read, the destination exists or cannot be written.
    InvalidTensor, MissingTensor : tensors that do not fit their form, named.
    CannotQuantize : a weight that has no codes, or nothing that could be converted.
    """
    for what, name in (("the source", source), ("the destination", destination)):
        if not isinstance(name, (str, Path)):
            raise WrongArgumentKind.given(name, what, hint="a path is due")
    path = Path(destination)
    clear_leftovers(path)
    _check_destination(path, Path(source), overwrite)
    plan = _plan(source, None if scheme is None else quantization_scheme(scheme), skip)
    single = path.suffix == ".safetensors"
    if single and len(plan.source.shards) > 1:
        raise InvalidCheckpoint(
            f"{source} has {len(plan.source.shards)} shards", hint="name a directory for the result"
        )
    with progress or Progress(len(plan.source)) as bar:
        if single:
            tensors, done = _shard(plan, next(iter(plan.source.shards.values())), bar)
            metadata = {"format": "pt", "quantization_config": json.dumps(_settings(plan))}
            return _result(path, plan, [done], save_safetensors(path, tensors, metadata))
        with whole_directory(path) as room:
            return _convert_into(room, path, plan, bar)


def _check_destination(path: Path, source: Path, overwrite: bool) -> None:
    """Refuse a name that is taken: replacing means deleting, so only checkpoints are replaced, when asked, and what is
    converted never is, whose numbers rounding loses."""
    if path.suffix != ".safetensors" and path.is_file():
        raise InvalidCheckpoint(f"{path} is a file", hint="name a directory for the result, or a .safetensors file")
    if path.exists() and source.exists() and path.samefile(source):
        raise InvalidCheckpoint(f"{path} would replace what it is made of", hint="choose another name")
    if path.exists() and not overwrite:
        raise InvalidCheckpoint(f"{path} exists", hint="choose another name, or --overwrite (overwrite=True)")
    if not path.is_dir():
        return
    if path.resolve() in source.resolve().parents:
        raise InvalidCheckpoint(f"{path} cannot be replaced: {source} is in it", hint="choose another name")
    held = sorted(file.name for file in path.iterdir())
    if held and not any(name.endswith(".safetensors") for name in held):
        raise InvalidCheckpoint(
            f"{path} is not replaced: it holds {held[0]} and no checkpoint", hint="choose another name, or delete it"
        )


def _plan(path: str | Path, scheme: QuantizationScheme | None, skip: str | Iterable[str]) -> _ConversionPlan:
    source = open_checkpoint(path)
    settings = settings_of(source)
    layers = {layer.main: layer for layer in recognise(source, settings)}
    pattern = skipping("skip", skip, source)
    taken = {name for layer in layers.values() for name in layer.tensors}
    free = [name for name in source if name not in taken]

    def stays(name: str) -> bool:
        return bool(pattern.search(name))

    dense = why_dense_stay(source, free, stays, source.config)
    stacks = dense_stacks(source, free, stays) if scheme else {}
    if scheme is None:
        dense = {name: reason or "no scheme was given" for name, reason in dense.items()}
    if not layers and not stacks and None not in dense.values():
        hint = "its weights are dense: give a --scheme, w4a16 for example" if scheme is None else "see --skip"
        raise CannotQuantize(f"{path} has no weight to convert", hint=hint)
    if layers and scheme is not None:
        _check_scheme(path, settings, scheme, bool(stacks) or None in dense.values())
    return _ConversionPlan(source, settings, layers, dense, stacks, scheme)


def _check_scheme(path: str | Path, settings: Settings, scheme: QuantizationScheme, has_dense: bool) -> None:
    """A scheme has weights to round beside those that are codes already, and says the same of activations.  Raises
    CannotQuantize."""
    alone = "without a scheme the codes are taken over"
    if not has_dense:
        raise CannotQuantize(f"{path} has no dense weight for the scheme {scheme.name}: it is of codes", hint=alone)
    there = _of_ours(settings).get("activations")
    if there != scheme.activations:
        said = [str(one or "what they come as") for one in (there, scheme.activations)]
        raise CannotQuantize(
            f"{path} has codes whose activations are multiplied as {said[0]}, the scheme {scheme.name} as {said[1]}",
            hint=alone,
        )


def skipping(what: str, skip: str | Iterable[str], layers: Iterable[str]) -> re.Pattern[str]:
    """The pattern of names of layers that stay: a regular expression, or names of layers (of those that there are) and
    of what they are in. Raises CannotQuantize for no regular expression or a name that no layer has, WrongArgumentKind
    for what is neither a string nor several."""
    if isinstance(skip, str):
        try:
            return re.compile(skip)
        except re.error as error:
            raise CannotQuantize(f"{what} {skip!r} is no regular expression: {error}") from None
    names = list(skip) if isinstance(skip, Iterable) else [skip]
    if not all(isinstance(name, str) for name in names):
        raise WrongArgumentKind(
            f"{what} is {skip!r}", hint="a regular expression, or a list of names: 'lm_head', 'model.layers.0'"
        )
    # Whole parts of a dotted name, wherever they are in it, as transformers has it.
    patterns = {name: rf"(?:^|\.){re.escape(name)}(?:\.|$)" for name in names}
    there = list(layers)
    for name, pattern in patterns.items():
        if not any(re.search(pattern, layer) for layer in there):
            raise CannotQuantize(
                f"{what} names {name!r}, which no layer is called", hint=f"there are {', '.join(there[:3])}"
            )
    return re.compile("|".join(patterns.values()) or r"(?!)")


def _shard(plan: _ConversionPlan, names: Iterable[str], bar: Progress) -> tuple[dict[str, np.ndarray], int]:
    """The tensors that become of those of one shard, and how many weights are among them."""
    absorbed = plan.absorbed
    made: dict[str, np.ndarray] = {}
    weights = 0
    for name in names:
        bar.step(name)
        found = list(plan.converted(name))
        for layer, weight in found:
            made.update(weight_tensors(weight, layer))
        if plan.is_stack(name):
            made[found[0][0].rpartition(".")[0]] = stack_note()
        weights += len(found)
        if name in plan.layers:
            made.update(extra_tensors(plan.source, plan.layers[name]))
        if name in plan.stacks:
            made.update(each_bias(plan.source, name))
        if not found and name not in absorbed:
            made[name] = plan.source[name]
    return made, weights


def _convert_into(room: Path, path: Path, plan: _ConversionPlan, bar: Progress) -> Converted:
    where: dict[str, str] = {}
    total, weights = 0, []
    shards = list(plan.source.shards.items())
    for number, (_, names) in enumerate(shards):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        tensors, done = _shard(plan, names, bar)
        if tensors:
            total += save_safetensors(room / file, tensors, {"format": "pt"})
        where.update(dict.fromkeys(tensors, file))
        weights.append(done)
        del tensors
        plan.source.release()
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
        _write_json(room / INDEX, index)
    config = {key: value for key, value in plan.source.config.items() if key != "compression_config"}
    _write_json(room / "config.json", {**config, "quantization_config": _settings(plan)})
    _copy_companions(plan.source.directory, room)
    return _result(path, plan, weights, total)


def _of_ours(settings: Settings) -> dict[str, Any]:
    """The scheme of a checkpoint that is ours already, and what it rounds activations to."""
    ours = settings.get("quantized_by") == OURS
    return {key: settings[key] for key in ("scheme", "activations") if ours and settings.get(key)}


def _settings(plan: _ConversionPlan) -> dict[str, Any]:
    """What the result's configuration says of its quantisation."""
    made = our_settings()
    if plan.settings.get("quant_method"):
        made["converted_from"] = plan.settings["quant_method"]
    said = {layer.name: declared_activations(plan.source, layer, plan.settings) for layer in plan.layers.values()}
    kinds = set(said.values())
    if kinds - {None}:
        made["declared_activations"] = kinds.pop() if len(kinds) == 1 else said
    made |= _of_ours(plan.settings)
    if plan.scheme is not None:
        made |= {"scheme": plan.scheme.name, "activations": plan.scheme.activations}
    return made


def _result(path: Path, plan: _ConversionPlan, weights: list[int], total: int) -> Converted:
    taken = {*plan.absorbed, *plan.stacks, *(f"{name}.weight" for name, reason in plan.dense.items() if reason is None)}
    before = sum(plan.source[name].nbytes for name in plan.source)
    return Converted(path, sum(weights), sum(name not in taken for name in plan.source), before, total, plan.choices)


def _write_json(path: Path, value: object) -> None:
    try:
        write_text(path, json.dumps(value, indent=2) + "\n")
    except OSError as error:
        raise InvalidCheckpoint(f"{path.name} cannot be written: {error.strerror}") from None


def _copy_companions(source: Path, room: Path) -> None:
    """Tokenizers, templates and licences: every small file that holds no weights and is not written anew.

    A link that leads out of the checkpoint is not followed: the result may be given to others, and must not hold files
    of this machine.
    """
    for file in sorted(source.iterdir()) if source.is_dir() else []:
        written = (room / file.name).exists() or file.name in (INDEX, *QUANTISERS_OWN)
        if written or file.suffix in _NOT_COPIED or not is_file(file) or file.stat().st_size > _BIGGEST_COPY:
            continue
        if not file.resolve().is_relative_to(_home(source)):
            warnings.warn(
                f"{file} is a link to {file.resolve()}, outside of the checkpoint: it is not copied",
                TilewrightWarning,
                stacklevel=4,
            )
            continue
        try:
            shutil.copyfile(file, room / file.name)
        except OSError as error:
            raise InvalidCheckpoint(f"{file.name} cannot be copied: {error.strerror}") from None


def _home(source: Path) -> Path:
    """The directory whose files are a checkpoint's: its own, or in the hub's cache, where snapshots are links, that of
    the model."""
    place = source.resolve()
    return (
        place.parent.parent if place.parent.name == "snapshots" and (place.parent.parent / "blobs").is_dir() else place
    )
