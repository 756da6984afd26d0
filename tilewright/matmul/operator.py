"""`Matmul`: a product as an object with BitBLAS's methods, on raw tensors or on a `PackedWeight`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.errors import MissingOperand, NoDevice, WrongArgumentDType, WrongArgumentKind, WrongArgumentShape
from tilewright.formats import pack_plain, unpack_plain
from tilewright.ir.dtypes import dtype
from tilewright.matmul.arrays import (
    as_numpy,
    as_torch,
    check_device,
    contiguous,
    device_of,
    element_type,
    empty_like,
    placed_like,
)
from tilewright.matmul.config import MatmulConfig
from tilewright.matmul.facts import Request, bucket
from tilewright.matmul.packed import PackedWeight, column_order
from tilewright.matmul.planning import recipe_for
from tilewright.matmul.product import Product, explain
from tilewright.matmul.random_operands import random_operands
from tilewright.matmul.raw_weights import RawWeights
from tilewright.matmul.tiers.base import Machine, Operands, Prepared, Ready
from tilewright.matmul.tiers.dispatch import after_quantisation, quantizing, tuning_key
from tilewright.matmul.tiers.general import General, general_call
from tilewright.matmul.tuning import tune
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.tensors import is_torch
from tilewright.targets.registry import resolve
from tilewright.tuning import Candidate, Outcome, time_call


class Matmul:
    """The product that a `MatmulConfig` describes.

    Parameters
    ----------
    config : what is multiplied.
    name : for messages.
    target : where it runs; ``"auto"`` is the best machine present, ``"cuda -arch=sm_90a"`` another to emulate.
    enable_tuning, from_database, backend : accepted for BitBLAS's sake; nothing is tuned before it is asked for.

    Examples
    --------
    >>> config = MatmulConfig(N=1024, K=1024, A_dtype="float16", W_dtype="int4", with_scaling=True, group_size=128)
    >>> matmul = Matmul(config)                                        # doctest: +SKIP
    >>> C = matmul(A, matmul.transform_weight(W), scale=scales)        # doctest: +SKIP
    """

    def __init__(
        self,
        config: MatmulConfig,
        name: str = "matmul",
        target: Any = "auto",
        enable_tuning: bool = True,
        from_database: bool = False,
        backend: str = "tl",
    ) -> None:
        if not isinstance(config, MatmulConfig):
            raise WrongArgumentKind(f"a {type(config).__name__} was given for a MatmulConfig")
        self.config, self.name, self._target = config, name, target or "auto"
        self.target, self.arch = resolve(self._target)
        self.tuned: dict[str, Candidate] = {}
        """What `hardware_aware_finetune` found, by keys of the tuning database."""
        self.raw_weights = RawWeights()
        self.input_transform: Callable[[Any], Any] | None = None

    def __repr__(self) -> str:
        return f"<Matmul {self.config} on {self.arch.target} {self.arch.name}>"

    M = property(lambda self: self.config.M)
    N = property(lambda self: self.config.N)
    K = property(lambda self: self.config.K)
    A_dtype = property(lambda self: self.config.A_dtype)
    W_dtype = property(lambda self: self.config.W_dtype)
    out_dtype = property(lambda self: self.config.out_dtype)
    accum_dtype = property(lambda self: self.config.accum_dtype)
    layout = property(lambda self: self.config.layout)
    group_size = property(lambda self: self.config.group_size)
    with_scaling = property(lambda self: self.config.with_scaling)
    with_zeros = property(lambda self: self.config.with_zeros)
    zeros_mode = property(lambda self: self.config.zeros_mode)
    with_bias = property(lambda self: self.config.with_bias)
    bit = property(lambda self: self.config.format.bits)
    source_format = property(lambda self: self.config.format.kind)

    # Weights ------------------------------------------------------------------------------------------

    def retrieve_weight_shape(self) -> list[int]:
        """Shape of what `transform_weight` gives: ``[N, K * bits / 8]`` bytes; elements of 8 bits and more as the layout has them."""
        shape = [int(extent) for extent in self._code_shape()]
        return shape[::-1] if self._is_turned else shape

    @property
    def _is_turned(self) -> bool:
        """Whether raw weights are ``[K, N]``: elements that no byte holds two of, in the layouts nn and tn."""
        return self.config.layout[1] == "n" and self.config.format.bits >= 8

    def _code_shape(self) -> tuple[int, ...]:
        """The shape in which the kernel takes a raw weight."""
        facts = self.config.facts()
        return facts.N, facts.K if facts.format.is_dense else -(-facts.K * facts.format.bits // 8)

    def transform_weight(self, weight: Any, scale: Any = None, zeros: Any = None, bias: Any = None) -> Any:
        """Pack a weight of numbers (integer formats) or codes into the bytes that `forward` takes.

        Parameters
        ----------
        weight : ``[N, K]`` (``[K, N]`` in layouts nn and tn).  For integer formats the numbers themselves, -8 to 7 for
            int4; for the others codes (an integer tensor), values (a float tensor) or 8-bit floats.
        scale, zeros, bias : given back beside the weight, for ``forward(A, *transformed)``.

        Raises
        ------
        NotRepresentable : a number that the format does not have, named with its index.
        """
        codes = self._codes(weight)
        of = self.config.format
        packed: Any = np.ascontiguousarray(codes if of.is_dense else pack_plain(codes, of.bits))
        if not of.is_dense:
            packed = packed.view(np.int8)
        if self._is_turned:
            packed = np.ascontiguousarray(packed.T)
        if is_torch(weight):
            packed = as_torch(packed, weight.device)
        extra = (scale, zeros, bias)
        return packed if all(value is None for value in extra) else [packed, *extra]

    @property
    def weight_transform(self) -> Callable[[Any], Any]:
        """From codes ``[N, K]`` to the bytes that `forward` takes, without conversion of numbers."""

        def transform(codes: Any) -> Any:
            of = self.config.format
            array = as_numpy(codes).view(np.uint8) & np.uint8((1 << of.bits) - 1)
            of.check(array)
            packed = np.ascontiguousarray(pack_plain(array, of.bits)).view(np.int8)
            return as_torch(packed, codes.device) if is_torch(codes) else packed

        return transform

    def pack(
        self, weight: Any, scale: Any = None, zeros: Any = None, device: Any = None, *, multipliers: Any = None,
        divisors: Any = None, g_idx: Any = None, tensor_scale: float = 1.0,
    ) -> PackedWeight:  # fmt: skip
        """The weight with its scales and zeros as one object, in the order that the fastest kernels read.

        Parameters
        ----------
        weight, scale, zeros : as for `transform_weight` and `forward`.
        multipliers, divisors, g_idx, tensor_scale : of `QuantizedWeight`: second-level int8 scales of groups (`scale` may then be
            ``[N, 1]``), SmoothQuant's divisors of activations, act-order, one more factor.

        Raises
        ------
        MissingOperand : the config has scales or zeros that were not given.
        CannotQuantize, NotRepresentable : they do not fit the weight.
        """
        config = self.config
        parts = {"multipliers": multipliers, "divisors": divisors, "g_idx": g_idx}
        self._need(scale=scale, zeros=zeros)
        points = None if zeros is None else as_numpy(zeros)
        if points is not None and config.zeros_mode == "quantized" and config.with_zeros:
            points = self._unpacked_zeros(points)
        made = QuantizedWeight(
            self._codes(weight), config.format, None if scale is None else as_numpy(scale), points,
            config.zeros_mode if config.with_zeros else "original", config.block, tensor_scale=tensor_scale,
            **{name: None if array is None else as_numpy(array) for name, array in parts.items()},
        )  # fmt: skip
        if device is None and is_torch(weight):
            device = weight.device
        return PackedWeight.pack(made, device)

    def _codes(self, weight: Any) -> np.ndarray:
        config, of = self.config, self.config.format
        given = array = as_numpy(weight)
        array = array.T if config.layout[1] == "n" else array
        if array.shape != (config.N, config.K):
            order = "[K, N]" if config.layout[1] == "n" else "[N, K]"
            expected = [config.K, config.N] if config.layout[1] == "n" else [config.N, config.K]
            raise WrongArgumentShape(f"the weight has shape {list(given.shape)}, expected {order} = {expected}")
        if of.is_dense:
            return array.astype(of.carrier)
        if of.dtype is not None and array.dtype == of.dtype.numpy and of.kind == "float":
            return array.view(np.uint8)
        if of.kind in ("int", "uint") or array.dtype.kind not in "iu":
            return of.exact(array.astype(np.float64))
        codes = array.astype(np.int64)
        wrong = (codes < 0) | (codes >= 1 << of.bits)
        of.check(
            np.where(wrong, (1 << of.bits) % 256, codes).astype(np.uint8) if of.bits < 8 else codes.astype(np.uint8)
        )
        return codes.astype(np.uint8)

    def _unpacked_zeros(self, packed: np.ndarray) -> np.ndarray:
        """``[N, K / g]`` zeros of BitBLAS's packed ones, ``[K / g, N * bits / 8]``."""
        bits, rows = self.config.format.bits, self.config.facts().N
        stream = np.unpackbits(packed.view(np.uint8), axis=-1, count=rows * bits, bitorder="little")
        return np.packbits(stream.reshape(len(packed), rows, bits), axis=-1, bitorder="little")[..., 0].T

    def _need(self, **operands: Any) -> None:
        wanted = {
            "scale": self.config.with_scaling,
            "zeros": self.config.with_zeros,
            "bias": self.config.with_bias,
            "a_scale": self.config.a_scale is not None,
            "residual": self.config.with_residual,
        }
        switch = {"scale": "with_scaling", "zeros": "with_zeros", "bias": "with_bias", "residual": "with_residual"}
        for name, value in operands.items():
            if wanted[name] and value is None:
                raise MissingOperand(
                    f"{self.name} was called without {name}", hint=f"its config has {switch.get(name, name)}"
                )
            if not wanted[name] and value is not None:
                raise MissingOperand(
                    f"{self.name} was given {name}, which its config does not have",
                    hint=f"set {switch.get(name, name)} in the MatmulConfig",
                )

    # Calls --------------------------------------------------------------------------------------------

    def forward(
        self,
        A: Any,
        W: Any,
        scale: Any = None,
        zeros: Any = None,
        bias: Any = None,
        output: Any = None,
        *,
        a_scale: Any = None,
        residual: Any = None,
    ) -> Any:
        """``C = A @ W^T`` with everything that the config has.

        Parameters
        ----------
        A : ``[..., M, K]`` (``[K, M]`` in layouts tn and tt), any M.
        W : what `transform_weight` gave (elements of 8 bits and more as they are, ``[K, N]`` in the layouts nn and tn), or a `PackedWeight`, which brings its own scales and zeros.  Tensors of torch are
            brought into our order when they are first seen, once for as long as they live unchanged (`RawWeights`); arrays of
            NumPy are read in the order that they have, at every call.
        scale, zeros : ``[N, K / group]``; quantized zeros ``[K / group, N * bits / 8]`` bytes.
        bias : ``[N]``.
        output : written in place where given.
        a_scale, residual : as in `quant_matmul`.

        Raises
        ------
        ArgumentError, MissingOperand : what does not fit, named.
        """
        return self._product(A, W, scale, zeros, bias, output, a_scale, residual).run()

    __call__ = forward

    def emulate(self, A: Any, W: Any, *rest: Any, **named: Any) -> Any:
        """`forward` under the emulator, for a target that is not here; arrays in host memory."""
        names = ("scale", "zeros", "bias", "output", "a_scale", "residual")
        given = {**dict.fromkeys(names), **dict(zip(names, rest)), **named}
        return self._product(A, W, *(given[name] for name in names)).emulate()

    def _product(
        self, A: Any, W: Any, scale: Any, zeros: Any, bias: Any, output: Any, a_scale: Any, residual: Any
    ) -> Product:
        config = self.config
        device_of(A)  # which says what is no array
        if config.layout[0] == "t":
            A = A.T
        source = config.A_dtype if dtype(config.A_dtype).is_packed else None
        if source is None and element_type(A).name != dtype(config.A_dtype).name:
            raise WrongArgumentDType(f"A is {element_type(A)}, but the config's A_dtype is {config.A_dtype}")
        if isinstance(W, PackedWeight):
            self._need(bias=bias, a_scale=a_scale, residual=residual)
            return Product.of(
                A if source is None else (A, source), W, activation_scales=a_scale, quantize=config.request().quantize,
                bias=bias, function=config.function, residual=residual,
                out_dtype=config.out_dtype if output is None else None, out=output, target=self._emulated(A),
            )  # fmt: skip
        self._need(scale=scale, zeros=zeros, bias=bias, a_scale=a_scale, residual=residual)
        if not self._is_fast_as_it_lies(A) and self._emulated(A) is None and hasattr(W, "shape"):
            packed = self.raw_weights.find((W, scale, zeros), lambda: self._packed(A, W, scale, zeros))
            if packed is not None:
                return self._product(
                    A.T if config.layout[0] == "t" else A, packed, None, None, bias, output, a_scale, residual
                )
        return self._raw(A, W, scale, zeros, bias, output, a_scale, residual)

    def _is_fast_as_it_lies(self, A: Any) -> bool:
        """Whether no order is faster for such activations than that of raw weights, so that no other is made of them."""
        return False

    def _packed(self, A: Any, W: Any, scale: Any, zeros: Any) -> PackedWeight:
        """The weight of raw tensors, each of which must be what the config says."""
        config = self.config
        given = self._weight_tensors(A, W, scale, zeros)
        arrays = {**given, "codes": self._plain(given["codes"])}
        if config.with_zeros and config.zeros_mode == "quantized":
            points = np.ascontiguousarray(self._unpacked_zeros(as_numpy(given["zeros"])))
            arrays["zeros"] = placed_like(points, given["codes"])
        facts, of = config.facts(), config.format
        mode = config.zeros_mode if config.with_zeros else "original"
        if column_order(facts.K, config.block[1], None) is None:
            return PackedWeight(of, (facts.N, facts.K), arrays, block=config.block, zeros_mode=mode)
        # Groups are padded, which is done on the host.
        held: dict[str, Any] = {name: as_numpy(array) for name, array in arrays.items()}
        codes = held.pop("codes") if of.is_dense else unpack_plain(held.pop("codes").view(np.uint8), facts.K, of.bits)
        made = QuantizedWeight(codes, of, block=config.block, zeros_mode=mode, **held)
        return PackedWeight.pack(made, getattr(W, "device", None))

    def _plain(self, codes: Any) -> Any:
        """Codes in the order of raw tensors, row by row, low bits first."""
        return codes

    def _emulated(self, A: Any) -> Any:
        """The target where it is not the machine that holds A."""
        return self.arch if self.arch.target != device_of(A).split(":")[0] else None

    def _raw(
        self, A: Any, W: Any, scale: Any, zeros: Any, bias: Any, output: Any, a_scale: Any, residual: Any
    ) -> Product:
        """A product with raw tensors in the order that they have: nothing of them is remembered."""
        given, operands = self._checked(A, W, scale, zeros, bias, output, a_scale, residual)
        shape = (*A.shape[:-1], self.config.N)
        result = operands.out.reshape(shape) if output is None else output
        request = replace(self.config.request(), rows=bucket(operands.activations.shape[0]))
        return Product(self._prepared(given, A, request), operands, result, request, self.arch)

    def _checked(
        self, A: Any, W: Any, scale: Any, zeros: Any, bias: Any, output: Any, a_scale: Any, residual: Any
    ) -> tuple[dict[str, Any], Operands]:
        """The weight's tensors by name and the operands of the call, each of the shape and type that the config says."""
        facts, request = self.config.facts(), self.config.request()
        width = facts.K // dtype(request.activations).per_byte
        if not A.shape or A.shape[-1] != width:
            raise WrongArgumentShape(f"A has shape {list(A.shape)}, expected [..., {width}]")
        given = self._weight_tensors(A, W, scale, zeros)
        rows, shaped = int(np.prod(A.shape[:-1], dtype=np.int64)), _Shaped(device_of(A))
        a_scales = {"tensor": (1, 1), "token": (rows, 1)}.get(request.activation_scales)
        if request.activation_scales == "group":
            a_scales = (rows, -(-facts.K // request.activation_group))
        result = (
            empty_like(A, (rows, facts.N), dtype(request.out))
            if output is None
            else shaped("output", output, (rows, facts.N), dtype(request.out), in_place=True)
        )
        operands = Operands(
            contiguous(A.reshape(rows, width)), shaped("a_scale", a_scale, a_scales, None),
            shaped("bias", bias, (facts.N,), request.bias and dtype(request.bias)),
            shaped("residual", residual, (rows, facts.N), dtype(request.out)), result,
        )  # fmt: skip
        return given, operands

    def _weight_tensors(self, A: Any, W: Any, scale: Any, zeros: Any) -> dict[str, Any]:
        """The weight's tensors by name, each of the shape and type that the config says, on the device of A."""
        facts, shaped = self.config.facts(), _Shaped(device_of(A))
        packed_zeros = facts.zeros == "packed"
        grouped = None if facts.scale is None else (facts.scale.rows, facts.scale.columns)
        points = None if facts.zero_point is None else (facts.zero_point.rows, facts.zero_point.columns)
        if packed_zeros:
            points = (facts.groups, -(-facts.N * facts.format.bits // 8))
        if not facts.format.is_dense and getattr(getattr(W, "dtype", None), "itemsize", 1) != 1:
            raise WrongArgumentDType(
                f"W is {W.dtype}, where the bytes of packed {facts.format} codes are due",
                hint="transform_weight makes them of numbers",
            )
        if self._is_turned:
            W = contiguous(shaped("W", W, tuple(self.retrieve_weight_shape()), None).T)
        given = {
            "codes": shaped("W", W, self._code_shape(), facts.format.dtype if facts.format.is_dense else None),
            "scales": shaped("scale", scale, grouped, facts.scale and dtype(facts.scale.dtype)),
            "zeros": shaped(
                "zeros", zeros, points, None if packed_zeros else facts.zero_point and dtype(facts.zero_point.dtype)
            ),
        }
        return {name: array for name, array in given.items() if array is not None}

    def _prepared(self, given: dict[str, Any], example: Any, request: Request) -> Ready:
        """The product with a weight's tensors as they lie."""
        machine = Machine(self.target, self.arch)
        call = general_call(self._recipe, machine, example, {})
        then = Prepared(General.name, call.kernel, call.held(given), call.arguments, call.recipe)
        if request.quantize is None:
            return then
        return quantizing(self.config.facts().columns, request, machine, example, None, then)

    @functools.cached_property
    def _recipe(self) -> Any:
        facts = self.config.facts()
        table = np.array([v for c, v in enumerate(facts.format.values) if c not in facts.format.unused])
        numbers: np.ndarray | None = table
        if facts.zeros == "packed":
            numbers = np.unique(np.subtract.outer(table, table))
        elif facts.zeros == "groups":
            numbers = None  # any float may be subtracted
        return recipe_for(facts, numbers, after_quantisation(self.config.request()), self.arch)

    # What was made ------------------------------------------------------------------------------------

    @property
    def kernel(self) -> Kernel:
        """The kernel that serves raw tensors."""
        machine = Machine(self.target, self.arch)
        return general_call(self._recipe, machine, np.zeros(1, np.float32), {}).kernel

    def get_source(self, target: Any = None, kernel_only: bool = False, kenrel_only: bool = False) -> str:
        """The text emitted for the device."""
        return self.kernel.get_kernel_source()

    @property
    def scheduled_ir_module(self) -> str:
        """The program after all passes, as text."""
        traces = self.kernel.program.traces
        return self.kernel.show_program(traces[-1].name) if traces else self.kernel.show_program()

    @property
    def ir_module(self) -> str:
        """The program as traced."""
        return self.kernel.show_program()

    prim_func = ir_module

    def explain(self) -> str:
        """Which kernel serves a packed weight of this config and why not the ones before it; then the kernel's choices."""
        return explain(self.config.facts(), self.config.request(), self.arch) + "\n" + self.kernel.explain()

    def profile_latency(self, M: int | None = None, dynamic_symbolic_constraints: Any = None) -> float:
        """Median milliseconds of a call with random operands over their whole ranges, the weight in our order.

        Parameters
        ----------
        M : rows; the largest that the config names, or 1.

        Raises
        ------
        NoDevice : the target is not on this machine.
        """
        A, packed, named = self._random(M or self._rows()[0])
        return time_call(lambda: self.forward(A, packed, **named), self._device())

    def hardware_aware_finetune(
        self, topk: int = 20, target: Any = None, parallel_build: bool = True
    ) -> list[Outcome]:  # fmt: skip
        """Measure up to `topk` ways to compute the product for each M of the config and keep the fastest, on disk (`matmul.tuning`).

        They are those of the kernel that serves the product (`explain`); a weight in our order runs what was found, in this
        process and later ones.

        Returns
        -------
        what was measured for the largest M, the fastest first.

        Raises
        ------
        NoDevice : the target is not on this machine.
        """
        return [self._tuned(rows, topk, parallel_build) for rows in self._rows()][0]  # noqa: RUF015 (all are tuned)

    def _tuned(self, rows: int, topk: int, parallel: bool) -> list[Outcome]:
        """What was measured for some rows, the fastest first, which is kept."""
        machine = Machine(self.target, self.arch)
        A, packed, named = self._random(rows)
        request = self._product(A, packed, None, None, **{"output": None, **named}).request
        key = tuning_key(packed.facts, request, machine)
        options = {"quantize": request.quantize, "function": request.function, "out_dtype": request.out}
        given = {"bias": named["bias"], "residual": named["residual"], "activation_scales": named["a_scale"]}
        x = A.T if self.config.layout[0] == "t" else A
        source = self.config.A_dtype if dtype(self.config.A_dtype).is_packed else None
        found = tune(x if source is None else (x, source), packed, topk=topk, parallel=parallel, **options, **given)
        self.tuned[key] = found[0].options
        return found

    def _random(self, rows: int) -> tuple[Any, PackedWeight, dict[str, Any]]:
        """Random operands of a call: A, the weight in our order, and the others by name."""
        (A, W, scale, zeros, bias), named = random_operands(self.config, rows, self._device())
        W = W.T if self._is_turned else W
        packed = self._packed(A.T if self.config.layout[0] == "t" else A, W, scale, zeros)
        return A, packed, {"bias": bias, **named}

    def _rows(self) -> list[int]:
        """Numbers of rows that the config names, one of each kind, the largest first."""
        sizes = self.config.M if isinstance(self.config.M, tuple) else (self.config.M or 1,)
        return sorted({bucket(rows): rows for rows in sorted(sizes)}.values(), reverse=True)

    def _device(self) -> str:
        """Where operands must be for the target to run; raises NoDevice."""
        if self.target.name == "cpu":
            return "cpu"
        if self.target.detect() is None:
            raise NoDevice(f"there is no {self.target.name} device here to measure on", hint="emulate() needs none")
        return "cuda:0"


class _Shaped:
    """Checks of raw tensors, each with one sentence."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, what: str, array: Any, expected: tuple[int, ...] | None, of: Any, in_place: bool = False) -> Any:
        if array is None or expected is None:
            return None
        if not hasattr(array, "shape"):
            raise WrongArgumentKind(f"{what} is a {type(array).__name__}, expected a tensor")
        check_device(what, array, "A is", self.device)
        shape = tuple(array.shape)
        flat = int(np.prod(shape, dtype=np.int64))
        if shape != expected and not (what in ("output", "residual", "a_scale") and flat == int(np.prod(expected))):
            raise WrongArgumentShape(f"{what} has shape {list(shape)}, expected {list(expected)}")
        if of is not None and element_type(array) != of:
            raise WrongArgumentDType(f"{what} is {element_type(array)}, expected {of}")
        array = array if in_place else contiguous(array)
        if of is None and element_type(array).name == "int8":
            array = array.view(np.uint8) if isinstance(array, np.ndarray) else array.view(_torch_uint8(array))
        return array.reshape(expected)


def _torch_uint8(array: Any) -> Any:
    import torch

    return torch.uint8
