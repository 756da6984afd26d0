"""Calls that have run, by what their arguments are: a later one of the same kind runs what is left of it (`replay`)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.errors import Unsupported
from tilewright.runtime.call_keys import MISSED, CallPlan, guarded, key_function, kind_of, missed
from tilewright.runtime.tensors import Array, is_torch


@dataclass(frozen=True, slots=True)
class Written:
    """A call that is written down.

    Attributes
    ----------
    run : a function of the tensors among the arguments, in order.
    compares : whether it compares the arrays of NumPy itself, and answers `MISSED` for others.
    """

    run: CallPlan
    compares: bool = False


class Calls:
    """The calls of one weight or layer, by what their arguments are; those like one of the last two need no look-up."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all: something else than the arguments has changed."""
        self._last: Callable[..., object] = missed
        self._before: Callable[..., object] = missed
        self._known: dict[object, tuple[Callable[..., object], Written, list[int]]] = {}
        self._keys: dict[tuple[str | None, ...], Callable[..., object]] = {}
        self._met: set[object] = set()

    def __call__(self, *arguments: object) -> Any:
        """The result; `MISSED` where the call must be checked and prepared, or torch follows it."""
        found = self._last(*arguments)
        if found is not MISSED:
            return found
        self._last, self._before = self._before, self._last  # calls of two kinds often take turns
        found = self._last(*arguments)
        return self._by_key(arguments) if found is MISSED else found

    def _by_key(self, arguments: tuple[object, ...]) -> object:
        known = self._known.get(self._key(arguments)) if self._known else None
        if known is None or is_touched(*_tensors_of_torch(arguments)):
            return MISSED
        quick, plan, tensors = known
        if quick is not missed:
            self._last = quick
        return plan.run(*[arguments[i] for i in tensors])

    def _key(self, arguments: tuple[object, ...]) -> object:
        kinds = tuple(map(kind_of, arguments))
        key = self._keys.get(kinds)
        if key is None:
            if None in kinds:
                return None
            key = self._keys[kinds] = key_function(kinds)
        # What torch remembers of a tensor holds in one mode of inference, and for tensors that were made in one.
        modes: list[bool] = [tensor.is_inference() for tensor in _tensors_of_torch(arguments)]
        if modes:
            modes.append(sys.modules["torch"].is_inference_mode_enabled())
        made = key(*arguments)
        return None if made is None else (kinds, made, *modes)

    def met(self, arguments: tuple[object, ...], write: Callable[[], Written | None]) -> None:
        """Take notice of a call that has run: the second of its kind is written down.

        Parameters
        ----------
        write : writes it down, where that can be.
        """
        key = self._key(arguments)
        if key is None or key in self._known:
            return
        if key not in self._met:
            if len(self._met) >= MOST:
                self.clear()
            self._met.add(key)
            return
        tensors = [i for i, argument in enumerate(arguments) if kind_of(argument) in ("numpy", "torch")]
        plan = write() or NOT_WRITTEN
        # What torch remembers of a tensor says as well that it wants no gradient, that nothing is cast and nobody
        # watches.
        also = "forward._current_level < 0 and not modes()" if _tensors_of_torch(arguments) else ""
        quick = None
        if plan is not NOT_WRITTEN:
            quick = guarded(arguments, tensors, plan.run, (), missed, also, plan.compares, **_torch_states())
        self._known[key] = quick or missed, plan, tensors
        self._last = quick or self._last


NOT_WRITTEN = Written(missed)

MOST = 256
"""Kinds of calls that are remembered before all begins anew."""


def _tensors_of_torch(arguments: tuple[Any, ...]) -> list[Any]:
    return [argument for argument in arguments if kind_of(argument) == "torch"]


def _torch_states() -> dict[str, object]:
    """What guards of torch's tensors do not see: forward gradients, and modes that follow what is computed."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {"forward": torch.autograd.forward_ad, "modes": torch._C._len_torch_dispatch_stack}


def is_touched(*tensors: Any) -> bool:
    """Whether more is to be done with tensors than to read their memory: gradients, casts, somebody who follows."""
    if not tensors:
        return False
    torch = sys.modules["torch"]
    if wants_gradients(*tensors) or is_watched() or torch.autograd.forward_ad._current_level >= 0:
        return True
    return any(
        t.is_meta or torch.is_autocast_enabled(t.device.type) or t.is_neg() or t._is_zerotensor() for t in tensors
    )


def wants_gradients(*tensors: object) -> bool:
    """Whether somebody will ask for gradients of these; of what has none torch says so when it is asked."""
    return sys.modules["torch"].is_grad_enabled() and any(is_torch(one) and one.requires_grad for one in tensors)


def is_watched() -> bool:
    """Whether a tracer, a transform or a mode of torch follows what is computed, so that tensors may have no memory to
    be read."""
    inner = sys.modules["torch"]._C
    return (
        inner._get_tracing_state() is not None
        or inner._functorch.peek_interpreter_stack() is not None
        or inner._len_torch_dispatch_stack() > 0
    )


def check_transforms(*tensors: Array | None, of: str) -> None:
    """Raise Unsupported where torch takes gradients by transforms of functions, or forwards, which an operator would
    answer with 0."""
    torch = sys.modules["torch"]
    transform, kinds = torch._C._functorch.peek_interpreter_stack(), torch._C._functorch.TransformType
    if transform is not None and transform.key() in (kinds.Grad, kinds.Jvp):
        raise Unsupported(f"torch.func.grad, vjp and jvp of {of}", ("tensor.backward()", "torch.vmap"))
    forward = torch.autograd.forward_ad
    if forward._current_level >= 0 and any(
        isinstance(tensor, torch.Tensor) and forward.unpack_dual(tensor).tangent is not None for tensor in tensors
    ):
        raise Unsupported(f"forward-mode gradients of {of}", ("tensor.backward()", "torch.vmap"))
