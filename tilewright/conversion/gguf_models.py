"""A GGUF file as transformers has the model in memory: names, and the order of rows that llama.cpp's conversion
changes.

llama.cpp's converter gives tensors names of its own, and some of them other numbers: it puts rows of queries and keys
in the order in which its rotation takes pairs, takes a joined QKV apart by heads, adds one to norms. What it does to an
architecture is in `ARCHITECTURES`; another one is refused, since its numbers may mean something else than they seem to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tilewright.checkpoints import Checkpoint
from tilewright.checkpoints.gguf import GGUFTensor
from tilewright.conversion.experts import APART, STACKED, Stack, stacks_of
from tilewright.conversion.modules import is_transposed
from tilewright.conversion.names import names_in
from tilewright.errors import CannotQuantize, InvalidTensor
from tilewright.libraries import torch
from tilewright.quant.files import CODES, METADATA, METADATA_BEFORE

Order = Callable[[Mapping[str, object], str, int], np.ndarray]
"""For metadata, the name of an architecture and a number of rows: which of a file's rows stands where in the model."""


def _pairs(heads: str) -> Order:
    """Rows of queries or keys: a file has the halves that are rotated with one another side by side, a model in two
    halves of a head."""

    def order(metadata: Mapping[str, object], architecture: str, rows: int) -> np.ndarray:
        count = _number(metadata, f"{architecture}.attention.{heads}", rows)
        return np.arange(rows).reshape(count, rows // count // 2, 2).swapaxes(1, 2).reshape(rows)

    return order


def _joined(metadata: Mapping[str, object], architecture: str, rows: int) -> np.ndarray:
    """Rows of a joined QKV: a file has all queries, all keys, all values; a model has them group by group of heads."""
    queries = _number(metadata, f"{architecture}.attention.head_count", rows)
    groups = _number(metadata, f"{architecture}.attention.head_count_kv", rows, queries)
    width = rows // (queries + 2 * groups)
    each = np.arange(rows).reshape(-1, width)
    q, k, v = np.split(each, [queries, queries + groups])
    parts = [q.reshape(groups, -1), k.reshape(groups, -1), v.reshape(groups, -1)]
    return np.concatenate(parts, 1).reshape(rows)


def _number(metadata: Mapping[str, object], key: str, rows: int, default: int | None = None) -> int:
    """A number of heads.  Raises InvalidTensor where a file has none that divides the rows, or one a layer."""
    found = metadata.get(key, default)
    if type(found) is not int or found < 1 or rows % found or (rows // found) % 2:
        raise InvalidTensor(f"the file says {key}: {found}, where a number of heads is due that {rows} rows belong to")
    return found


@dataclass(frozen=True, slots=True)
class Conversion:
    """What llama.cpp's converter does to the tensors of an architecture beside renaming.

    Attributes
    ----------
    rows : orders of rows by the last part of a layer's name.
    numbers : by a regular expression for the last part, what makes the model's numbers of a file's.
    """

    rows: Mapping[str, Order]
    numbers: Mapping[str, Callable[[np.ndarray], np.ndarray]]


def _less_one(values: np.ndarray) -> np.ndarray:
    return values - np.asarray(1, values.dtype)


def _decay(values: np.ndarray) -> np.ndarray:
    """``A_log`` of what a file has as ``-exp(A_log)``."""
    return np.log(-values)


_AS_IT_IS = Conversion({}, {})
_ROTATED = Conversion({"attn_q": _pairs("head_count"), "attn_k": _pairs("head_count_kv")}, {})
_BY_HEADS = Conversion({"attn_qkv": _joined}, {})
_ONE_MORE = Conversion({}, {r".*norm\.weight": _less_one})
_STATES = Conversion({}, {"ssm_a": _decay})

ARCHITECTURES: dict[str, Conversion] = {
    **dict.fromkeys(("llama", "arcee", "granite", "granitemoe", "olmo", "smollm3"), _ROTATED),
    **dict.fromkeys(("bloom", "falcon", "gptneox"), _BY_HEADS),
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "nemotron"), _ONE_MORE),
    **dict.fromkeys(("mamba", "mamba2"), _STATES),
    **dict.fromkeys(
        (
            "qwen2", "qwen2moe", "qwen3", "qwen3moe", "phi2", "phi3", "starcoder2", "stablelm", "gpt2", "gpt-oss",
            "llama4", "olmo2", "olmoe",
            "cohere2", "command-r", "exaone4", "chatglm", "glm4", "glm4moe", "hunyuan-dense", "ernie4_5", "seed_oss",
            "lfm2", "bert",
        ),
        _AS_IT_IS,
    ),
}  # fmt: skip
"""What llama.cpp's converter does, by the architecture that a file names; each compared with what it writes of a small
model."""

_ROTATION = ("rope_freqs", "rope_factors_long", "rope_factors_short")
"""Divisors of frequencies, which transformers has in its configuration: compared with it, not loaded."""

