"""`MatmulConfig`: BitBLAS's description of a product, and what that lacked."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.errors import Unsupported
from tilewright.formats import Format, number_format
from tilewright.ir.dtypes import dtype
from tilewright.kernels.recipe import Grouped
from tilewright.matmul.facts import Request, WeightFacts
from tilewright.matmul.planning import ACTIVATIONS, check_request

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


@dataclass(frozen=True)
class MatmulConfig:
    """``C[M, N] = A[M, K] @ W[N, K]^T`` with a low-bit W, in BitBLAS's words.

    Attributes
    ----------
    M : an int, a list of ints or None.  It is what kernels are tuned for; every M is served.
    N, K : of the weight; they need not be multiples of anything.
    A_dtype, W_dtype, out_dtype : ``"float16"``, ``"int8"``, ``"int4"``, ``"nf4"``, ``"e4m3_float8"``, ...
    accum_dtype : ``"float32"`` or ``"int32"`` by default; ``"float16"`` is served by float32 sums.
    layout : ``"nt"``, ``"nn"``, ``"tt"`` or ``"tn"``: whether A is ``[M, K]`` or ``[K, M]``, W ``[K, N]`` or ``[N, K]``.
    with_bias : a vector ``[N]`` is added.
    group_size : columns that share a scale and a zero; -1 for all of K.
    with_scaling, with_zeros, zeros_mode : ``original`` ``(w - z) s``, ``rescale`` ``w s - z``, ``quantized`` (packed codes).
    storage_dtype, fast_decoding, propagate_a, propagate_b, optimize_stratety : accepted; the order of a packed weight is
        chosen by the library, whose layout ids say which it is.
    scale_dtype, zeros_dtype, bias_dtype : types of these tensors; A's by default where that is a float, else float16.
    scale_granularity : ``"group"`` (a channel's where `group_size` is -1), ``"tensor"``, or a block ``(rows, columns)``.
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
    propagate_a: Any = None
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
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
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
        if self.accum_dtype not in (None, "float16", "float32", "float64", "int32"):
            raise Unsupported(f"sums in {self.accum_dtype}", ("int32", "float32", "float64", "float16 (by float32)"))
        check_request(self.request())

    def _check_kinds(self) -> None:
        """M, and the kinds of scales, are such as there are."""
        rows = self.M if isinstance(self.M, tuple) else (1 if self.M is None else self.M,)
        if not rows or not all(isinstance(m, int) and m > 0 for m in rows):
            raise Unsupported(f"the M {self.M!r}", ("a positive integer", "a list of them", "None"))
        group = self.group_size
        if not isinstance(group, int) or (group < 1 and group not in (-1, 0)):
            raise Unsupported(f"the group_size {group!r}", ("a positive integer", "-1 (one group for all of K)"))
        whole = isinstance(self.a_scale, int) and not isinstance(self.a_scale, bool) and self.a_scale > 0
        if not whole and self.a_scale not in (None, "tensor", "token"):
            raise Unsupported(
                f"the a_scale {self.a_scale!r}", ("None", "'tensor'", "'token'", "columns that share a scale")
            )
        of = self.scale_granularity
        block = isinstance(of, tuple) and len(of) == 2 and all(isinstance(n, int) and n > 0 for n in of)
        if not block and of not in ("group", "tensor"):
            raise Unsupported(f"the scale_granularity {of!r}", ("'group'", "'tensor'", "a block (rows, columns)"))
        for what, name in (("scales", self.scale_dtype), ("zeros", self.zeros_dtype), ("a bias", self.bias_dtype)):
            if name is not None and not dtype(name).is_float:
                raise Unsupported(f"{what} of {name}", ("floats: float16, bfloat16, float32, float8_e8m0fnu, ...",))

    def _normalise(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        if isinstance(self.M, Sequence) and not isinstance(self.M, str):
            put("M", tuple(self.M))
        for name, default in (
            ("group_size", -1), ("with_bias", False), ("with_scaling", False), ("with_zeros", False),
            ("zeros_mode", "original"),
        ):  # fmt: skip
            if getattr(self, name) is None:
                put(name, default)
        if isinstance(self.scale_granularity, Sequence) and not isinstance(self.scale_granularity, str):
            put("scale_granularity", tuple(self.scale_granularity))

    @property
    def format(self) -> Format:
        """Of the weight."""
        return number_format(self.W_dtype)

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of the weight that share a scale."""
        assert isinstance(self.N, int) and isinstance(self.K, int)
        if self.scale_granularity == "tensor":
            return self.N, self.K
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
            N=self.N, K=self.K, columns=self.K, format=self.format, group=min(columns, self.K), scale=scale,
            zeros=kinds[self.zeros_mode] if self.with_zeros else "none", zero_point=point,
        )  # fmt: skip

    def request(self) -> Request:
        """The call that `Matmul.forward` makes."""
        return Request(
            activations=dtype(self.A_dtype).name, out=dtype(self.out_dtype).name,
            activation_scales="group" if isinstance(self.a_scale, int) else self.a_scale or "none",
            activation_group=self.a_scale if isinstance(self.a_scale, int) else 0,
            quantize=None if self.quantize is None else dtype(self.quantize).name,
            bias=dtype(self.bias_dtype or self.float_type).name if self.with_bias else None,
            residual=self.with_residual, function=self.function,
        )  # fmt: skip
