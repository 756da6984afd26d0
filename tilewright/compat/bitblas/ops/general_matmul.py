"""BitBLAS's ``MatmulConfig`` and ``Matmul``: its defaults, its packed bytes, read as they are."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.compat.bitblas.ops.permutes import on_arrays
from tilewright.compat.bitblas.utils import target_name
from tilewright.errors import NoDevice, NotRepresentable
from tilewright.formats import Format
from tilewright.ir.dtypes import UINT8, dtype
from tilewright.kernels.recipe import Request, WeightFacts
from tilewright.matmul.arrays import as_torch, viewed
from tilewright.matmul.config import MatmulConfig as OwnConfig
from tilewright.matmul.config import OptimizeStrategy, TransformKind
from tilewright.matmul.operator import Matmul as OwnMatmul
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.product import Product
from tilewright.matmul.random_operands import random_operands
from tilewright.matmul.tiers import ladder
from tilewright.matmul.tiers.base import Machine, Ready
from tilewright.matmul.tuning import measured
from tilewright.matmul.weight_forms import MatmulCall
from tilewright.quant.importers import bitblas as orders
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.tensors import Array, is_torch
from tilewright.tuning import Candidate, Database, Outcome

logger = logging.getLogger("bitblas")

DYNAMIC_M = (1, 16, 32, 64, 128, 256, 512, 1024)

BITBLAS_TRICK_DTYPE_MAP: dict[str, tuple[str, int]] = {
    "float64": ("fp", 64), "float32": ("fp", 32), "float16": ("fp", 16), "bfloat16": ("bf", 16), "nf4": ("nf", 4),
    "fp4_e2m1": ("fp", 4), "e4m3_float8": ("fp_e4m3", 8), "e5m2_float8": ("fp_e5m2", 8),
    **{f"{kind}{bits}": (kind, bits) for kind in ("int", "uint") for bits in (32, 16, 8, 4, 2, 1)},
}  # fmt: skip
"""BitBLAS's source format and bits by the name of a type."""

_FLOAT8 = ("e4m3_float8", "e5m2_float8")


@dataclass(frozen=True)
class MatmulConfig(OwnConfig):
    """`tilewright.matmul.MatmulConfig` with BitBLAS's defaults: of M, accum_dtype, fast_decoding and propagate_b.

    ``propagate_a`` says nothing here: A is always row-major. ``propagate_b`` (a number, a bool or a `TransformKind`) is
    the order of packed weights; None is BitBLAS's choice.
    """

    accum_dtype: str | None = "float16"

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        batching = self.optimize_stratety == OptimizeStrategy.ContigousBatching
        if self.M is None:
            put("M", DYNAMIC_M[1:] if batching else DYNAMIC_M)
        super().__post_init__()
        put("propagate_b", self._propagate_b(batching))
        put("fast_decoding", self._fast_decoding() if self.fast_decoding is None else bool(self.fast_decoding))
        put("propagate_a", TransformKind.NonTransform)
        if self.native and self.A_dtype not in ("int4", "uint4", "uint8", "float32", "float64"):
            put("storage_dtype", self.W_dtype)

    @property
    def native(self) -> bool:
        """Whether W is multiplied in the type that it is stored in."""
        return self.A_dtype == self.W_dtype or (self.A_dtype in _FLOAT8 and self.W_dtype in _FLOAT8)

    def _fast_decoding(self) -> bool:
        """BitBLAS interleaves integers of less than 8 bits, but for bfloat16 and for 4 beside 8 bits."""
        no_integer = "int" not in self.W_dtype or self.W_dtype in ("int8", "uint8")
        four_by_eight = self.W_dtype in ("int4", "uint4") and self.A_dtype == "int8"
        if no_integer or self.native or four_by_eight or self.A_dtype == "bfloat16":
            return False
        # Where it has no order, or rows do not fill words, it fails.
        assert isinstance(self.N, int) and isinstance(self.K, int)
        run = self.N * self.K if self.propagate_b else self.K
        return orders.is_interleaved(self.format.bits, self.A_dtype) and run * self.format.bits % 32 == 0

    def _propagate_b(self, batching: bool) -> TransformKind:
        """BitBLAS's choice where none is given, and where it overrules one."""
        assert isinstance(self.N, int) and isinstance(self.K, int)
        static = isinstance(self.M, int)
        quantized = self.with_zeros and self.zeros_mode == "quantized"
        found = TransformKind.LDMatrixTransform
        if self.M == 1 or self.N % 16 or self.K % 16 or not static or quantized:
            found = TransformKind.NonTransform
        if self.propagate_b is not None:
            found = self.propagate_b
        if batching and self.M != 1:
            found = TransformKind.LDMatrixTransform
        if self.A_dtype in (*_FLOAT8, "bfloat16"):
            return TransformKind.NonTransform
        if self.A_dtype in ("int4", "uint4") and found == TransformKind.IntraWarpTransform:
            return TransformKind.LDMatrixTransform
        # Its own choice never cuts a weight into tiles that do not come out even.
        uneven = self.propagate_b is None and self.K % orders.columns_of(self.A_dtype)
        return TransformKind.NonTransform if uneven else found

    @property
    def order(self) -> orders.BitblasOrder:
        """The order of packed weights."""
        return orders.bitblas_order(self.format.bits, self.A_dtype, int(self.propagate_b), bool(self.fast_decoding))

    def facts(self) -> WeightFacts:
        """The weight as BitBLAS's bytes carry it."""
        order, known = self.order, super().facts()
        slots = () if order.order is None else tuple(int(place) for place in np.argsort(order.order))
        tiles = (order.columns, order.stage) if order.stage else (0, 0)
        offset = not self.native and orders.is_offset_binary(known.format, self.A_dtype)
        return replace(known, slots=slots, tiles=tiles, offset_binary=offset)


