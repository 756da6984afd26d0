"""`Experts`: quantised weights of a mixture of experts that a model keeps in tensors of three dimensions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, SupportsInt

import torch
from torch.compiler import is_compiling

from tilewright.errors import MissingTensor, WrongArgumentShape
from tilewright.matmul.arrays import as_torch
from tilewright.matmul.experts import grouped_matmul
from tilewright.matmul.handles import handle_of
from tilewright.matmul.known_calls import is_watched
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.packed_experts import PackedExperts
from tilewright.matmul.torch_operators import autocast, register_operators
from tilewright.nn.expert_form import CLAMPED, ExpertForm
from tilewright.quant import QuantizedWeight
from tilewright.quant.files import CODES, METADATA, metadata_bytes, read_weight, stack_note
from tilewright.quant.weight import ARRAYS

register_operators()


class ExpertWeights(torch.nn.Module):
    """Weights of one shape, one for each expert, with their biases: what a parameter ``[experts, N, K]`` becomes.

    Parameters
    ----------
    weights : of one form.
    bias : ``[experts, N]``, or None.
    activations : type that activations are quantised to in the call, None for as they come.
    device : of the weights.

    Notes
    -----
    In a state dict expert 3 has the tensors of a weight of that name: ``3.qweight``, ``3.scales``, ...; and ``3.bias``.
    The name of the module itself, which was that of the parameter, has a note (`quant.files.stack_note`).
    An entry can stand in `torch.nn.functional.linear`: ``linear(x, weights[3])``.
    """

    bias: torch.Tensor | None

    def __init__(
        self,
        weights: Sequence[QuantizedWeight | PackedWeight],
        bias: torch.Tensor | None = None,
        activations: str | None = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        device = torch.get_default_device() if device is None else device
        packed = [one if isinstance(one, PackedWeight) else PackedWeight.pack(one) for one in weights]
        self.weight = PackedExperts([one.to(device) for one in packed])
        self.activations, self.handle = activations, handle_of(self, device)
        self.register_buffer("bias", None if bias is None else bias.detach().to(device).clone(), persistent=False)

    def __len__(self) -> int:
        return len(self.weight)

    def __getitem__(self, expert: SupportsInt) -> PackedWeight:
        return self.weight[int(expert)]

    def __iter__(self) -> Iterator[PackedWeight]:
        return iter(self.weight)

    def forward(self, x: torch.Tensor, sizes: object, function: str | None = None) -> torch.Tensor:
        """Rows of `x` in consecutive runs, run i times expert i's weight, with its bias; see `grouped_matmul`.

        Parameters
        ----------
        sizes : rows of each run: numbers, or a tensor of integers on the device of `x`.
        """
        if isinstance(sizes, (list, tuple)):
            sizes = torch.tensor(sizes, dtype=torch.int32, device=x.device)
        x, trains = autocast(x), x.requires_grad and torch.is_grad_enabled()
        if trains or is_compiling() or is_watched():
            return torch.ops.tilewright.grouped_matmul(
                x, sizes, self._columns(function), self.handle, self.bias, self.activations, function
            )
        return grouped_matmul(x, self.weight, sizes, bias=self.bias, quantize=self.activations, function=function)

    def _columns(self, function: str | None) -> int:
        return self.weight.shape[0] // (2 if function == CLAMPED else 1)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> ExpertWeights:
        # As in `Linear`: a change of type is of activations and biases, scales stay in the type that they were made in.
        device = fn(torch.empty(0, device=self.weight.device)).device
        if device != torch.device(self.weight.device):
            self.weight, self.handle = self.weight.to(device), handle_of(self, device, self.handle)
        if self.bias is not None:
            self.bias = fn(self.bias)
        return self

    def _save_to_state_dict(self, destination: dict[str, object], prefix: str, keep_vars: bool) -> None:
        destination[prefix.removesuffix(".")] = as_torch(stack_note(), "cpu")
        for number, weight in enumerate(self.weight):
            held = weight.unpack() if weight.gathered is not None else None
            arrays = {name: weight.held[name] for name in ARRAYS if name in weight.held}
            codes = weight.codes if held is None else as_torch(held.packed, weight.device)
            for name, array in {CODES: codes, METADATA: metadata_bytes(weight), **arrays}.items():
                destination[f"{prefix}{number}.{name}"] = as_torch(array, getattr(array, "device", "cpu"))
            if self.bias is not None:
                destination[f"{prefix}{number}.bias"] = self.bias[number]

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        metadata: object,
        strict: bool,
        missing: list[str],
        unexpected: list[str],
        *rest: object,
    ) -> None:
        note = prefix.removesuffix(".")  # of which the module around has said that it does not know it
        unexpected[:] = [name for name in unexpected if name != note]
        found, biases = [], []
        for number in range(len(self)):
            try:
                found.append(read_weight(state_dict, f"{prefix}{number}"))
            except MissingTensor as error:
                missing.append(error.message.split(" ")[0])
            name = f"{prefix}{number}.bias"
            if self.bias is not None and name in state_dict:
                biases.append(state_dict[name])
            elif self.bias is not None:
                missing.append(name)
        if len(found) < len(self) or (self.bias is not None and len(biases) < len(self)):
            return
        if found[0].shape != self.weight.shape:
            raise WrongArgumentShape(
                f"the state dict has experts of shape {list(found[0].shape)}, the layer {list(self.weight.shape)}"
            )
        self.weight = PackedExperts([PackedWeight.pack(weight, self.weight.device) for weight in found])
        self.handle = handle_of(self, self.weight.device, self.handle)
        if self.bias is not None:
            self.bias = torch.stack(biases).to(self.bias)

    def __getstate__(self) -> dict[str, object]:
        return {
            name: value for name, value in self.__dict__.items() if name != "handle"
        }  # a copy is a layer of its own

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self.handle = handle_of(self, self.weight.device)

    def extra_repr(self) -> str:
        """For ``print(model)``."""
        first, (N, K) = self.weight[0], self.weight.shape
        quantised = f", activations={self.activations}" if self.activations else ""
        return (
            f"experts={len(self)}, in_features={K}, out_features={N}, bias={self.bias is not None}, "
            f"W_dtype={first.format}{quantised}"
        )


class Experts(torch.nn.Module):
    """Experts of a gate, of what passes it, and of a product behind: ``down(act(gate(x)) * up(x))``.

    Parameters
    ----------
    first, second : the weights of gate and up side by side ``[2 I, H]``, and those behind ``[H, I]``.
    form : how the two share the rows of the first, what tells tokens their experts, how the module is called.
    names : under which the two are found: ``("gate_up_proj", "down_proj")``.
    act_fn : the function of the gate, where the form does not settle it.

    Notes
    -----
    `conversion.quantize` and `load_quantized` put it in the place of a module with such parameters: ``forward`` takes
    that module's arguments. Rows are sorted by expert, multiplied by `grouped_matmul`, and added up again in the order
    of a token's experts.
    """

    def __init__(
        self,
        first: ExpertWeights,
        second: ExpertWeights,
        form: ExpertForm,
        names: tuple[str, str] = ("gate_up_proj", "down_proj"),
        act_fn: Callable[..., object] | None = None,
    ) -> None:
        super().__init__()
        self.names, self.form, self.act_fn = names, form, act_fn
        self.num_experts = len(first)
        setattr(self, names[0], first)
        setattr(self, names[1], second)

    def forward(self, hidden_states: torch.Tensor, *routing: object, **named: object) -> torch.Tensor:
        """What the module did in whose place this stands.

        Parameters
        ----------
        hidden_states : ``[tokens, H]`` (or with leading dimensions); where nothing else is given, rows of expert after
            expert.
        routing : the experts of each token ``[tokens, k]``, and what their results are multiplied by: ``[tokens, k]``,
            or one for every expert.
        """
        first, second = (getattr(self, name) for name in self.names)
        trains = hidden_states.requires_grad and torch.is_grad_enabled()

        def products(rows: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
            if self.form.is_fused and not trains:
                return second(first(rows, sizes, CLAMPED), sizes)
            return second(self.form.passed(first(rows, sizes), self.act_fn), sizes)

        return self.form.routed(hidden_states, (*routing, *named.values()), self.num_experts, products)
