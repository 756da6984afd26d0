"""GPTQ with the inputs that a model gives its layers and its experts, block after block."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from tilewright.conversion.experts import Stack, replace_stack
from tilewright.conversion.modules import layer_shape, replace_layer, weight_of
from tilewright.conversion.schemes import QuantizationScheme
from tilewright.errors import CannotQuantize
from tilewright.formats import SCHEMES
from tilewright.libraries import torch
from tilewright.matmul.packed import PackedWeight
from tilewright.progress import Progress
from tilewright.quant.gptq import Hessian, gptq_quantize
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.tensors import as_numpy

OTHERS = 0.1
"""How much a row of another expert counts beside an expert's own, where an expert has fewer rows than its weights have
columns."""


Part = TypeVar("Part")


def blocks_of(model: torch.nn.Module, parts: Mapping[str, Part]) -> list[dict[str, Part]]:
    """Layers and experts by the child of the model's longest list of modules that they are in, in their order; those
    outside last."""
    lists = [
        (n, m)
        for n, m in model.named_modules()
        if isinstance(m, (torch.nn.ModuleList, torch.nn.Sequential)) and len(m) > 1
    ]
    longest = max(lists, key=lambda entry: len(entry[1]), default=("", ()))[0]
    start = f"{longest}." if longest else ""
    groups: dict[str, dict[str, Part]] = {}
    for name, part in parts.items():
        inside = bool(lists) and name.startswith(start)
        key = name[len(start) :].partition(".")[0] if inside else "outside"
        groups.setdefault(key, {})[name] = part
    outside = groups.pop("outside", None)
    return [*groups.values(), *([outside] if outside else [])]


class Calibrated:
    """GPTQ over blocks of a model's layers and experts."""

    def __init__(
        self,
        model: torch.nn.Module,
        how: QuantizationScheme,
        batches: list[object],
        run: Callable[..., object] | None,
        act_order: bool,
        damping: float,
        bar: Progress,
    ) -> None:
        if how.format in SCHEMES:
            raise CannotQuantize(
                f"{how.name} has scales that GPTQ does not choose", hint="round it to nearest: no calibration"
            )
        self.model, self.how, self.batches, self.run, self.bar = model, how, batches, run or _call, bar
        self.options: dict[str, Any] = {
            "group": how.group, "zeros": how.zeros, "act_order": act_order, "damping": damping,
        }  # fmt: skip

    def quantise(self, block: Mapping[str, torch.nn.Module]) -> None:
        """Round the layers and experts of a block with inputs from one run over the calibration."""
        hessians = {name: Hessian(layer_shape(part)[1]) for name, part in block.items() if not isinstance(part, Stack)}
        inputs = {name: ExpertInputs(part) for name, part in block.items() if isinstance(part, Stack)}
        self._listen(block, hessians, inputs)
        for name, part in block.items():
            seen = inputs[name].count if isinstance(part, Stack) else hessians[name].count
            if not seen:
                raise CannotQuantize(
                    f"no calibration input reaches {name}", hint="leave it out with skip=, or use more inputs"
                )
            if isinstance(part, Stack):
                self._quantise_experts(name, part, inputs.pop(name))
                continue
            self.bar.step(name)
            weight = self._rounded(_finite(f"{name}.weight", weight_of(part)), hessians.pop(name))
            replace_layer(self.model, name, part, PackedWeight.pack(weight), self.how.activations)

    def _rounded(self, numbers: np.ndarray, hessian: Hessian) -> QuantizedWeight:
        held = self.how.scale_dtype_for(float(np.abs(numbers).max(initial=0.0)))
        return gptq_quantize(numbers, hessian, self.how.format, scale_dtype=held, **self.options)

    def _listen(
        self, block: Mapping[str, Any], hessians: Mapping[str, Hessian], inputs: Mapping[str, ExpertInputs]
    ) -> None:
        def listen(name: str) -> Callable[..., None]:
            def take(
                module: torch.nn.Module, given: tuple[object, ...], named: dict[str, object], result: object
            ) -> None:
                arguments = list(inspect.signature(module.forward).bind(*given, **named).arguments.values())
                if name in inputs:
                    inputs[name].take(arguments[0], tuple(one for one in arguments[1:] if one is not None))
                else:
                    hessians[name].add(as_numpy(arguments[0].detach().float()))

            return take

        modules = {name: part.module if isinstance(part, Stack) else part for name, part in block.items()}
        hooks = [module.register_forward_hook(listen(name), with_kwargs=True) for name, module in modules.items()]
        try:
            with torch.no_grad():
                for batch in self.batches:
                    self.run(self.model, batch)
        finally:
            for hook in hooks:
                hook.remove()

    def _quantise_experts(self, name: str, stack: Stack, inputs: ExpertInputs) -> None:
        """Round the experts of a module one by one, each with its own inputs: its second weight with what its rounded
        first one gives."""
        made: dict[str, list[PackedWeight]] = {one: [] for one in stack.names}
        weights = zip(*(stack.weights(one) for one in stack.names))
        widest = max(stack.shape(one)[2] for one in stack.names)
        for expert, numbers in enumerate(weights):
            self.bar.step(f"{name} {expert}")
            own, others = inputs.of(expert, widest)
            for one, given in zip(stack.names, numbers):
                dense = _finite(f"{name}.{one}[{expert}]", given)
                hessian = Hessian(dense.shape[1])
                hessian.add(own)
                hessian.add(others * np.float32(OTHERS**0.5))
                weight = self._rounded(dense, hessian)
                made[one].append(PackedWeight.pack(weight))
                if one is not stack.names[-1]:
                    own, others = (stack.between(expert, rows, weight) for rows in (own, others))
        biases = {one: stack.bias(one) for one in stack.names}
        replace_stack(self.model, name, stack, made, biases, self.how.activations)