class Matmul(OwnMatmul):
    """BitBLAS's ``Matmul``: weights are its packed bytes, read in their order by the kernel at every call.

    Parameters
    ----------
    config : a `MatmulConfig`.
    target : ``"cuda"``, ``"cuda -arch=sm_80"``, ``"cpu"``, an object of ``bitblas.tvm``; None for the best machine
        here.
    enable_tuning : accepted; tuning is `hardware_aware_finetune`.
    """

    BITBLAS_TRICK_DTYPE_MAP = BITBLAS_TRICK_DTYPE_MAP

    config: MatmulConfig

    def __init__(
        self,
        config: MatmulConfig,
        name: str = "matmul",
        target: object = None,
        enable_tuning: bool = True,
        from_database: bool = False,
        backend: str = "tl",
    ) -> None:
        super().__init__(config, name, target_name(target), enable_tuning, from_database, backend)
        config.order.check(*self._size)
        if config.with_zeros and self.source_format == "int":
            logger.warning("zeros beside %s weights: they are subtracted from the signed numbers", config.W_dtype)
        self.dynamic_range = {"m": config.M} if isinstance(config.M, tuple) else None
        self.workspace = None

    @property
    def _size(self) -> tuple[int, int]:
        facts = self.config.facts()
        return facts.N, facts.K

    @property
    def source_format(self) -> str:
        """BitBLAS's kind of the weight's numbers: ``"int"``, ``"uint"``, ``"nf"``, ``"fp"``, ``"fp_e4m3"``, ..."""
        return BITBLAS_TRICK_DTYPE_MAP.get(self.config.W_dtype, (self.config.format.kind, 0))[0]

    @property
    def lut(self) -> object:
        """The sixteen numbers of nf4 in A's type, a tensor of torch; None for other formats."""
        if self.config.format.kind != "codebook":
            return None
        return as_torch(self.config.format.table.astype(dtype(self.A_dtype).numpy), "cpu")

    # Weights ------------------------------------------------------------------------------------------

    def retrieve_weight_shape(self) -> list[int]:
        """``[N, K * bits / 8]``; with propagate_b ``[N / 16, K / columns, 16, columns * bits / 8]``."""
        shape = self.config.order.shape(*self._size)
        return shape[::-1] if self._is_transposed else shape

    @property
    def _is_transposed(self) -> bool:
        """Whether raw weights are ``[K, N]``, as whole elements are in the layouts nn and tn where nothing cuts them
        into tiles."""
        return super()._is_transposed and not self.config.order.stage

    def _in_rows(self, array: np.ndarray) -> np.ndarray:
        """A weight of a layout as ``[N, K]``, but for one whose raw form is transposed."""
        transpose = self.config.layout[1] == "n" and not self._is_transposed and array.ndim == 2
        return np.ascontiguousarray(array.T) if transpose else array

    def _code_shape(self) -> tuple[int, ...]:
        shape = self.config.order.shape(*self._size)
        return (shape[0], shape[1], shape[2] * shape[3]) if len(shape) == 4 else tuple(shape)

    def _weight_tensors(self, given: MatmulCall) -> dict[str, Array]:
        W, expected = given.W, self._code_shape()
        if hasattr(W, "reshape") and not self._is_transposed and int(np.prod(W.shape)) == int(np.prod(expected)):
            W = W.reshape(expected)
        if not self.config.format.is_dense and "float8" in str(getattr(W, "dtype", "")):
            W = viewed(W, UINT8)
        return super()._weight_tensors(replace(given, W=W))

    def _plain(self, codes: Any) -> Array:
        order, of = self.config.order, self.config.format
        if order.stage or order.order:
            plain = order.plain_tensor if is_torch(codes) else order.plain
            codes = plain(codes, *self._size)
        if self.config.facts().offset_binary:
            codes = codes ^ sum(1 << bit for bit in range(of.bits - 1, 8, of.bits))  # every code's sign bit
        return codes

    @property
    def weight_transform(self) -> Callable[[Array], Array] | None:  # type: ignore[override]
        """From stored codes ``[N, K]`` (in the layouts nn and tn ``[K, N]``), one an element, to ``[N, K * bits / 8]``;
        None where they stay as they are."""
        order, of = self.config.order, self.config.format
        if order.bits >= 8 and not order.stage:
            return None

        def transform(codes: Array) -> Array:
            return on_arrays(lambda array: _packed(self._in_rows(array), order, of), codes)

        return transform

    def transform_weight(self, weight: Array, scale: object = None, zeros: object = None, bias: object = None) -> Array:
        """Numbers ``[N, K]`` (-8 to 7 for int4; codes for nf4 and fp4) to BitBLAS's packed bytes.

        Only the weight is given back, as BitBLAS does.

        Raises
        ------
        NotRepresentable : a number that the format does not have, named with its index.
        """

        def transform(array: np.ndarray) -> np.ndarray:
            of, order, array = self.config.format, self.config.order, self._in_rows(array)
            if self._is_transposed and (of.is_dense or array.dtype.itemsize == 1):
                return array
            if of.is_dense or (array.dtype.itemsize == 1 and array.dtype.kind in "fV"):
                return _packed(array, order, of)
            if of.kind in ("int", "uint"):
                codes = of.exact(array.astype(np.float64))
                codes = codes if self.config.native else orders.stored_codes(codes, of, self.A_dtype)
            else:
                codes = array.astype(np.int64)
            return _packed(codes, order, of)

        return on_arrays(transform, weight)

    def transform_input(self, input_tensor: Array) -> Array:
        """A as it is: no kernel wants it otherwise."""
        return input_tensor

    # Calls --------------------------------------------------------------------------------------------

    def _in_order(self, given: MatmulCall) -> MatmulCall:
        """Scale, zeros, bias and output as the config has them: BitBLAS hands what it is given on in turn, so
        ``matmul(A, W, bias)`` and ``matmul(A, W, scale, output)`` are calls there."""
        handed, own = (given.scale, given.zeros, given.bias), isinstance(given.W, PackedWeight)
        has = [self.config.with_scaling and not own, self.config.with_zeros and not own, self.config.with_bias]
        there = [one for one in handed if one is not None]
        written = given.output is None and len(there) == sum(has) + 1 and self._is_result(there[-1], given.A)
        if [one is not None for one in handed] == has or len(there) != sum(has) + written:
            return given  # as they are named, or an error that names what is missing
        following = iter(there)
        scale, zeros, bias = (next(following) if wanted else None for wanted in has)
        return replace(given, scale=scale, zeros=zeros, bias=bias, output=next(following, given.output))

    def _is_result(self, array: Any, A: Any) -> bool:
        """Whether an array is such as the product with A is written to."""
        shape = tuple(getattr(A, "shape", ()))
        rows = shape[-1:] if self.config.layout[0] == "t" else shape[-2:-1]
        return tuple(getattr(array, "shape", ())) == (*shape[:-2], *rows, self._size[0])

    # What was made ------------------------------------------------------------------------------------

    def _is_fast_as_it_lies(self, A: Array) -> bool:
        return self._as_it_lies(int(np.prod(A.shape[:-1])))

    @functools.cached_property
    def _reads_as_it_lies(self) -> bool:
        """Whether there is a fast kernel for raw weights in the order that they have."""
        return ladder.refuses(self.config.facts(), self.config.request(), self.arch) is None

    def _prepared(
        self, tensors: dict[str, Array], example: Array, request: Request, chosen: Candidate | None = None
    ) -> Ready:
        if not self._reads_as_it_lies:
            return super()._prepared(tensors, example, request)
        machine = Machine(self.target, self.arch)
        return ladder.ladder_call(self.config.facts(), request, machine, example, chosen).prepared(tensors)

    @property
    def kernel(self) -> Kernel:
        """The kernel that serves raw tensors; that for the most rows that the config names, where there are several."""
        if not self._reads_as_it_lies:
            return super().kernel
        request = replace(self.config.request(), rows=self._rows()[0])
        machine = Machine(self.target, self.arch)
        return ladder.ladder_call(self.config.facts(), request, machine, np.zeros(1, np.float32)).kernel

    def explain(self) -> str:
        """Which kernel serves a packed weight of this config and why not the ones before it; then that of raw
        tensors."""
        reason = ladder.refuses(self.config.facts(), self.config.request(), self.arch)
        more = "and more where none may be kept in another order"
        few = f"raw weights are multiplied as they lie: {ladder.FEW} rows, {more}"
        said = few if reason is None else f"raw weights are repacked: {reason}"
        return f"{said}\n{super().explain()}"

    def _as_it_lies(self, rows: int) -> bool:
        """Whether calls with so many rows multiply raw weights as they lie."""
        return self._reads_as_it_lies and rows <= ladder.FEW

    def _random(self, rows: int) -> tuple[Any, Any, dict[str, Any]]:
        if not self._as_it_lies(rows):
            return super()._random(rows)
        (A, W, scale, _, bias), named = random_operands(self.config, rows, self._device())
        return A, W, {"scale": scale, "bias": bias, **named}

    def hardware_aware_finetune(
        self, topk: int = 20, target: object = None, parallel_build: bool = True
    ) -> list[Outcome]:
        """Measure up to `topk` ways to divide the product on the machine here and keep the fastest.

        Where the target is not here nothing can be measured, and the product stays as the machine's model divides it.
        """
        try:
            return super().hardware_aware_finetune(topk, target, parallel_build)
        except NoDevice as error:
            logger.info("not tuned: %s", error.message)
            return []

    def _tuned(self, rows: int, topk: int, parallel: bool) -> list[Outcome]:
        tuned = self._tuned_in_place if self._as_it_lies(rows) else super()._tuned
        found = tuned(rows, topk, parallel)
        log_outcomes(found)
        return found

    def _tuned_in_place(self, rows: int, topk: int, parallel: bool) -> list[Outcome]:
        """`_tuned` for bytes that are multiplied as they lie."""
        A, W, named = self._random(rows)
        given = MatmulCall(A, W, **named)
        known = self._raw(given)
        known.run()
        facts, request, machine = self.config.facts(), known.request, Machine(self.target, self.arch)

        def made(chosen: Candidate) -> Product:
            tensors, operands, result = self._checked(given)
            return Product(self._prepared(tensors, A, request, chosen), operands, result, request, self.arch)

        found = measured(known, ladder.candidates(facts, request, self.arch), made, topk, parallel)
        key = ladder.key(facts, request, machine.arch)
        Database().put(key, found[0].options)
        self.tuned[key] = found[0].options
        ladder.chosen.cache_clear()
        return found

    def profile_latency(self, M: int | None = None, dynamic_symbolic_constraints: Any = None) -> float:
        """Median milliseconds of a call on random operands over the whole range of their types.

        Parameters
        ----------
        M : rows; the largest that the config names by default.
        dynamic_symbolic_constraints : ``{"m": rows}``, BitBLAS's way to say the same.
        """
        return super().profile_latency(M or (dynamic_symbolic_constraints or {}).get("m"))

    @property
    def lib(self) -> object:
        """The compiled kernel."""
        return self.kernel

    torch_func = rt_mod = lib

    def cleanup(self) -> None:
        """Nothing is held that would have to be given back."""


def log_outcomes(outcomes: list[Outcome]) -> None:
    """What was tried, in the words of BitBLAS's log, which its users search: the configuration, and what it cost."""
    for one in outcomes:
        logger.debug("Apply config %s", one.options)
        if one.milliseconds is None:
            logger.debug("Apply schedule failed: %s", one.reason)
            continue
        logger.info("Evaluation with config %s", one.options)
        logger.info("Time cost of this config: %.3f ms", one.milliseconds)


def _packed(array: np.ndarray, order: orders.BitblasOrder, of: Format) -> np.ndarray:
    """Stored codes in BitBLAS's order, as int8 where they are codes."""
    if array.ndim == 4:
        array = array.reshape(-1, array.shape[1] * array.shape[3])
    if of.is_dense or (array.dtype.itemsize == 1 and array.dtype.kind in "fV"):
        return order.pack(array)
    if of.bits < 8:
        wrong = (array < 0) | (array >= 1 << of.bits)
        if wrong.any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise NotRepresentable(f"{array[place]:g}", place, f"a code of {of.name}", f"0 to {(1 << of.bits) - 1}")
    return order.pack(array.astype(np.uint8)).view(np.int8)
