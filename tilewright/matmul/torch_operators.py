"""The products as operators of torch: what a compiled graph calls, with shapes that a tracer can know without running.

A graph names the layer that owns a weight by a handle, whose kernels may bring the codes into another order while the graph lives.
Eager calls of `Linear` do not come this way.
"""

import itertools
import weakref
from typing import Any, Protocol

from tilewright.errors import WeightIsGone
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.product import quant_matmul


class Owner(Protocol):
    """What holds a weight: a layer."""

    @property
    def weight(self) -> PackedWeight:
        """The weight as it is now."""


_OWNERS: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


def handle_of(owner: Owner) -> str:
    """A new name under which operators find a layer, for as long as it lives."""
    handle = f"layer-{next(_NUMBERS)}"
    _OWNERS[handle] = owner
    return handle


def weight_of(handle: str) -> PackedWeight:
    """The weight of the layer with a handle.

    Raises
    ------
    WeightIsGone : the layer was deleted.
    """
    owner = _OWNERS.get(handle)
    if owner is None:
        raise WeightIsGone(f"the layer of the handle {handle!r} was deleted", hint="keep it alive while its graph runs")
    return owner.weight  # type: ignore[no-any-return]


def register_operators() -> None:
    """Make ``torch.ops.tilewright.quant_matmul`` known to torch."""
    import torch

    @torch.library.custom_op("tilewright::quant_matmul", mutates_args=())
    def run(
        x: torch.Tensor,
        out_features: int,
        handle: str,
        activation_scales: torch.Tensor | None,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
        quantize: str | None,
        function: str | None,
        out_dtype: torch.dtype,
    ) -> torch.Tensor:
        return quant_matmul(  # type: ignore[no-any-return]
            x, weight_of(handle), activation_scales=activation_scales, bias=bias, residual=residual, quantize=quantize,
            function=function, out_dtype=out_dtype,
        )  # fmt: skip

    @run.register_fake
    def shaped(
        x: torch.Tensor,
        out_features: int,
        handle: str,
        activation_scales: Any,
        bias: Any,
        residual: Any,
        quantize: Any,
        function: Any,
        out_dtype: torch.dtype,
    ) -> torch.Tensor:
        return x.new_empty((*x.shape[:-1], out_features), dtype=out_dtype)
