"""`Linear`: a quantised linear layer for torch models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.compiler import is_compiling

from tilewright.errors import CannotQuantize, Unsupported, WrongArgumentKind, WrongArgumentShape
from tilewright.formats import SCHEMES, number_format
from tilewright.ir.dtypes import dtype
from tilewright.kernels.recipe import Request
from tilewright.matmul.arrays import as_torch, check_strided
from tilewright.matmul.config import check_group_size, check_scale_type, is_size, whole
from tilewright.matmul.known_calls import check_transforms, is_watched, wants_gradients
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.planning import check_request, check_sums
from tilewright.matmul.product import Product, apply_function, explain
from tilewright.matmul.results import result_type
from tilewright.matmul.rounding import packed_to_nearest
from tilewright.matmul.torch_operators import autocast, register_operators
from tilewright.matmul.tuning import tune
from tilewright.matmul.weight_codes import codes_of
from tilewright.nn.held_weight import HeldWeight
from tilewright.quant import QuantizedWeight
from tilewright.quant.rounding import Rounding
from tilewright.quant.weight import ARRAYS
from tilewright.runtime.call_keys import MISSED
from tilewright.runtime.tensors import as_numpy

register_operators()


class Linear(HeldWeight, torch.nn.Linear):  # type: ignore[misc]  # whose weight is a Parameter
    """``y = function(x W^T + bias)`` with a quantised ``W``, in the place of `torch.nn.Linear`.

    It is a `torch.nn.Linear` to those who ask, so that libraries of adapters put theirs beside it; its `weight` is a
    `PackedWeight`.

    Parameters
    ----------
    in_features, out_features : K and N; any sizes.
    bias : whether there is one.
    A_dtype : type that float activations are quantised to as part of the call where it is int8 or an 8-bit float; a
        float type says nothing more (activations of every float type are taken as they come).
    W_dtype : a number format: ``"int4"``, ``"uint4"``, ``"nf4"``, ``"e2m1"``, ``"e4m3"``, ...
    accum_dtype : accepted; sums are taken in float32 or int32.
    out_dtype : of y; that of x by default.
    group_size : columns that share a scale; -1 for all.
    with_scaling, with_zeros, zeros_mode : as in `MatmulConfig`; ``None`` for scales means that there are some.
    opt_M, enable_tuning, fast_decoding, propagate_b : accepted for BitBLAS's sake.
    function : an activation function applied to the result.
    scale_dtype : in which scales are held.
    device : of the buffers.

    Notes
    -----
    Made empty; `load_and_transform_weight`, `from_float`, `from_quantized` or ``load_state_dict`` fill it. Tensors of a
    state dict: ``qweight`` (uint8 ``[N, K * bits / 8]``; the buffer itself holds the order of the kernels that have
    run), and as the weight has them ``scales``, ``zeros``, ``multipliers``, ``g_idx``, ``divisors``, ``rotation``,
    ``bias``. For inference: there is a gradient for x and for the bias, a parameter that wants none until it is asked
    to (``layer.bias.requires_grad_()``, PEFT's ``bias="all"``), none for the weight.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        A_dtype: str = "float16",
        W_dtype: str = "int4",
        accum_dtype: str | None = None,
        out_dtype: str | None = None,
        group_size: int | None = -1,
        with_scaling: bool | None = None,
        with_zeros: bool = False,
        zeros_mode: str | None = None,
        opt_M: object = None,
        enable_tuning: bool = True,
        fast_decoding: bool | None = None,
        propagate_b: object = False,
        *,
        function: str | None = None,
        scale_dtype: str = "float16",
        device: Any = None,
    ) -> None:
        super().__init__()
        group_size = whole(group_size)
        self._describe(in_features, out_features, A_dtype, W_dtype, accum_dtype, out_dtype, function)
        in_features, out_features = self.in_features, self.out_features
        check_scale_type("scales", scale_dtype)
        check_group_size(group_size)
        self.zeros_mode, self.tensor_scale = zeros_mode or "original", 1.0
        self.block = (1, in_features if group_size in (None, -1, 0) else group_size)
        groups = -(-in_features // self.block[1])
        empty: dict[str, np.ndarray | None] = dict.fromkeys(ARRAYS)
        of = number_format(W_dtype)
        if with_scaling is not False and not of.is_dense:
            empty["scales"] = np.ones((out_features, groups), dtype(scale_dtype).numpy)
        if with_zeros:
            empty["zeros"] = np.zeros((out_features, groups), np.uint8 if zeros_mode == "quantized" else np.float32)
        codes = np.zeros((out_features, in_features), of.carrier)
        if of.unused or not np.isfinite(of.decode(codes[:1, :1])).all():
            codes[:] = of.encode(0.0)
        self._hold(PackedWeight.pack(self._weight(codes, empty)), device)
        self.bias = torch.zeros(out_features, device=device) if bias else None

    def _describe(
        self,
        in_features: Any,
        out_features: Any,
        A_dtype: str,
        W_dtype: str,
        accum_dtype: object,
        out_dtype: object,
        function: str | None,
    ) -> None:
        in_features, out_features = whole(in_features), whole(out_features)
        if not is_size(in_features) or not is_size(out_features):
            raise WrongArgumentShape(f"a layer of {in_features} to {out_features} features has nothing to multiply by")
        self.in_features, self.out_features = in_features, out_features
        self.W_dtype, self.function, self.quantize = number_format(W_dtype).name, function, _quantised(A_dtype)
        self.out_dtype = None if out_dtype is None else dtype(out_dtype).name
        check_request(Request("float16", self.out_dtype or "float16", quantize=self.quantize, function=function))
        check_sums(accum_dtype, dtype(self.quantize or "float16"))

    # Making one ---------------------------------------------------------------------------------------

    @classmethod
    def from_float(
        cls,
        linear: torch.nn.Linear,
        to: str = "int4",
        *,
        group: int | None = 128,
        activations: str | None = None,
        zeros: str | None = None,
        block: tuple[int, int] | None = None,
        scale_dtype: object = None,
        divisors: object = None,
    ) -> Linear:
        """A float layer rounded to nearest.

        Parameters
        ----------
        to, group, zeros, block, scale_dtype : as in `tilewright.quant.quantize`; scales are held in the layer's type
            where that has 16 bits and nothing else is said.
        divisors : as in `tilewright.quant.quantize`.
        activations : type that activations are quantised to, None for as they come.
        """
        if not isinstance(linear, torch.nn.Linear) or isinstance(linear, HeldWeight):
            hint = "tilewright.quantize(array, scheme) takes a matrix"
            raise WrongArgumentKind.given(linear, "a torch.nn.Linear", hint)
        if linear.weight.dtype in (torch.float16, torch.bfloat16) and to not in SCHEMES:
            scale_dtype = scale_dtype or str(linear.weight.dtype).removeprefix("torch.")
        rounding = Rounding.of(to, group, zeros, block, scale_dtype)
        weight = packed_to_nearest(linear.weight, rounding, divisors=divisors)
        made = cls.from_packed(weight, linear.bias, activations=activations)
        made.dense_dtype = linear.weight.dtype
        return made

    @classmethod
    def from_quantized(
        cls,
        weight: QuantizedWeight,
        bias: object = None,
        *,
        activations: str | None = None,
        function: str | None = None,
        device: object = None,
    ) -> Linear:
        """A layer of a weight that exists.

        Raises
        ------
        WrongArgumentKind : no `QuantizedWeight`.
        """
        if not isinstance(weight, QuantizedWeight):
            hint = "a PackedWeight has unpack(), numbers tilewright.quantize"
            raise WrongArgumentKind.given(weight, "a QuantizedWeight", hint)
        packed = PackedWeight.pack(weight)
        return cls.from_packed(packed, bias, activations=activations, function=function, device=device)

    @classmethod
    def from_packed(
        cls,
        weight: PackedWeight,
        bias: object = None,
        *,
        activations: str | None = None,
        function: str | None = None,
        device: object = None,
    ) -> Linear:
        """A layer of a packed weight, which it holds without a copy where the device is the same.

        Parameters
        ----------
        device : by default the weight's, torch's own for NumPy's arrays.
        """
        made = cls.__new__(cls)
        HeldWeight.__init__(made)
        shape, of = weight.shape, weight.format.name
        made._describe(shape[1], shape[0], activations or "float16", of, None, None, function)
        made._hold(weight, device)
        made.bias = None if bias is None else as_torch(bias, made.qweight.device).detach().clone()
        return made

    def load_and_transform_weight(
        self, weight: object, scales: object = None, zeros: object = None, bias: object = None
    ) -> None:
        """Take a weight of numbers ``[N, K]`` with its scales and zeros ``[N, K / group]``.

        Raises
        ------
        NotRepresentable, CannotQuantize : what does not fit, named.
        """
        codes = codes_of(as_numpy(weight), number_format(self.W_dtype))
        if scales is None and "scales" in self._buffers and self.scales is not None:
            raise CannotQuantize(
                "the layer has scales, none were given", hint="pass scales, or make it with with_scaling=False"
            )
        arrays = {"scales": scales, "zeros": zeros}
        held = {name: None if array is None else as_numpy(array) for name, array in arrays.items()}
        self.load_quantized(self._weight(codes, held))
        if bias is not None:
            self.bias = torch.as_tensor(bias, device=self.qweight.device)

    # Calls --------------------------------------------------------------------------------------------

    def forward(self, x: torch.Tensor, output: torch.Tensor | None = None) -> torch.Tensor:
        """``[..., K]`` to ``[..., N]``.

        Raises
        ------
        ArgumentError : activations of a wrong width, type or device.
        """
        if is_compiling():
            return self._traced(x, output)
        # `torch.fx.symbolic_trace`: a layer is a leaf, as torch's are.
        if type(x).__name__ == "Proxy" and hasattr(x, "tracer"):
            return x.tracer.create_proxy("call_module", x.tracer.path_of_module(self), (x,), {})
        # What was learnt from earlier calls holds for the tensors that they read, and gives no gradients.
        seen = self._seen
        if output is None and seen is not None and type(x) in _PLAIN and seen.holds(self._buffers):
            bias = self._parameters.get("bias")
            if seen.is_added(bias) and (bias is None or not bias.requires_grad):
                result = self._calls.run(x)
                if result is not MISSED:
                    return result
        return self._checked(x, output)

    def _trains(self, x: torch.Tensor, output: torch.Tensor | None) -> bool:
        """Whether somebody will ask for a gradient of the result."""
        return wants_gradients(x, self.bias, output)

    def _traced(self, x: torch.Tensor, output: torch.Tensor | None = None) -> torch.Tensor:
        """A call as one operator of torch, for its compiler, for tracers and transforms, and where gradients are
        wanted."""
        x = autocast(x)
        out = x.dtype if self.out_dtype is None else getattr(torch, self.out_dtype)
        function = None if self._trains(x, output) else self.function  # the gradient of a function is torch's own
        result = torch.ops.tilewright.quant_matmul(
            x, self.out_features, self.handle, None, None, self.bias, None, self.quantize, function, out
        )
        if function is not self.function:
            result = apply_function(self.function, result)
        return result if output is None else output.copy_(result)

    @property
    def _how(self) -> dict[str, Any]:  # options of `quant_matmul`
        """What a call has beside its activations and its weight."""
        of = {"bias": self.bias, "quantize": self.quantize}
        return {**of, "function": self.function, "out_dtype": self.out_dtype}

    def _checked(self, x: torch.Tensor, output: torch.Tensor | None) -> torch.Tensor:
        """A call with all checks, from which later ones may learn."""
        if isinstance(x, torch.Tensor):
            check_strided("the activations", x)
        if _is_watched(x):
            return self._traced(x, output)
        given, x = x, autocast(x)
        if self._trains(x, output):
            return self._traced(x, output)
        how = self._how if output is None else {**self._how, "out_dtype": None, "out": output}
        product = Product.of(x, self.weight, **how)
        result = product.run()
        self._settle()
        if output is None and x is given and not (self.bias is not None and self.bias.requires_grad):
            product.remember(self._calls, (x,), {"x": x})
        return result

    def tune(
        self, rows: Sequence[int] = (1, 16, 64, 256, 1024, 4096), dtype: torch.dtype = torch.float16, topk: int = 20
    ) -> None:
        """Measure the ways to compute calls of so many rows of a type and keep the fastest, on disk too
        (`matmul.tuning.tune`)."""
        for count in rows:
            x = torch.randn(count, self.in_features, device=self.qweight.device)
            x = x.to(dtype) if dtype.is_floating_point else (40 * x).clamp(-127, 127).to(dtype)
            tune(x, self.weight, topk=topk, **self._how)
        self._calls.clear()

    def explain(self, rows: int = 1, dtype: object = torch.float16, target: object = None) -> str:
        """Which tier of kernels serves calls of so many rows of a type, and why not each of those before it.

        Parameters
        ----------
        rows, dtype : of the activations.
        target : a machine other than the layer's, ``"cuda -arch=sm_90a"``.

        Examples
        --------
        >>> layer = tilewright.nn.Linear(256, 64, bias=True, W_dtype="int4", group_size=32)
        >>> layer.explain(dtype=torch.float32, target="cpu").split(" on ")[0]
        'panels'
        """
        activations, facts = str(dtype).removeprefix("torch."), self.weight.facts
        request = Request(
            activations,
            result_type(None, self.out_dtype, activations, facts, "none", self.quantize),
            quantize=self.quantize,
            bias=None if self.bias is None else str(self.bias.dtype).removeprefix("torch."),
            function=self.function,
            rows=rows,
        )
        check_request(request)
        return explain(facts, request, self.qweight.device.type if target is None else target)

    @property
    def W_q(self) -> torch.Tensor:
        """The codes, under HQQ's name: PEFT asks a layer that has it for `dequantize()`."""
        return self.qweight

    def reset_parameters(self) -> None:
        """Nothing: what torch would set to random numbers are codes."""

    def extra_repr(self) -> str:
        """For ``print(model)``."""
        quantised = f", activations={self.quantize}" if self.quantize else ""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"W_dtype={self.W_dtype}, group={self.block[1]}{quantised}"
        )


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _is_watched(x: Any) -> bool:
    """Whether a tensor is one that a tracer or a transform follows, so that its memory is not there to be read. Raises
    WrongArgumentKind for what is no tensor."""
    if type(x) in _PLAIN:
        check_transforms(x, of="a layer")
        return is_watched() or x.is_meta
    if not isinstance(x, torch.Tensor):
        hint = "a layer takes a torch tensor; quant_matmul takes NumPy's arrays too"
        raise WrongArgumentKind.given(x, "the activations", hint)
    return type(x).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def _quantised(activations: str) -> str | None:
    """What activations are quantised to, for a declared type of activations."""
    known = {"int8": "int8", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
    name = number_format(activations).name
    if name in known or name in ("float16", "bfloat16", "float32", "float64"):
        return known.get(name)
    raise Unsupported(f"a Linear with activations of {activations}", ("floats", *known))


def linears(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str, torch.nn.Linear]]:
    """Every `torch.nn.Linear` of a model, with its parent and its name there."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear:
                yield parent, name, child
