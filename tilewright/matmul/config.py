"""`MatmulConfig`: BitBLAS's description of a product, and what that lacked."""

from __future__ import annotations

import enum
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import Unsupported
from tilewright.formats import Format, number_format
from tilewright.ir.dtypes import dtype
from tilewright.kernels.recipe import Grouped, Request, WeightFacts
from tilewright.matmul.planning import ACTIVATIONS, check_request, check_sums

LAYOUTS = ("nt", "nn", "tt", "tn")
ZEROS_MODES = ("original", "rescale", "quantized")


class TransformKind(enum.IntEnum):
    """BitBLAS's names for packed orders of an operand."""

    NonTransform = 0
    InterWarpTransform = 1
    IntraWarpTransform = 2
    LDMatrixTransform = 3


class OptimizeStrategy(enum.IntEnum):
    """What BitBLAS optimises a dynamic M for; here every M has its kernel."""

    SingleBatchDecodeOnly = 0
    ContigousBatching = 1


_TYPES = (
    "A_dtype", "W_dtype", "out_dtype", "accum_dtype", "storage_dtype", "scale_dtype", "zeros_dtype", "bias_dtype",
    "quantize",
)  # fmt: skip
_DEFAULTS = {"group_size": -1, "with_bias": False, "with_scaling": False, "with_zeros": False, "zeros_mode": "original"}
"""What None stands for, as BitBLAS has it."""


