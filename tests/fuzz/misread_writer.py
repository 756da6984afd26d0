"""Sound checkpoints of every form with one thing changed, as a real producer could write it or a later version could: what is read is
the weight that the changed checkpoint stands for, or it is refused; nothing is passed over.

    python tests/fuzz/misread_writer.py            every variation, and how many of each form are read right, refused, misread

What a changed checkpoint stands for is computed here in float64 from the format's description, never by the package under test.
"""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).resolve().parents[1]
for room in ("quant", "conversion"):
    sys.path.insert(0, str(TESTS / "unit" / room))

import misread_schemas as schemas  # noqa: E402
import test_closed_world as closed  # noqa: E402

from tilewright.conversion.layers import FORMS, NOT_READ, read_layer, recognise  # noqa: E402
from tilewright.conversion.settings import quantization_settings  # noqa: E402
from tilewright.errors import TilewrightError  # noqa: E402

Tensors = dict[str, np.ndarray]
Meaning = Callable[[Mapping[str, Any], Tensors], np.ndarray | None]
"""The weight that tensors and a configuration stand for, None where they contradict one another."""


@dataclass(frozen=True)
class Variation:
    """One checkpoint with one thing changed.

    Attributes
    ----------
    form, what : of which form, and what was changed.
    settings, tensors, metadata : the checkpoint of a layer ``up``.
    weight : what it stands for; None where it must be refused.
    named : a word that a refusal must have.
    """

    form: str
    what: str
    settings: dict[str, Any]
    tensors: Tensors
    metadata: dict[str, str] = field(default_factory=dict)
    weight: np.ndarray | None = None
    named: str = ""


class _Checkpoint(dict[str, np.ndarray]):
    metadata: Mapping[str, str] = {}


def read(one: Variation) -> np.ndarray:
    """The weight as it is read; as `to_dense`, without what turns activations."""
    source = _Checkpoint(one.tensors)
    source.metadata = one.metadata
    said = quantization_settings({"quantization_config": one.settings} if one.settings else {})
    found: dict[str, Any] = {}
    for layer in recognise(source, said):
        found |= read_layer(source, layer, said)
    return np.asarray(found["up"].to_dense())


def verdict(one: Variation) -> str:
    """``right``, ``refused``, or how it was misread."""
    try:
        found = read(one)
    except TilewrightError as error:
        return "refused" if one.named in error.message else f"misread: refused by {error.message!r}, not by {one.named}"
    if one.weight is None:
        return "misread: what contradicts itself was read"
    if found.shape != one.weight.shape or not np.allclose(found, one.weight, rtol=1e-12, atol=1e-13):
        return "misread: another weight"
    return "right"


@functools.cache
def base(form: str) -> Variation:
    """The sound checkpoint of a form."""
    settings, dot, tensors, metadata, weight = closed.case(form)
    named = {f"up{dot}{ending}": tensor for ending, tensor in tensors.items()}
    made = Variation(form, "nothing", settings, named, metadata, weight)
    return replace(made, weight=read(made)) if "up.theta" in named else made  # `to_dense` leaves rotations out


# Companions ---------------------------------------------------------------------------------------------

STRANGE = (
    ".azp_adj", ".smooth_scale", ".act_scale", ".SU", ".SV", ".alpha", ".rotation", ".perm", ".q_perm", ".outliers", ".weight_chan_scale",
    ".weight_scale_3", ".input_amax", ".scales2", ".lora_B.weight", ".weight_offset", ".weight_sub_scale", ".R", ".weight_zero",
    ".zero_point", ".shift", ".svdquant_lora_a", ".codebooks", ".channel_scale", ".had_left", ".scale_q", ".meta_scale.scale",
)  # fmt: skip
"""Endings of tensors that some library has beside a weight, and no form here."""

MEANT = {
    "torchao": {"._weight_act_pre_scale"}, "mlx nvfp4": {".global_scale"}, "modelopt": {".pre_quant_scale", ".weight_scale_2"},
    "fp8 without scales": {".weight_scale", ".weight_scale_inv", ".scale", ".scale_weight", ".qscale_weight"},
    "compressed-tensors int4": {".weight_zero_point"},
}  # fmt: skip
"""What some forms read where it is there, by how their names begin."""

KNOWN = {*NOT_READ}


def companions(form: str, shapes: int = 6) -> Iterator[Variation]:
    """A tensor more, of every ending that any form has, and of others' that none has: numbers that would change the weight."""
    sound = base(form)
    assert sound.weight is not None
    N, K = sound.weight.shape
    rng = np.random.default_rng(len(form))
    endings = sorted({ending for one in FORMS.values() for ending in (one.main, *one.others) if ending})
    meant = {ending for start, those in MEANT.items() if form.startswith(start) for ending in those}
    kinds: list[tuple[tuple[int, ...], type]] = [
        ((K,), np.float32), ((N, K), np.float32), ((1,), np.float32), ((N, 1), np.float16), ((K,), np.int32), ((N, 2), np.int8)
    ]  # fmt: skip
    for ending in (*endings, *STRANGE):
        name = f"up{ending}"
        if name in sound.tensors or ending in meant:
            continue
        known = ending in KNOWN
        for shape, kind in kinds[:shapes]:
            more = {**sound.tensors, name: rng.integers(2, 7, shape).astype(kind)}
            weight = sound.weight if known else None
            yield replace(sound, what=f"{ending} {kind.__name__}{list(shape)} more", tensors=more, weight=weight)


