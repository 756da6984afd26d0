"""`Matmul`: a product as an object with BitBLAS's methods, on raw tensors or on a `PackedWeight`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.errors import NoDevice, WrongArgumentDType, WrongArgumentKind, WrongArgumentShape
from tilewright.ir.dtypes import dtype
from tilewright.kernels.recipe import Recipe, Request
from tilewright.libraries import is_compiling, torch
from tilewright.matmul.arrays import contiguous, device_of, element_type
from tilewright.matmul.config import MatmulConfig
from tilewright.matmul.known_calls import Products, wants_gradients
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.planning import recipe_for
from tilewright.matmul.product import Product, explain, is_followed, quant_matmul
from tilewright.matmul.random_operands import random_operands
from tilewright.matmul.raw_weights import RawWeights
from tilewright.matmul.results import Result, result_for
from tilewright.matmul.tiers.base import Machine, Operands, Prepared, Ready, made_once
from tilewright.matmul.tiers.dispatch import after_quantisation, quantizing, tuning_key
from tilewright.matmul.tiers.general import General, GeneralCall
from tilewright.matmul.tuning import tune
from tilewright.matmul.weight_forms import MatmulCall, Shaped, WeightForms
from tilewright.runtime.call_keys import MISSED
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.tensors import Array, as_float32, is_torch
from tilewright.targets.registry import resolve
from tilewright.tuning import Candidate, Outcome, time_call


class Matmul(WeightForms):
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
        target: object = "auto",
        enable_tuning: bool = True,
        from_database: bool = False,
        backend: str = "tl",
    ) -> None:
        if not isinstance(config, MatmulConfig):
            raise WrongArgumentKind.given(config, "a MatmulConfig")
        self.config, self.name, self._target = config, name, target or "auto"
        self.target, self.arch = resolve(self._target)
        self.tuned: dict[str, Candidate] = {}
        """What `hardware_aware_finetune` found, by keys of the tuning database."""
        self.raw_weights = RawWeights()
        self.input_transform: Callable[[Array], Array] | None = None

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
    storage_dtype = property(lambda self: self.config.storage_dtype)
    fast_decoding = property(lambda self: self.config.fast_decoding)
    propagate_a = property(lambda self: self.config.propagate_a)
    propagate_b = property(lambda self: self.config.propagate_b)
    bit = property(lambda self: self.config.format.bits)
    source_format = property(lambda self: self.config.format.kind)

    # Calls --------------------------------------------------------------------------------------------

    def forward(
        self,
        A: Array,
        W: Any,
        scale: Array | None = None,
        zeros: object = None,
        bias: Array | None = None,
        output: Array | None = None,
        *,
        a_scale: object = None,
        residual: Array | None = None,
    ) -> Array:  # of the library that A is of
        """``C = A @ W^T`` with everything that the config has.

        Parameters
        ----------
        A : ``[..., M, K]`` (``[..., K, M]`` in layouts tn and tt), any M.
        W : what `transform_weight` gave (elements of 8 bits and more as they are, ``[K, N]`` in the layouts nn and tn),
            or a `PackedWeight` of the config's size and format, which brings its own scales and zeros. Tensors of torch
            are brought into our order when they are first seen, once for as long as they live unchanged (`RawWeights`);
            arrays of NumPy are read in the order that they have, at every call.
        scale, zeros : ``[N, K / group]``; quantized zeros ``[K / group, N * bits / 8]`` bytes.
        bias : ``[N]``.
        output : written in place where given.
        a_scale, residual : as in `quant_matmul`.

        Raises
        ------
        ArgumentError, MissingOperand : what does not fit, named.
        """
        compiling = is_compiling()
        arguments, calls = (A, scale, zeros, bias, output, a_scale, residual), None
        if type(W) is PackedWeight and not compiling:
            calls = W.operator_calls.get(self._calls_name)
            if calls is None:
                calls = W.operator_calls.setdefault(self._calls_name, Products())
            known = calls.run(*arguments)
            if known is not MISSED:
                return known
        given = self._in_order(MatmulCall(A, W, scale, zeros, bias, output, a_scale, residual))
        followed = A, given.bias, residual, given.output
        if is_torch(A) and is_followed(*followed) and (not compiling or wants_gradients(*followed)):
            # torch's compiler cannot look into what is known of a weight, and need not.
            return torch.compiler.disable(self._followed)(given)
        product = self._product(given)
        result = product.run()
        if calls is not None and self._emulated(A) is None:
            tensors = {"x": A, "bias": given.bias, "out": given.output}
            tensors |= {"activation_scales": a_scale, "residual": residual}
            product.remember(calls, arguments, tensors)
        return result

    __call__ = forward

    @functools.cached_property
    def _calls_name(self) -> str:
        """By which a weight's known calls are told apart from those of operators with other configs."""
        return repr(self)

    def emulate(self, A: Array, W: Array | PackedWeight, *rest: Any, **named: Any) -> Any:  # as `forward`
        """`forward` under the emulator, for a target that is not here; arrays in host memory."""
        return self._product(self._in_order(MatmulCall(A, W, *rest, **named))).emulate()

    def _in_order(self, given: MatmulCall) -> MatmulCall:
        """The operands as they are named; in the order of their places, whatever they are taken for."""
        return given

    def _product(self, given: MatmulCall) -> Product:
        A, W = self._rows_of(given.A), given.W
        given = replace(given, A=A)
        self._check_operands(given)
        if isinstance(W, PackedWeight):
            return self._with_packed(W, given)
        if not self._is_fast_as_it_lies(A) and self._emulated(A) is None and hasattr(W, "shape"):
            packed = self.raw_weights.find((W, given.scale, given.zeros), lambda: self._packed(given))
            if packed is not None:
                return self._with_packed(packed, given)
        return self._raw(given)

    def _followed(self, given: MatmulCall) -> Array:
        """The result where torch follows what becomes of A, bias or residual, for their gradients: that of an operator
        which it knows."""
        A, packed = self._rows_of(given.A), given.W
        given = replace(given, A=A)
        self._check_operands(given)
        if not isinstance(packed, PackedWeight):
            packed = self.raw_weights.find((given.W, given.scale, given.zeros), lambda: self._packed(given))
            packed = self._packed(given) if packed is None else packed
        return quant_matmul(A, packed, **self._options(given))

    def _check_operands(self, given: MatmulCall) -> None:
        """A call has the operands that the config says, and no others.  Raises MissingOperand."""
        others = {"bias": given.bias, "a_scale": given.a_scale, "residual": given.residual}
        if isinstance(given.W, PackedWeight):
            self._need(**others)
            self._check_packed(given.W, given.scale, given.zeros)
        else:
            self._need(scale=given.scale, zeros=given.zeros, **others)

    def _rows_of(self, A: Array) -> Array:
        """Activations ``[..., M, K]``, whichever way the config's layout has them. Raises WrongArgumentDType,
        WrongArgumentShape."""
        device_of(A, "A")  # which says what is no array
        expects = dtype(self.config.A_dtype)
        if not expects.is_packed and element_type(A).name != expects.name:
            raise WrongArgumentDType(f"A is {element_type(A)}, but the config's A_dtype is {self.config.A_dtype}")
        transposed = self.config.layout[0] == "t" and len(A.shape) > 1
        rows = A.swapaxes(-1, -2) if transposed else A
        packed = dtype(self.config.A_dtype).per_byte
        width = -(-self.config.facts().K // packed)
        if not rows.shape or rows.shape[-1] != width:
            expected = f"[{width}, ...]" if transposed else f"[..., {width}]"
            raise WrongArgumentShape(
                f"A has shape {list(A.shape)}, expected {expected}",
                hint=f"{packed} elements of {self.config.A_dtype}, neighbours along K, are one byte"
                if packed > 1
                else None,
            )
        return rows

    def _with_packed(self, weight: PackedWeight, given: MatmulCall) -> Product:
        """A product of activations ``[..., M, K]`` with a weight in our order."""
        x = (given.A, self.config.A_dtype) if dtype(self.config.A_dtype).is_packed else given.A
        return Product.of(x, weight, target=self._emulated(given.A), **self._options(given))

    def _options(self, given: MatmulCall) -> dict[str, Any]:
        """What the config and the operands of a call are to `quant_matmul`."""
        request = self.config.request()
        return {
            "activation_scales": given.a_scale, "activation_group": request.activation_group or None,
            "quantize": request.quantize, "bias": given.bias, "function": request.function,
            "residual": given.residual, "out_dtype": request.out, "out": given.output,
        }  # fmt: skip

    def _is_fast_as_it_lies(self, A: Array) -> bool:
        """Whether no order is faster for such activations than that of raw weights, so that no other is made of
        them."""
        return False

    def _emulated(self, A: Array) -> Any:
        """The target where it is not the machine that holds A."""
        return self.arch if self.arch.target != device_of(A).split(":")[0] else None

    def _raw(self, given: MatmulCall) -> Product:
        """A product with raw tensors in the order that they have: nothing of them is remembered."""
        tensors, operands, result = self._checked(given)
        request = replace(self.config.request(), rows=operands.activations.shape[0])
        return Product(self._prepared(tensors, given.A, request), operands, result, request, self.arch)

    def _checked(self, given: MatmulCall) -> tuple[dict[str, Array], Operands, Result]:
        """The weight's tensors by name, the operands of the call, each of the shape and type that the config says, and
        its result."""
        facts, request = self.config.facts(), self.config.request()
        tensors, A, a_scale = self._weight_tensors(given), given.A, given.a_scale
        if a_scale is not None:
            device_of(a_scale, "a_scale")
            a_scale = as_float32(a_scale)  # which holds what scales of other types can be
        rows, shaped = int(np.prod(A.shape[:-1], dtype=np.int64)), Shaped(device_of(A))
        a_scales = {"tensor": (1, 1), "token": (rows, 1)}.get(request.activation_scales)
        if request.activation_scales == "group":
            a_scales = (rows, -(-facts.K // request.activation_group))
        shape = (*A.shape[:-1], facts.N)
        if given.output is not None and element_type(given.output) != dtype(request.out):
            raise WrongArgumentDType(f"output is {element_type(given.output)}, expected {request.out}")
        read = (
            contiguous(A.reshape(rows, A.shape[-1])), shaped("a_scale", a_scale, a_scales, None),
            shaped("bias", given.bias, (facts.N,), request.bias and dtype(request.bias)),
            shaped("residual", given.residual, (rows, facts.N), dtype(request.out), also=shape),
        )  # fmt: skip
        made = result_for(A, shape, dtype(request.out), given.output, read, "output")
        return tensors, Operands(*read, made.written), made

    def _prepared(self, tensors: dict[str, Array], example: Array, request: Request) -> Ready:
        """The product with a weight's tensors as they lie."""
        machine = Machine(self.target, self.arch)
        call = made_once(GeneralCall, self._recipe, machine, example, {})
        then = Prepared(General.name, call.kernel, call.held(tensors), call.arguments)
        if request.quantize is None:
            return then
        return quantizing(self.config.facts().columns, request, machine, example, None, then)

    @functools.cached_property
    def _recipe(self) -> Recipe:
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
        return made_once(GeneralCall, self._recipe, machine, np.zeros(1, np.float32), {}).kernel

    def get_source(self, target: object = None, kernel_only: bool = False, kenrel_only: bool = False) -> str:
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
        """Which kernel serves a packed weight of this config and why not the ones before it; then the kernel's
        choices."""
        chosen = explain(self.config.facts(), self.config.request(), self.arch)
        return chosen + "\n" + self.kernel.explain(M=self._rows()[0])

    def profile_latency(self, M: int | None = None, dynamic_symbolic_constraints: object = None) -> float:
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
        self, topk: int = 20, target: object = None, parallel_build: bool = True
    ) -> list[Outcome]:
        """Measure up to `topk` ways to compute the product for each M of the config and keep the fastest, on disk
        (`matmul.tuning`).

        They are those of the kernel that serves the product (`explain`); a weight in our order runs what was found, in
        this process and later ones.

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
        request = self._product(MatmulCall(A, packed, **named)).request
        key, _ = tuning_key(packed, request, machine)
        options = {"quantize": request.quantize, "function": request.function, "out_dtype": request.out}
        given = {"bias": named["bias"], "residual": named["residual"], "activation_scales": named["a_scale"]}
        x = self._rows_of(A)
        source = self.config.A_dtype if dtype(self.config.A_dtype).is_packed else None
        found = tune(x if source is None else (x, source), packed, topk=topk, parallel=parallel, **options, **given)
        self.tuned[key] = found[0].options
        return found

    def _random(self, rows: int) -> tuple[Any, PackedWeight, dict[str, Any]]:
        """Random operands of a call: A, the weight in our order, and the others by name."""
        (A, W, scale, zeros, bias), named = random_operands(self.config, rows, self._device())
        W = W.T if self._is_transposed else W
        packed = self._packed(MatmulCall(A, W, scale, zeros))
        return A, packed, {"bias": bias, **named}

    def _rows(self) -> list[int]:
        """Numbers of rows that the config names, the largest first."""
        sizes = self.config.M if isinstance(self.config.M, tuple) else (self.config.M or 1,)
        return sorted(set(sizes), reverse=True)

    def _device(self) -> str:
        """Where operands must be for the target to run; raises NoDevice."""
        if self.target.device is None or self.target.detect() is None:
            raise NoDevice(f"there is no {self.target.name} device here to measure on", hint="emulate() needs none")
        return self.target.device