@dataclass(frozen=True)
class MatmulConfig:
    """``C[M, N] = A[M, K] @ W[N, K]^T`` with a low-bit W, in BitBLAS's words.

    Attributes
    ----------
    M : an int, a list of ints or None.  It is what kernels are tuned for; every M is served.
    N, K : of the weight; they need not be multiples of anything.
    A_dtype, W_dtype, out_dtype : ``"float16"``, ``"int8"``, ``"int4"``, ``"nf4"``, ``"e4m3_float8"``, ...; types of
        NumPy and torch become names.
    accum_dtype : ``"float32"`` or ``"int32"`` by default; ``"float16"`` is served by float32 sums.
    layout : ``"nt"``, ``"nn"``, ``"tt"`` or ``"tn"``: whether A is ``[M, K]`` or ``[K, M]``, W ``[K, N]`` or
        ``[N, K]``.
    with_bias : a vector ``[N]`` is added.
    group_size : columns that share a scale and a zero; -1 for all of K.
    with_scaling, with_zeros, zeros_mode : ``original`` ``(w - z) s``, ``rescale`` ``w s - z``, ``quantized`` (packed
        codes).
    storage_dtype, fast_decoding, propagate_a, propagate_b, optimize_stratety : accepted; the order of a packed weight
    is
        chosen by the library, whose layout ids say which it is.
    scale_dtype, zeros_dtype, bias_dtype : types of these tensors; A's by default where that is a float, else float16.
    scale_granularity : ``"group"`` (of `group_size` columns), ``"channel"``, ``"tensor"``, or a block
        ``(rows, columns)``.
    a_scale : scales of the activations: None, ``"tensor"``, ``"token"``, or how many columns share one.
    quantize : type that float activations are quantised to as part of the call.
    function, with_residual : the rest of the epilogue.

    Raises
    ------
    Unsupported : a combination that no kernel computes; says what there is.
    """

    M: int | Sequence[int] | None = None
    N: int | None = None
    K: int | None = None
    A_dtype: str = "float16"
    W_dtype: str = "float16"
    out_dtype: str = "float16"
    accum_dtype: str | None = None
    layout: str = "nt"
    with_bias: bool = False
    group_size: int | None = -1
    with_scaling: bool = False
    with_zeros: bool = False
    zeros_mode: str = "original"
    storage_dtype: str = "int8"
    fast_decoding: bool | None = None
    propagate_a: object = None
    propagate_b: Any = None
    optimize_stratety: int | OptimizeStrategy = OptimizeStrategy.SingleBatchDecodeOnly
    scale_dtype: str | None = None
    zeros_dtype: str | None = None
    bias_dtype: str | None = None
    scale_granularity: str | tuple[int, int] = "group"
    a_scale: str | int | None = None
    quantize: str | None = None
    function: str | None = None
    with_residual: bool = False

    def __post_init__(self) -> None:
        self._normalise()
        for name in ("N", "K"):
            if not is_size(getattr(self, name)):
                raise Unsupported(f"the size {name} = {getattr(self, name)!r}", ("positive integers",))
        for what, value, known in (
            ("the layout", self.layout, LAYOUTS),
            ("the zeros_mode", self.zeros_mode, ZEROS_MODES),
            ("activations of", dtype(self.A_dtype).name, ACTIVATIONS),
        ):
            if value not in known:
                raise Unsupported(f"{what} {value!r}" if what.startswith("the") else f"{what} {value}", known)
        self._check_kinds()
        if self.with_zeros and self.zeros_mode == "quantized" and self.format.kind != "uint":
            raise Unsupported(f"zeros_mode 'quantized' with W_dtype {self.W_dtype}", ("unsigned integers: uint4, ...",))
        if self.format.is_dense and (self.with_scaling or self.with_zeros):
            raise Unsupported(f"scales and zeros of {self.W_dtype} weights", ("formats of at most 8 bits",))
        if self.quantize is not None and self.a_scale is not None:
            raise Unsupported(
                f"the a_scale {self.a_scale!r} beside quantize", ("one of the two: quantising makes scales",)
            )
        check_request(self.request())
        check_sums(self.accum_dtype, dtype(self.quantize or self.A_dtype))

    def _check_kinds(self) -> None:
        """M, and the kinds of scales, are such as there are."""
        rows = self.M if isinstance(self.M, tuple) else (1 if self.M is None else self.M,)
        if not rows or not all(map(is_size, rows)):
            raise Unsupported(f"the M {self.M!r}", ("a positive integer", "a list of them", "None"))
        check_group_size(self.group_size)
        if not is_size(self.a_scale) and self.a_scale not in (None, "tensor", "token"):
            raise Unsupported(
                f"the a_scale {self.a_scale!r}", ("None", "'tensor'", "'token'", "columns that share a scale")
            )
        of = self.scale_granularity
        block = isinstance(of, tuple) and len(of) == 2 and all(map(is_size, of))
        if not block and of not in ("group", "channel", "tensor"):
            raise Unsupported(
                f"the scale_granularity {of!r}", ("'group'", "'channel'", "'tensor'", "a block (rows, columns)")
            )
        for what, name in (("scales", self.scale_dtype), ("zeros", self.zeros_dtype), ("biases", self.bias_dtype)):
            if name is not None:
                check_scale_type(what, name)

    def _normalise(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        for name, default in _DEFAULTS.items():
            if getattr(self, name) is None:
                put(name, default)
        for name in ("M", "scale_granularity", "N", "K", "group_size", "a_scale"):
            put(name, whole(getattr(self, name)))
        for name in _TYPES:
            given = getattr(self, name)
            if given is not None and not isinstance(given, (str, Format)):
                put(name, dtype(given).name)
        for name in ("with_bias", "with_scaling", "with_zeros", "with_residual", "fast_decoding"):
            given = getattr(self, name)
            if given is not None:
                put(name, _truth(name, given))
        if self.storage_dtype != self.W_dtype and self.storage_dtype not in _STORAGE:
            raise Unsupported(f"the storage_dtype {self.storage_dtype!r}", _STORAGE)
        for name in ("propagate_a", "propagate_b"):
            put(name, _transform_kind(getattr(self, name)))
        if self.optimize_stratety not in [*OptimizeStrategy]:
            raise Unsupported(f"the optimize_stratety {self.optimize_stratety!r}", ("0", "1", "an OptimizeStrategy"))
        put("optimize_stratety", OptimizeStrategy(self.optimize_stratety))

    @property
    def format(self) -> Format:
        """Of the weight."""
        return number_format(self.W_dtype)

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of the weight that share a scale."""
        assert isinstance(self.N, int) and isinstance(self.K, int)
        if self.scale_granularity in ("tensor", "channel"):
            return self.N if self.scale_granularity == "tensor" else 1, self.K
        if isinstance(self.scale_granularity, tuple):
            return self.scale_granularity[0], self.scale_granularity[1]
        assert self.group_size is not None
        return 1, self.K if self.group_size <= 0 else self.group_size

    @property
    def float_type(self) -> str:
        """What scales, zeros and biases are held in where nothing is said."""
        own = dtype(self.A_dtype)
        return own.name if own.is_float and own.bits >= 16 else "float16"

    def facts(self) -> WeightFacts:
        """The weight as raw tensors carry it: codes row by row, scales and zeros ``[N, K / group]``."""
        assert isinstance(self.N, int) and isinstance(self.K, int)
        rows, columns = self.block
        groups = (-(-self.N // rows), -(-self.K // columns))
        scale = Grouped(dtype(self.scale_dtype or self.float_type).name, *groups, rows) if self.with_scaling else None
        point = Grouped(dtype(self.zeros_dtype or self.float_type).name, *groups, rows) if self.with_zeros else None
        kinds = {"original": "groups", "rescale": "rescale", "quantized": "packed"}
        return WeightFacts(
            N=self.N,
            K=self.K,
            columns=self.K,
            format=self.format,
            group=min(columns, self.K),
            scale=scale,
            zeros=kinds[self.zeros_mode] if self.with_zeros else "none",
            zero_point=point,
        )

    def request(self) -> Request:
        """The call that `Matmul.forward` makes."""
        return Request(
            activations=dtype(self.A_dtype).name,
            out=dtype(self.out_dtype).name,
            activation_scales="group" if isinstance(self.a_scale, int) else self.a_scale or "none",
            activation_group=self.a_scale if isinstance(self.a_scale, int) else 0,
            quantize=None if self.quantize is None else dtype(self.quantize).name,
            bias=dtype(self.bias_dtype or self.float_type).name if self.with_bias else None,
            residual=self.with_residual,
            function=self.function,
        )


_STORAGE = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def whole(value: object) -> Any:  # the value itself, where it is no number
    """Whole numbers of any kind as Python's, and lists of them as tuples; anything else, truth values too, as it is."""
    if isinstance(value, np.ndarray) and value.ndim == 1:
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return tuple(whole(each) for each in value)
    if isinstance(value, (bool, np.bool_, np.ndarray)) or not hasattr(value, "__index__"):
        return value
    return operator.index(value)


def is_size(value: object) -> bool:
    """Whether a value is a whole number of Python's above 0."""
    return type(value) is int and value > 0


def _truth(name: str, value: object) -> bool:
    if isinstance(value, (bool, np.bool_)) or value in (0, 1):
        return bool(value)
    raise Unsupported(f"the {name} {value!r}", ("True", "False"))


def _transform_kind(value: Any) -> TransformKind | None:
    if value is None or isinstance(value, TransformKind):
        return value
    if isinstance(value, bool):
        return TransformKind.LDMatrixTransform if value else TransformKind.NonTransform
    if value not in [*TransformKind]:
        raise Unsupported(f"the transform {value!r}", ("0 to 3", "True or False", "a TransformKind", "None"))
    return TransformKind(value)


def check_group_size(group: object) -> None:
    """Columns that share a scale: a size, or what stands for all of K.  Raises Unsupported."""
    if group is not None and not is_size(group) and (type(group) is not int or group not in (-1, 0)):
        raise Unsupported(f"the group_size {group!r}", ("a positive integer", "-1 (one group for all of K)"))


def check_scale_type(what: str, name: object) -> None:
    """Scales, zeros and biases are floats.  Raises Unsupported."""
    if not dtype(name).is_float:
        raise Unsupported(f"{what} of {dtype(name)}", ("floats: float16, bfloat16, float32, float8_e8m0fnu, ...",))