class ExpertInputs:
    """The rows that a module with experts was given, and which expert multiplies which of them."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.count = stack, 0
        self._rows: list[torch.Tensor] = []
        self._of: list[Sequence[Any]] = []

    def take(self, hidden: Any, routing: tuple[Any, ...]) -> None:
        """Keep the arguments of one call."""
        rows = hidden.detach().reshape(-1, hidden.shape[-1]).cpu()
        numbers, sizes = self.stack.rows_by_expert(hidden, routing)
        self._of.append(torch.as_tensor(numbers).cpu().split(list(map(int, sizes))))
        self._rows.append(rows)
        self.count += len(rows)

    def of(self, expert: int, least: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows of an expert, and where they are fewer than `least`, as many more of the others': float32
        ``[rows, K]``."""
        own = np.concatenate([self._float(rows[of[expert]]) for rows, of in zip(self._rows, self._of)])
        missing = min(max(least - len(own), 0), self.count)
        if not missing:
            return own, own[:0]
        chosen = np.linspace(0, self.count - 1, missing).astype(np.int64)
        return own, np.concatenate([*self._chosen(chosen)])

    def _chosen(self, chosen: np.ndarray) -> Iterator[np.ndarray]:
        start = 0
        for rows in self._rows:
            inside = chosen[(chosen >= start) & (chosen < start + len(rows))] - start
            yield self._float(rows[inside])
            start += len(rows)

    @staticmethod
    def _float(rows: torch.Tensor) -> np.ndarray:
        return as_numpy(rows.float())


def _finite(name: str, weight: Any) -> np.ndarray:
    """A weight as float32.  Raises CannotQuantize for what has no codes: NaN or infinity, named with its place."""
    if weight.is_meta:
        raise CannotQuantize(f"{name} is on the meta device: it has no numbers", hint="load the model's weights first")
    wide = as_numpy(weight.float())
    wrong = np.argwhere(~np.isfinite(wide))
    if len(wrong):
        place = [int(one) for one in wrong[0]]
        raise CannotQuantize(f"{name} is {wide[tuple(place)]} at {place}", hint="only finite weights have codes")
    return wide


def _call(model: torch.nn.Module, batch: object) -> object:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
