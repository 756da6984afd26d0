"""BitBLAS's ``FlashAtten``: attention of whole sequences, by `kernels.attention`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.compat.bitblas.utils import target_name
from tilewright.errors import CannotQuantize, Unsupported, WrongArgumentShape
from tilewright.ir.dtypes import dtype
from tilewright.kernels.attention import flash_attention
from tilewright.matmul.arrays import placed_like
from tilewright.runtime.tensors import Array, is_torch
from tilewright.specialization import compile
from tilewright.targets.registry import resolve

TYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class FlashAttenConfig:
    """Attention of `heads` heads over sequences of `seq_len` tokens.

    Attributes
    ----------
    kv_heads : heads of keys and values, by default as many as of queries.
    Q_dtype, K_dtype, V_dtype, Out_dtype : one type for all.
    Accu_dtype : accepted; sums are float32.
    layout : ``"nnn"``, or ``"ntn"`` where keys are ``[batch, dim, kv_heads, seq_len]``.
    is_causal : whether a token sees only those before it.

    Raises
    ------
    Unsupported : a combination of types or a layout that no kernel has.
    CannotQuantize : sizes that are missing or do not fit one another.
    """

    batch: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    seq_len: int | None = None
    dim: int | None = None
    Q_dtype: str = "float16"
    K_dtype: str = "float16"
    V_dtype: str = "float16"
    Accu_dtype: str = "float32"
    Out_dtype: str = "float16"
    layout: str = "nnn"
    is_causal: bool = False

    def __post_init__(self) -> None:
        types = {self.Q_dtype, self.K_dtype, self.V_dtype, self.Out_dtype}
        if len(types) > 1 or self.Q_dtype not in TYPES:
            raise Unsupported(f"attention of {', '.join(sorted(types))}", tuple(f"all of {name}" for name in TYPES))
        if self.layout not in ("nnn", "ntn"):
            raise Unsupported(f"the layout {self.layout!r}", ("nnn", "ntn"))
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        for name in ("batch", "heads", "kv_heads", "seq_len", "dim"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise CannotQuantize(f"{name} is {value!r}, where a positive whole number is due")
        assert self.heads is not None and self.kv_heads is not None
        if self.heads % self.kv_heads:
            raise CannotQuantize(f"{self.heads} heads do not share {self.kv_heads} heads of keys evenly")

    @property
    def query_shape(self) -> tuple[int, ...]:
        """``[batch, seq_len, heads, dim]``, of the result too."""
        return self.batch, self.seq_len, self.heads, self.dim  # type: ignore[return-value]

    @property
    def value_shape(self) -> tuple[int, ...]:
        """``[batch, seq_len, kv_heads, dim]``."""
        return self.batch, self.seq_len, self.kv_heads, self.dim  # type: ignore[return-value]

    @property
    def key_shape(self) -> tuple[int, ...]:
        """As values, or with tokens last."""
        shape = self.value_shape
        return shape if self.layout == "nnn" else (shape[0], shape[3], shape[2], shape[1])


class FlashAtten:
    """The operator; a whole sequence at once, as BitBLAS's."""

    def __init__(
        self,
        config: FlashAttenConfig,
        name: str = "flashatten",
        target: object = None,
        enable_tuning: bool = False,
        from_database: bool = False,
        backend: str = "tl",
    ) -> None:
        self.config, self.name = config, name
        self.target, self.arch = resolve(target_name(target))
        samples = [
            np.zeros((shape[0], shape[2], shape[1], shape[3]), dtype(config.Q_dtype).numpy)
            for shape in (config.query_shape, config.value_shape, config.value_shape)
        ]
        traced = flash_attention.trace(*samples, causal=config.is_causal, dtype=config.Q_dtype)
        self.kernel = compile(traced, target=self.arch)

    def forward(self, Q: Array, K: Array, V: Array, output: Any = None) -> Array:
        """``[batch, seq_len, heads, dim]``, written to `output` too where it is given. Raises WrongArgumentShape for a
        tensor that is not of the configuration's shape."""
        config = self.config
        for name, tensor, shape in (
            ("Q", Q, config.query_shape),
            ("K", K, config.key_shape),
            ("V", V, config.value_shape),
            ("output", Q if output is None else output, config.query_shape),
        ):
            if tuple(tensor.shape) != shape:
                raise WrongArgumentShape(f"{name} has shape {list(tensor.shape)}, the configuration says {list(shape)}")
        keys = K if config.layout == "nnn" else _moved(K, (0, 3, 2, 1))
        heads_first = (_contiguous(_moved(tensor, (0, 2, 1, 3))) for tensor in (Q, keys, V))
        found = _moved(self.kernel(*heads_first), (0, 2, 1, 3))
        if output is None:
            return _contiguous(found)
        output[...] = placed_like(found, output) if isinstance(found, np.ndarray) else found
        return output

    __call__ = forward

    def get_source(self, target: object = None, kenrel_only: bool = False) -> str:
        """The text of the kernel."""
        return str(self.kernel.get_kernel_source())


def _moved(tensor: Array, order: tuple[int, ...]) -> Array:
    return tensor.permute(order) if is_torch(tensor) else tensor.transpose(order)


def _contiguous(tensor: Array) -> Array:
    return tensor.contiguous() if is_torch(tensor) else np.ascontiguousarray(tensor)
