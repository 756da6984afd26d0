"""Configs drawn over all their fields: every form of the operands against float64, or one and the same refusal."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.unit.matmul.products import UNIT
from tilewright.errors import Unsupported
from tilewright.formats import pack_plain
from tilewright.ir.dtypes import dtype, pack
from tilewright.matmul import Matmul, MatmulConfig
from tilewright.matmul.arrays import as_torch
from tilewright.matmul.planning import ACTIVATIONS
from tilewright.runtime.tensors import as_numpy

pytest.importorskip("torch")

INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in range(1, 9)]
WEIGHTS = [
    *INTEGERS,
    "ternary",
    "nf4",
    "iq4",
    "iq2",
    "e2m1",
    "e3m2",
    "e4m3",
    "e5m2fnuz",
    "e6m1",
    "float16",
    "bfloat16",
    "float32",
]
RESULTS = ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "float8_e4m3fn"]
FLOATS = ["float16", "bfloat16", "float32"]
FUNCTIONS = {
    "relu": lambda x: np.maximum(x, 0), "sigmoid": lambda x: 0.5 + 0.5 * np.tanh(x / 2), "tanh": np.tanh,
    "silu": lambda x: x * (0.5 + 0.5 * np.tanh(x / 2)),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))),
}  # fmt: skip
OPTIONS: dict[str, tuple[float, list[Any]]] = {
    "A_dtype": (1, [*ACTIVATIONS, "float16", "int8"]), "W_dtype": (1, WEIGHTS), "out_dtype": (1, [*RESULTS, "float32"]),
    "N": (1, [1, 3, 8, 17, 24, 48, 65]), "K": (1, [1, 5, 16, 33, 64, 100, 130]),
    "layout": (0.5, ["nt", "nn", "tt", "tn"]),
    "with_scaling": (0.7, [True]), "with_zeros": (0.4, [True]),
    "zeros_mode": (0.7, ["original", "rescale", "quantized"]),
    "group_size": (0.6, [-1, 1, 3, 10, 16, 32, 1000]),
    "scale_granularity": (0.3, ["channel", "tensor", (8, 32), (3, 10), (2, 16)]),
    "scale_dtype": (0.3, [*FLOATS, "float8_e8m0fnu"]), "zeros_dtype": (0.3, FLOATS), "bias_dtype": (0.3, FLOATS),
    "with_bias": (0.3, [True]), "function": (0.3, list(FUNCTIONS)), "with_residual": (0.2, [True]),
    "a_scale": (0.25, ["tensor", "token", 10, 16]), "propagate_b": (0.2, [0, 3, True]),
    "fast_decoding": (0.2, [True, False]), "M": (0.3, [1, (1, 16)]),
}  # fmt: skip
LEADING: list[tuple[int, ...]] = [(0,), (1,), (2,), (17,), (2, 3), (2, 0)]


def numbers(rng: np.random.Generator, name: str, shape: tuple[int, ...], positive: bool = False) -> np.ndarray:
    kind = dtype(name)
    if kind.is_integer:
        return rng.integers(max(int(kind.minimum), -100), min(int(kind.maximum), 100) + 1, shape).astype(kind.numpy)
    return (rng.uniform(0.3, 2.0, shape) if positive else rng.standard_normal(shape)).astype(kind.numpy)


class Case:
    """A drawn config with its operands as NumPy's arrays, and the result in float64 with how far one may be from it."""

    def __init__(self, rng: np.random.Generator, config: MatmulConfig) -> None:
        self.config, facts, of = config, config.facts(), config.format
        self.leading = LEADING[rng.integers(len(LEADING))]
        N, K, rows = facts.N, facts.K, math.prod(self.leading)
        kind, out = dtype(config.A_dtype), dtype(config.out_dtype)
        (tall, wide), self.scale, self.zeros, self.bias = config.block, None, None, None

        def spread(groups: np.ndarray) -> np.ndarray:
            return np.repeat(np.repeat(groups.astype(np.float64), tall, 0), wide, 1)[:N, :K]

        a = numbers(rng, kind.name, (rows, K))
        self.A = (pack(a, kind) if kind.is_packed else a).reshape(*self.leading, -(-K // kind.per_byte))
        self.A = np.ascontiguousarray(self.A.swapaxes(-1, -2)) if config.layout[0] == "t" else self.A
        codes = [
            c for c in range(1 << of.bits if of.bits <= 8 else 0) if c not in of.unused and np.isfinite(of.values[c])
        ]
        held = numbers(rng, of.name, (N, K)) if of.is_dense else rng.choice(np.array(codes, np.uint8), (N, K))
        value = held.astype(np.float64) if of.is_dense else of.table[held]
        self.W = held if of.is_dense else value
        self.W = self.W.T if config.layout[1] == "n" else self.W
        scale, zero = np.float64(1), np.float64(0)
        if facts.scale is not None:
            self.scale = numbers(rng, facts.scale.dtype, (facts.scale.rows, facts.scale.columns), positive=True)
            scale = spread(self.scale)
        if facts.zero_point is not None:
            self.zeros = numbers(rng, facts.zero_point.dtype, (facts.zero_point.rows, facts.zero_point.columns))
            zero = spread(self.zeros)
        if config.with_zeros and config.zeros_mode == "quantized":
            points = rng.integers(0, 1 << of.bits, (N, -(-K // wide))).astype(np.uint8)
            self.zeros = pack_plain(np.ascontiguousarray(points.T), of.bits).view(np.int8)
            zero = np.repeat(points.astype(np.float64), wide, 1)[:, :K]
        rescaled = config.zeros_mode == "rescale"
        dense = value * scale - zero if rescaled else (value - zero) * scale
        large = np.abs(value) * scale + np.abs(zero) * (1 if rescaled else scale)
        x, self.more = a.astype(np.float64), {"a_scale": None, "residual": None}
        if config.a_scale is not None:
            run = {"tensor": K, "token": K}.get(config.a_scale, config.a_scale)
            self.more["a_scale"] = numbers(
                rng, "float32", (1 if config.a_scale == "tensor" else rows, -(-K // run)), True
            )
            x = x * np.repeat(self.more["a_scale"].astype(np.float64), run, 1)[:, :K]
        exact, size = x @ dense.T, np.abs(x) @ large.T
        unit = 2.0**-23 if kind.name == "float64" else 2.0**-8 if "bfloat16" in (kind.name, of.name) else 2.0**-11
        self.bound = (2 * unit + (K + 8) * 2.0**-24) * size
        if config.with_bias:
            self.bias = numbers(rng, config.bias_dtype or config.float_type, (N,))
            exact = exact + self.bias.astype(np.float64)
        if config.function:
            exact, self.bound = FUNCTIONS[config.function](exact), 1.2 * self.bound + 1e-6
        if config.with_residual:
            self.more["residual"] = numbers(rng, out.name, (rows, N)).reshape(*self.leading, N)
            exact = exact + self.more["residual"].reshape(rows, N).astype(np.float64)
        self.bound = self.bound + 2.0**-20 * np.abs(exact)
        if out.is_integer:
            self.bound = self.bound + 0.5
        else:
            self.bound = self.bound + UNIT.get(out.name, 2.0**-4) * np.abs(exact) + 2.0**-9 * (out.bits == 8)
        largest = float(out.maximum)
        # Where a result is out of the range, floats may be infinite or the largest, and a float of 8 bits NaN.
        self.exact, self.saturates = (
            np.clip(exact, float(out.minimum), largest),
            np.abs(exact) + self.bound >= 0.99 * largest,
        )

    def check(self, form: str, found: Any) -> None:
        got = as_numpy(found).astype(np.float64)
        assert got.shape == (*self.leading, self.exact.shape[1]), form
        got = got.reshape(self.exact.shape)
        fine = np.abs(got - self.exact) <= self.bound
        if not dtype(self.config.out_dtype).is_integer:
            fine |= self.saturates & (~np.isfinite(got) | (np.abs(got) >= 0.9 * np.abs(self.exact)))
        assert fine.all(), (form, self.config, got[~fine][0], self.exact[~fine][0])


def drawn(seed: int) -> tuple[np.random.Generator, dict[str, Any]]:
    rng = np.random.default_rng(seed)
    given = {name: of[rng.integers(len(of))] for name, (often, of) in OPTIONS.items() if rng.random() < often}
    if seed % 4 == 0:  # most zeros of this mode are refused beside other formats
        given |= {"W_dtype": f"uint{rng.integers(1, 9)}", "with_zeros": True, "zeros_mode": "quantized"}
    return rng, given


@pytest.mark.parametrize("seed", range(60))
def test_all_forms_of_a_config_are_its_product(seed: int) -> None:
    """Raw arrays of NumPy, raw tensors of torch, and a packed weight of either: what one takes, all take."""
    rng, given = drawn(seed)
    try:
        config = MatmulConfig(**given)
    except Unsupported as refused:
        assert refused.hint, given
        return
    case, operator = Case(rng, config), Matmul(config, target="cpu")
    raw = operator.transform_weight(case.W)
    beside = (case.scale, case.zeros)
    case.check("raw", operator(case.A, raw, *beside, case.bias, **case.more))
    case.check("packed", operator(case.A, operator.pack(case.W, *beside), bias=case.bias, **case.more))

    def tensors(*arrays: Any) -> list[Any]:
        return [None if one is None else as_torch(np.ascontiguousarray(one), "cpu") for one in arrays]

    A, W, bias, *more = tensors(case.A, raw, case.bias, *case.more.values())
    case.check("raw tensors", operator(A, W, *tensors(*beside), bias, **dict(zip(case.more, more, strict=True))))
