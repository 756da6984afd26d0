"""Products that have run, by what their arguments are (`runtime.calls`), and what torch may want of a call's tensors
besides."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.errors import Unsupported
from tilewright.runtime.call_keys import MISSED, kind_of, missed
from tilewright.runtime.calls import Calls
from tilewright.runtime.tensors import Array, is_torch


class Products(Calls):
    """The calls of one weight or layer; none of them is run again while torch follows what is computed."""

    in_modes = True  # what torch remembers of a tensor holds in one mode, and for tensors that were made in one

    def __init__(self) -> None:
        super().__init__(most=256)
        self._otherwise = functools.partial(_find, weakref.ref(self))  # a weight is gone with its last name
        self.clear()

    def clear(self) -> None:
        """Forget all: something else than the arguments has changed."""
        super().clear()
        self._before: Callable[..., object] = self.run

    def _condition(self, arguments: Sequence[object]) -> tuple[str, dict[str, object]]:
        tensors: list[Any] = [one for one in arguments if kind_of(one) == "torch"]
        if not tensors:
            return "", {}
        # What torch remembers of a tensor says as well that nothing is cast and nobody watches, and whether it requires
        # gradients; not whether they are taken, forwards too, and what modes follow what is computed.
        torch = sys.modules["torch"]
        names = {"forward": torch.autograd.forward_ad, "modes": torch._C._len_torch_dispatch_stack}
        also = "forward._current_level < 0 and not modes()"
        if any(tensor.requires_grad for tensor in tensors):
            also, names["taken"] = f"{also} and not taken()", torch.is_grad_enabled
        kind = tensors[0].device.type
        if torch.is_autocast_enabled(kind):  # they were of the type that is cast to, which another context may change
            names |= {"cast": torch.get_autocast_dtype, "kind": kind, "to": torch.get_autocast_dtype(kind)}
            also += " and cast(kind) is to"
        return also, names


def _find(itself: weakref.ref[Products], *arguments: object) -> object:
    """Tries the guard of one kind more, since calls of two kinds often take turns, and looks the kind up then."""
    calls = itself()
    if calls is None:
        return MISSED
    calls.run, calls._before = calls._before, calls.run
    found = calls.run(*arguments, otherwise=missed)
    known = calls.at(arguments) if found is MISSED else None
    if known is None:
        return found
    if known.guard is not None:  # it sees that torch follows nothing in less time than it takes to ask
        calls.run = known.guard
        found = known.guard(*arguments, otherwise=missed)
    if found is not MISSED or is_touched(*[one for one in arguments if kind_of(one) == "torch"]):
        return found
    return known.again(*arguments)


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