_EXPERTS = re.compile(r"ffn_(gate|up|down)_exps")


def as_in_model(source: Checkpoint, model: torch.nn.Module) -> Checkpoint:
    """A checkpoint of llama.cpp's names as one of a transformers model's; any other as it is. Raises CannotQuantize for
    an architecture whose conversion is not known, or where the package ``gguf`` is missing, which has the names;
    InvalidTensor for a tensor that the model has no place for, or several."""
    metadata = source.config.get("gguf")
    architecture = (metadata or {}).get("general.architecture")
    if not isinstance(metadata, Mapping) or not hasattr(model, "base_model_prefix") or set(source) & _held(model):
        return source
    if architecture not in ARCHITECTURES:
        raise CannotQuantize(
            f"{source.directory} is a {architecture}: what llama.cpp's conversion changes in its weights is not "
            "known here",
            hint=f"known: {', '.join(sorted(ARCHITECTURES))}",
        )
    return _InModel(source, model, architecture, metadata)


def _held(model: torch.nn.Module) -> set[str]:
    return {name for name, _ in (*model.named_parameters(), *model.named_buffers())}


class _InModel(Checkpoint):
    """The tensors of a source under the model's names, with its numbers.

    Experts of a layer, three tensors in a file, become parts of the model's two: ``experts.gate_proj`` and so on where
    they are codes, for which `GatheredExperts` knows what to do, ``experts.gate_up_proj`` where they are floats.
    """

    def __init__(
        self, source: Checkpoint, model: torch.nn.Module, architecture: str, metadata: Mapping[str, object]
    ) -> None:
        self._source, self._architecture, self._metadata = source, architecture, metadata
        self._how = ARCHITECTURES[architecture]
        self.directory, self.config = source.directory, source.config
        self._files, self._transposed = {}, set()
        self._joined: dict[str, tuple[Stack, tuple[str, ...]]] = {}
        places = _Places(model, architecture, metadata)
        self._of: dict[str, str] = {}
        for name in source:
            if name.partition(".")[0] in _ROTATION:
                _check_rotation(model, name, np.asarray(source[name], np.float64))
                continue
            place = places(name)
            if place in self._of:
                raise InvalidTensor(f"{name} and {self._of[place]} are both {place} of the model")
            self._of[place] = name
        modules = dict(model.named_modules())
        self._transposed = {f"{name}.weight" for name, module in modules.items() if is_transposed(module)}
        self._join(places.stacks)
        self._home = {name: source.shard_of(self._parts(name)[0]) for name in self}
        self.shards = {shard: [name for name in self if self._home[name] == shard] for shard in source.shards}
        self.blocks = {name: self._block(name, old) for name, old in self._of.items() if old in source.blocks}

    def _parts(self, name: str) -> tuple[str, ...]:
        return self._joined[name][1] if name in self._joined else (self._of[name],)

    def _join(self, stacks: Mapping[str, Stack]) -> None:
        """Bring experts in floats, and their biases, to the model's tensors."""
        for full, stack in stacks.items():
            if stack.names != STACKED:
                continue
            for ending in ("", "_bias"):
                for whole, parts in ((STACKED[0], APART[0][:2]), (STACKED[1], APART[0][2:])):
                    names = [f"{full}.{part}{ending}" for part in parts]
                    dense = [name for name in names if name in self._of and self._of[name] not in self._source.blocks]
                    if len(dense) == len(names):
                        self._joined[f"{full}.{whole}{ending}"] = stack, tuple(self._of.pop(name) for name in names)

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self._joined:
            stack, parts = self._joined[name]
            arrays = [self._source[part] for part in parts]
            both = arrays[0]
            if len(arrays) == 2:
                apart = stack.form.neighbours
                both = (
                    np.stack(arrays, 2).reshape(len(both), -1, *both.shape[2:]) if apart else np.concatenate(arrays, 1)
                )
            return both.swapaxes(1, 2) if stack.columns and both.ndim == 3 else both
        old = self._of[name]
        array, last = self._source[old], old.removeprefix("blk.").partition(".")[2] or old
        if old in self._source.blocks:
            return self.blocks[name].data
        if self._is_metadata(old):
            return array
        for pattern, made in self._how.numbers.items():
            if re.fullmatch(pattern, last) or re.fullmatch(pattern, old):
                array = made(array)
        order = self._order(old, len(array) if array.ndim else 1)
        array = array if order is None else np.ascontiguousarray(array[order])
        return array.T if name in self._transposed and not name.endswith(f".{CODES}") else array

    def _is_metadata(self, old: str) -> bool:
        """Whether a tensor is what `convert` writes beside codes."""
        owner, _, last = old.rpartition(".")
        return last in (METADATA, METADATA_BEFORE) and f"{owner}.{CODES}" in self._source

    def _order(self, old: str, rows: int) -> np.ndarray | None:
        layer = old.split(".")[2] if old.startswith("blk.") else ""
        if layer not in self._how.rows or rows == 1:
            return None
        return self._how.rows[layer](self._metadata, self._architecture, rows)

    def _block(self, name: str, old: str) -> GGUFTensor:
        found = self._source.blocks[old]
        order = self._order(old, found.shape[0])
        if order is None:
            return replace(found, name=name)
        rows = np.reshape(found.data, (found.shape[0], -1))
        return replace(found, name=name, data=np.ascontiguousarray(rows[order]).reshape(-1))

    def __iter__(self) -> Iterator[str]:
        yield from self._of
        yield from self._joined

    def __len__(self) -> int:
        return len(self._of) + len(self._joined)

    def release(self) -> None:
        self._source.release()


