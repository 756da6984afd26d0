"""The library's element-wise, softmax, norm and attention kernels against float64, on the interpreter and the CPU."""

import numpy as np
import pytest

import tilewright.language as T
from tilewright.ir.dtypes import dtype
from tilewright.kernels.attention import flash_attention
from tilewright.kernels.attention_tiles import attention_tiles
from tilewright.kernels.elementwise import elementwise
from tilewright.kernels.rms_norm import rms_norm, rms_norm_of_long_rows, rms_norm_of_short_rows
from tilewright.kernels.softmax import softmax, softmax_of_long_rows, softmax_of_short_rows
from tilewright.targets.cpu.arch import host

RNG = np.random.default_rng(7)

UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Relative error of one rounding to the type."""


def random(shape, name="float32", scale=1.0):
    return (RNG.standard_normal(shape) * scale).astype(dtype(name).numpy)


def wide(array):
    return np.asarray(array).astype(np.float64)


@pytest.mark.parametrize(
    "shapes",
    [
        [(64, 1), (48,)],
        [(3, 5, 7), (5, 1)],
        [(1000,)],
        [(2, 1, 9), (1, 4, 9), (9,)],
        [()],
        [(7, 333), (7, 1)],
        [(1, 1)],
    ],
    ids=str,
)
def test_elementwise_broadcasts_as_numpy_does(shapes):
    inputs = [random(shape or (1,)) for shape in shapes]
    kernel = elementwise(
        lambda first, *others: sum(others, first) * 2, shapes, ["float32"] * len(shapes), "float32", target="cpu"
    )
    expected = inputs[0]
    for other in inputs[1:]:
        expected = expected + other
    for result in (kernel(*inputs), kernel.interpret(*inputs)):
        assert np.array_equal(result, expected * np.float32(2))


def test_elementwise_of_no_elements_is_empty():
    kernel = elementwise(lambda a, b: a * b, [(0, 5), (5,)], ["float32"] * 2, "float32", target="cpu")
    assert kernel(np.zeros((0, 5), np.float32), np.ones(5, np.float32)).shape == (0, 5)


def test_elementwise_mixes_types():
    kernel = elementwise(lambda a, b: T.max(a, 0.5) + b, [(33,), (33,)], ["bfloat16", "int8"], "float32", target="cpu")
    a, b = random(33, "bfloat16"), RNG.integers(-128, 128, 33).astype(np.int8)
    assert np.array_equal(kernel(a, b), kernel.interpret(a, b))
    assert np.allclose(kernel(a, b), np.maximum(wide(a), 0.5) + b, rtol=2.0**-8)


def test_elementwise_refuses_shapes_that_do_not_broadcast():
    with pytest.raises(ValueError, match=r"could not be broadcast|shape mismatch"):
        elementwise(lambda a, b: a + b, [(3,), (4,)], ["float32"] * 2, "float32")


@pytest.mark.parametrize("rows, columns", [(1, 1), (5, 1000), (9, 1025), (3, 4097), (130, 7), (13, 256), (3, 4096)])
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_softmax(rows, columns, name):
    x = random((rows, columns), name, 4.0)
    shifted = wide(x) - wide(x).max(1, keepdims=True)
    expected = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
    # exp2 of a product rounded once, a sum of columns terms, a division: relative error of the result.
    bound = (np.abs(shifted) * 2 + 16 + columns) * 2.0**-24 + UNIT[name]
    results = [softmax(x, dtype=name), softmax_of_long_rows(x, dtype=name), softmax_of_short_rows(x, dtype=name)]
    if rows * columns < 6000:
        results += [one.interpret(x, dtype=name) for one in (softmax_of_long_rows, softmax_of_short_rows)]
    for result in results:
        assert (np.abs(wide(result) - expected) <= expected * bound + 1e-38).all()


def test_softmax_of_rows_with_minus_infinity():
    x = random((4, 600))
    x[:, :300] = -np.inf
    expected = np.exp(wide(x) - wide(x).max(1, keepdims=True))
    expected /= expected.sum(1, keepdims=True)
    for one in (softmax_of_long_rows, softmax_of_short_rows):
        assert np.allclose(one(x), expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("rows, columns", [(1, 1), (5, 1000), (9, 1025), (2, 4097), (3, 384)])
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_rms_norm(rows, columns, name):
    x, weight = random((rows, columns), name), random(columns, name)
    scale = np.sqrt((wide(x) ** 2).mean(1, keepdims=True) + 1e-6)
    expected = wide(x) / scale * wide(weight)
    bound = (columns + 8) * 2.0**-24 + UNIT[name]
    kernels = (rms_norm_of_long_rows, rms_norm_of_short_rows)
    for run in (rms_norm, *kernels, *(one.interpret for one in kernels)):
        assert (np.abs(wide(run(x, weight, dtype=name)) - expected) <= np.abs(expected) * bound + 1e-38).all()


def attention(q, k, v, causal, scale):
    """Reference in float64; rows that see no key are zero."""
    groups = q.shape[1] // k.shape[1]
    k, v = (np.repeat(wide(x), groups, axis=1) for x in (k, v))
    scores = wide(q) @ k.transpose(0, 1, 3, 2) * scale
    if causal:
        visible = np.arange(k.shape[2])[None, :] <= np.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
        scores = np.where(visible, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    return np.where(total > 0, weights @ v / np.where(total > 0, total, 1), 0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries, keys", [(1, 1), (100, 133), (64, 64), (130, 70), (1, 77), (7, 90), (33, 40)])
def test_flash_attention(queries, keys, causal):
    q, k, v = random((2, 4, queries, 32)), random((2, 2, keys, 32)), random((2, 2, keys, 32))
    expected = attention(q, k, v, causal, 32**-0.5)
    result = flash_attention(q, k, v, causal=causal)
    assert np.abs(result - expected).max() <= (keys + 64) * 2.0**-21 * np.abs(v).max()


def test_few_queries_get_blocks_of_few_rows_on_a_cpu():
    """Rows behind the last query cost as much as any other there."""
    rows = [attention_tiles(host(), "float32", 64, queries).block_M for queries in (1, 2, 7, 33, 64, 1000, None)]
    assert rows == [1, 2, 8, 64, 64, 64, 64]


def test_flash_attention_interpreted_and_in_bfloat16():
    q, k, v = (random((1, 2, 70, 16), "bfloat16") for _ in range(3))
    expected = attention(q, k, v, True, 0.3)
    for run in (flash_attention, flash_attention.interpret):
        result = run(q, k, v, causal=True, scale=0.3, dtype="bfloat16")
        # Weights and result are rounded to bfloat16: at most 2**-8 of the largest value each, twice over.
        assert np.abs(wide(result) - expected).max() <= 4 * UNIT["bfloat16"] * np.abs(wide(v)).max()
