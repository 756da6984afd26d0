"""What a model calls the layers of a checkpoint: transformers 5 has other names in memory than files have."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tilewright.errors import CannotQuantize, MissingTensor
from tilewright.libraries import torch
from tilewright.matmul.arrays import as_torch
from tilewright.quant.files import CODES, METADATA

_GATED, _GATES = ("gate_proj", "up_proj"), "gate_up_proj"
"""Two layers that transformers' models have as the rows of one, in this order, and GPTQModel takes apart (Phi 3)."""

_PROBED = 4
"""Columns of the matrices that show what becomes of rows."""


class Names:
    """How names of a checkpoint become a model's: here they are the same, as in all models but transformers'."""

    def __call__(self, name: str) -> str:
        """The model's name of a layer or a tensor."""
        return name

    def made_of(self, layer: str) -> list[str]:
        """The layers of a model that the rows of a checkpoint's layer go to, alone or with those of others; none where
        it is one of the model's itself."""
        return []

    def rows(self, target: str, sources: Mapping[str, int]) -> dict[str, np.ndarray]:
        """Which rows of a checkpoint's layers, of so many rows each, make a model's (`target` is the first of what they
        are `made_of`), by the model's names: numbers that count through all sources, in their order. Raises
        CannotQuantize where more than rows is brought into another order."""
        return {}

    def joined(self, source: Mapping[str, object], names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Tensors of a model that are made of several of a checkpoint's, or of one in another order, by the model's
        names; `names` are those that are not codes."""
        return iter(())

    def is_joined(self, name: str) -> bool:
        """Whether a tensor of a checkpoint becomes one of the model's by `joined`."""
        return False


def names_in(model: torch.nn.Module, source: Iterable[str] = ()) -> Names:
    """What a model calls the layers and tensors of a checkpoint.

    transformers says it of its own models (`get_model_conversion_mapping`): parts that are called differently, and the
    prefix of the base model where one side has it and the other not. Some of its rules hold only where they have met
    another name of the checkpoint, so it is told all of them.
    """
    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(model, transformers.PreTrainedModel):
        return Names()
    try:
        return _TransformersNames(model, source)
    except ImportError:  # transformers 4 has the names of files
        return Names()


class _TransformersNames(Names):
    def __init__(self, model: torch.nn.Module, source: Iterable[str]) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

        mapping = get_model_conversion_mapping(model)
        self.model, self.order = model, dot_natural_key
        self._renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
        self._converters = [one for one in mapping if isinstance(one, WeightConverter)]
        self._known = {pattern: one for one in self._converters for pattern in one.source_patterns}
        self._held = dict.fromkeys(model.state_dict(), True)
        self._modules = {name for name, _ in model.named_modules()}
        self._rename = rename_source_key
        for name in sorted(source, key=self.order):
            self._renamed(name)

    def _renamed(self, name: str, converted: bool = False) -> tuple[str, str | None]:
        converters = self._converters if converted else []
        found = self._rename(name, self._renamings, converters, self.model.base_model_prefix, self._held)
        return str(found[0]), found[1]

    def __call__(self, name: str) -> str:
        for ending in ("", ".weight"):
            renamed, _ = self._renamed(name + ending)
            if renamed in self._held:
                return renamed.removesuffix(ending)
            if name + ending in self._held:  # a rule that is meant for others met it
                return name
        rest = name.removeprefix("model.")  # which mlx-lm calls every base model, and some of their layers h
        ours = [f"{start}{rest}" for start in (f"{self.model.base_model_prefix}.", "")] if rest != name else []
        for one in [*ours, *(name.replace(".h.", ".layers.") for name in ours)]:
            if one in self._held or f"{one}.weight" in self._held:
                return one
        return self._nearest(self._renamed(name)[0])

    def _nearest(self, name: str) -> str:
        """A name that is none of the model's (an expert's, a bias's that it lacks), with the base model's prefix where
        its modules have it and without where they don't."""
        prefix = f"{self.model.base_model_prefix}."
        bare = name.removeprefix(prefix)
        ways = {name: 0, bare: 0} if bare != name else {name: 0, prefix + name: prefix.count(".")}
        return max(ways, key=lambda one: self._known_parts(one) - ways[one])

    def _known_parts(self, name: str) -> int:
        """Of how many parts the longest beginning of a name is that is a module's."""
        parts = name.split(".")
        return max((count for count in range(1, len(parts)) if ".".join(parts[:count]) in self._modules), default=0)

    def made_of(self, layer: str) -> list[str]:
        if ".experts." in layer or self(layer) in self._modules:
            return []
        head, _, last = self(layer).rpartition(".")
        if last in _GATED and f"{head}.{_GATES}" in self._modules:
            return [f"{head}.{_GATES}"]
        weight, pattern = self._renamed(f"{layer}.weight", converted=True)
        if pattern is None or weight not in self._held:
            return []
        first, *others = self._known[pattern].target_patterns
        return [weight.replace(first, one).removesuffix(".weight") for one in (first, *others)]

    def rows(self, target: str, sources: Mapping[str, int]) -> dict[str, np.ndarray]:
        weight, one = f"{target}.weight", None
        begun = dict(zip(sources, np.cumsum([0, *sources.values()])))
        apart = {name.rpartition(".")[2]: begun[name] + np.arange(count) for name, count in sources.items()}
        if target.endswith(f".{_GATES}") and apart.keys() <= set(_GATED):
            if len(apart) < len(_GATED):
                raise MissingTensor(
                    f"{target} is made of {' and '.join(_GATED)}, of which only {', '.join(sources)} is of codes"
                )
            return {target: np.concatenate([apart[part] for part in _GATED])}
        for name in sorted(sources, key=self.order):
            pattern = self._renamed(f"{name}.weight", converted=True)[1]
            one = one or copy.deepcopy(self._known[str(pattern)])
            numbers = np.arange(sources[name] * _PROBED).reshape(-1, _PROBED) + begun[name] * _PROBED
            one.add_tensor(weight, name, pattern, functools.partial(as_torch, numbers, "cpu"))
        made: dict[str, np.ndarray] = {}
        try:
            assert one is not None
            for name, values in one.convert(weight, model=self.model, config=self.model.config).items():
                found = np.asarray(values[0] if isinstance(values, list) else values)
                made[name.removesuffix(".weight")] = found[:, 0] // _PROBED
                if found.shape[1:] != (_PROBED,) or (found != found[:, :1] + np.arange(_PROBED)).any():
                    raise ValueError("it changes columns")
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise CannotQuantize(
                f"{weight}: transformers makes it of {', '.join(sources)} in a way that codes do not allow ({error})",
                hint="quantise the model after it is loaded: tilewright.quantize(model, scheme)",
            ) from error
        return made

    def joined(self, source: Mapping[str, object], names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        made: dict[str, Any] = {}
        for name in sorted(names, key=self.order):
            target, pattern = self._renamed(name, converted=True)
            if pattern is not None and target in self._held:
                one = made.setdefault(target, copy.deepcopy(self._known[pattern]))
                one.add_tensor(target, name, pattern, functools.partial(_tensor, source, name))
        for target in list(made):
            found = made.pop(target).convert(target, model=self.model, config=self.model.config)
            for name, values in found.items():
                yield name, values[0] if isinstance(values, list) else values

    def is_joined(self, name: str) -> bool:
        target, pattern = self._renamed(name, converted=True)
        return pattern is not None and target in self._held


def _tensor(source: Mapping[str, object], name: str) -> torch.Tensor:
    return as_torch(source[name], "cpu")


def keep_names(model: torch.nn.Module, quantised: Iterable[str]) -> None:
    """Tell a transformers model to save modules that hold codes as they are: what it splits, turns and calls by a name
    that only its ``weight`` has on saving are dense weights."""
    transformers = sys.modules.get("transformers")
    inside = tuple(f"{name}." for name in quantised)
    if transformers is None or not isinstance(model, transformers.PreTrainedModel) or not inside:
        return
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import PrefixChange, WeightConverter
    except ImportError:
        return
    known = getattr(model, "_weight_conversions", None)
    if known is None:  # as transformers does for a model that was not loaded
        known = [
            one for one in get_model_conversion_mapping(model, add_legacy=False) if not isinstance(one, PrefixChange)
        ]
    ours = [name for name in model.state_dict() if name.startswith(inside)]

    def touches(one: Any) -> bool:
        back = one.reverse_transform()
        if isinstance(one, WeightConverter):
            return any(back.rename_source_key(name)[1] is not None for name in ours)
        layers = [name.removesuffix(f".{CODES}") for name in ours if name.endswith(f".{CODES}")]
        renamed = [[back.rename_source_key(f"{name}.{end}")[0] for end in (CODES, METADATA)] for name in layers]
        return any(codes.rpartition(".")[0] != about.rpartition(".")[0] for codes, about in renamed)

    model._weight_conversions = [one for one in known if not touches(one)]