# Words --------------------------------------------------------------------------------------------------

OPEN = {"meta", "producer", "calibration", "quant_config", "quant_type", "quant_type_kwargs", "kv_cache_scheme", "exllama_config",
    "modules_to_fuse", "observer_kwargs", "input_tensors", "output_tensors", "kv_cache_quant_config", "softmax_quant_spec", "layers"}  # fmt: skip
"""Tables that change no number of a weight whatever they say: the reasons are beside their names in `conversion.methods`."""


def tables(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The places of all tables in a configuration that are read."""
    if isinstance(value, dict):
        yield path
        for key, inner in value.items():
            if key not in OPEN:
                yield from tables(inner, (*path, key))


def put(settings: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The settings with a value in a place."""
    made = copy.deepcopy(dict(settings))
    at = made
    for key in path[:-1]:
        at = at.setdefault(key, {})
    at[path[-1]] = value
    return made


def words(name: str) -> Iterator[Variation]:
    """A word that no version has so far, in every table of a whole configuration: it is named where it says something."""
    schema = schemas.SCHEMAS[name]
    sound = replace(base(schema.base), form=name, settings=schema.settings)
    for path in tables(schema.settings):
        if path and path[-1] in schema.by_names:
            continue  # a table of tables by the names of layers
        for value in (3, "strange", [1]):
            what = ".".join((*path, "mystery"))
            said = put(schema.settings, (*path, "mystery"), value)
            yield replace(sound, what=f"{what}: {value}", settings=said, weight=None, named="mystery")


def values(name: str) -> Iterator[Variation]:
    """Every word with every other value of its producer's own schema."""
    schema = schemas.SCHEMAS[name]
    for form in (schema.base, *schema.bases):
        sound = replace(base(form), form=name, settings=schema.settings)
        assert sound.weight is not None
        yield replace(sound, what=f"nothing of {form}")
        for path, choices in schema.values.items():
            for choice in choices:
                changed = put(schema.settings, tuple(path.split(".")), choice)
                weight = schema.meaning(changed, sound.tensors, sound.weight)
                yield replace(sound, what=f"{form}: {path}: {choice!r}", settings=changed, weight=weight)


# Metadata beside tensors --------------------------------------------------------------------------------


def notes(form: str) -> Iterator[Variation]:
    """A word more in the texts that lie in a file beside the tensors: bitsandbytes' states, torchao's metadata."""
    sound = base(form)
    for value in (3, 0, "strange", [1], True):
        for key, text in sound.metadata.items():
            said = json.loads(text)
            said["_data"]["mystery"] = value
            yield replace(
                sound, what=f"mystery: {value}", metadata={key: json.dumps(said)}, weight=None, named="mystery"
            )
        for key, tensor in sound.tensors.items():
            if ".quant_state." in key:
                state = {**json.loads(bytes(tensor)), "mystery": value}
                more = {**sound.tensors, key: np.frombuffer(json.dumps(state).encode(), np.uint8)}
                yield replace(sound, what=f"mystery: {value}", tensors=more, weight=None, named="mystery")


def wider(form: str) -> Iterator[Variation]:
    """Scales and zero points of another type of floats, of the same value."""
    sound = base(form)
    for name, tensor in sound.tensors.items():
        for kind in (np.float32, np.float64):
            if tensor.dtype.name in ("float16", "bfloat16", "float32") and tensor.dtype != kind:
                more = {**sound.tensors, name: tensor.astype(kind)}
                yield replace(sound, what=f"{name} as {kind.__name__}", tensors=more)


def everything() -> Iterator[Variation]:
    """All variations."""
    for form in closed.NAMES:
        yield base(form)
        yield from itertools.chain(companions(form), notes(form), wider(form))
    for name in schemas.SCHEMAS:
        yield from itertools.chain(words(name), values(name))


def sample(seed: int, count: int) -> list[Variation]:
    """Some of the variations, spread over all forms and kinds."""
    rng = random.Random(seed)
    forms = rng.sample(list(closed.NAMES), 12)
    few = [one for form in forms for one in itertools.chain(companions(form, 1), notes(form), wider(form))]
    few += [one for name in schemas.SCHEMAS for one in itertools.chain(words(name), values(name))]
    return rng.sample(few, min(count, len(few)))


def main() -> int:
    np.seterr(all="ignore")
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for one in everything():
        found = verdict(one)
        counts[one.form][found.partition(":")[0]] += 1
        if found not in ("right", "refused"):
            print(one.form, "|", one.what, "|", found[:200], flush=True)
    for form, of in counts.items():
        print(f"{form:60} right {of['right']:5} refused {of['refused']:5} misread {of['misread']:5}")
    total = sum(counts.values(), collections.Counter())
    print(dict(total))
    return int(total["misread"] > 0)


if __name__ == "__main__":
    sys.exit(main())