class _Places:
    """What a model calls a file's tensors: the package ``gguf`` has the names that checkpoints have, transformers those
    in memory."""

    def __init__(self, model: torch.nn.Module, architecture: str, metadata: Mapping[str, object]) -> None:
        try:
            from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
        except ImportError:
            raise CannotQuantize(
                "a GGUF file's tensors have names of their own; the package gguf says which they are, and is not "
                "installed",
                hint="pip install gguf",
            ) from None
        known = {name: number for number, name in MODEL_ARCH_NAMES.items()}
        blocks = metadata.get(f"{architecture}.block_count")
        if architecture not in known or type(blocks) is not int:
            raise CannotQuantize(f"the package gguf has no names of a {architecture} of {blocks} blocks")
        self._candidates: dict[str, list[str]] = {}
        for theirs, (_, ours) in get_tensor_name_map(known[architecture], blocks).mapping.items():
            self._candidates.setdefault(ours, []).append(theirs)
        self._renamed, self.stacks = names_in(model), stacks_of(model)
        self._modules, self._tensors = {name for name, _ in model.named_modules()}, _held(model)

    def __call__(self, name: str) -> str:
        """The model's name of a file's tensor.  Raises InvalidTensor."""
        parts = name.split(".")
        divided = ((".".join(parts[:n]), parts[n:]) for n in range(len(parts), 0, -1))
        layer, rest = next((one for one in divided if one[0] in self._candidates), (name, []))
        of_experts = _EXPERTS.search(layer)
        if of_experts:
            found = {f"{full}.{of_experts[1]}_proj" for full in self._owners(layer)}
            rest = [] if rest == ["weight"] else rest
            places = {f"{one}_bias" if rest == ["bias"] else ".".join([one, *rest]) for one in found}
        else:
            places = {place for theirs in self._candidates.get(layer, ()) for place in self._in_model(theirs, rest)}
        if len(places) != 1:
            what = f"several places, {' and '.join(sorted(places))}" if places else "no such tensor"
            raise InvalidTensor(
                f"the file has {name}, for which the model has {what}", hint="is it of this architecture?"
            )
        return places.pop()

    def _owners(self, layer: str) -> set[str]:
        """Modules with the experts that a layer of a file may be."""
        heads = {
            theirs.partition(".experts")[0] + ".experts" for theirs in self._candidates[layer] if ".experts" in theirs
        }
        return {self._renamed(f"{head}.0.w1").removesuffix(".0.w1") for head in heads} & self.stacks.keys()

    def _in_model(self, theirs: str, rest: list[str]) -> Iterator[str]:
        try:
            name = self._renamed(theirs)
        except CannotQuantize:
            return
        if name in self._modules:
            yield ".".join([name, *rest])
        elif name in self._tensors and rest in ([], ["weight"]):
            yield name
        elif rest == ["bias"] and self._renamed(f"{theirs}_bias") in self._tensors:
            yield self._renamed(f"{theirs}_bias")


def _check_rotation(model: torch.nn.Module, name: str, divisors: np.ndarray) -> None:
    """A model rotates as a file says. Raises InvalidTensor where its configuration has other frequencies."""
    said = getattr(model.config, "rope_parameters", None) or getattr(model.config, "rope_scaling", None) or {}
    layer = name.partition(".")[0]
    if layer != "rope_freqs":
        due = said.get(layer.removeprefix("rope_factors_") + "_factor")
        if due is None or not np.allclose(np.ravel(due), divisors.ravel(), rtol=1e-5):
            raise InvalidTensor(
                f"the file has {name}, which is not what the model's configuration says of its rotation ({said})"
            )
        return
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind = said.get("rope_type", "default")
    width = 2 * divisors.size
    plain = 1.0 / float(said.get("rope_theta", 10000.0)) ** (np.arange(0, width, 2) / width)
    rotated = plain if kind == "default" else ROPE_INIT_FUNCTIONS[kind](model.config, "cpu")[0].double().numpy()
    if rotated.shape != plain.shape or not np.allclose(rotated * divisors.ravel(), plain, rtol=1e-4):
        raise InvalidTensor(
            f"the file rotates by other frequencies ({name}, divisors up to {divisors.max():g}) than the model's "
            f"configuration ({said})",
            hint='rope_parameters of the type "llama3" has such divisors',
        )
