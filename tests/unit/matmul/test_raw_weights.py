"""Weights given to an operator as raw tensors of torch: packed once, anew when they change, forgotten when they are gone."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from tilewright.compat import bitblas
from tilewright.errors import CannotQuantize
from tilewright.matmul import Matmul, MatmulConfig, PackedWeight
from tilewright.matmul.raw_weights import RawWeights

torch = pytest.importorskip("torch")

N, K = 64, 128
RNG = np.random.default_rng(0)


def operator(**rest: Any) -> Matmul:
    given = {"with_scaling": True, "group_size": 32, **rest}
    config = MatmulConfig(N=N, K=K, A_dtype="float32", W_dtype="int4", out_dtype="float32", **given)
    return Matmul(config, target="cpu")


def operands(matmul: Any) -> tuple[Any, Any, Any, Any]:
    """Activations, a packed weight, its scales, and the exact weight."""
    numbers, scales = RNG.integers(-8, 8, (N, K)), RNG.random((N, K // 32)).astype(np.float32) + 0.5
    W = matmul.transform_weight(torch.from_numpy(numbers))
    dense = numbers * np.repeat(scales.astype(np.float64), 32, 1)
    return torch.from_numpy(RNG.standard_normal((3, K)).astype(np.float32)), W, torch.from_numpy(scales), dense


def near(found: Any, A: Any, dense: np.ndarray) -> None:
    exact = A.double().numpy() @ dense.T
    assert (np.abs(found.double().numpy() - exact) <= 2.0**-16 * (np.abs(A.double().numpy()) @ np.abs(dense).T)).all()


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was packed so far."""
    made: list[Any] = []
    packed = Matmul._packed
    monkeypatch.setattr(Matmul, "_packed", lambda self, *given: made.append(given) or packed(self, *given))
    return made


def test_a_weight_is_packed_once(packings: list[Any]) -> None:
    matmul = operator()
    A, W, scales, dense = operands(matmul)
    first = matmul(A, W, scales)
    near(first, A, dense)
    for _ in range(3):
        assert torch.equal(matmul(A, W, scales), first)
        assert torch.equal(matmul(A, W.view(N, -1), scales[:]), first)  # views of the same bytes, new at every call
    assert len(packings) == 1


def test_a_weight_that_was_written_to_is_packed_anew(packings: list[Any]) -> None:
    matmul = operator()
    A, W, scales, dense = operands(matmul)
    matmul(A, W, scales)
    _, other, more, dense = operands(matmul)
    W.copy_(other)
    scales.copy_(more)
    near(matmul(A, W, scales), A, dense)
    scales[0, 0] = 9.0
    dense[0, :32] *= 9.0 / float(more[0, 0])
    near(matmul(A, W, scales), A, dense)
    assert len(packings) == 3


def test_parts_of_one_tensor_are_different_weights() -> None:
    matmul = operator()
    A, W, scales, dense = operands(matmul)
    _, other, more, exact = operands(matmul)
    both, of_both = torch.stack([W, other]), torch.stack([scales, more])
    for _ in range(2):
        near(matmul(A, both[0], of_both[0]), A, dense)
        near(matmul(A, both[1], of_both[1]), A, exact)


def test_nothing_outlives_its_tensor() -> None:
    matmul = operator()
    A, W, scales, _ = operands(matmul)
    matmul(A, W, scales)
    assert len(matmul.raw_weights._known) == 1
    del W
    gc.collect()
    assert not matmul.raw_weights._known


def test_what_torch_does_not_watch_is_read_at_every_call(packings: list[Any]) -> None:
    matmul = operator()
    A, W, scales, dense = operands(matmul)
    near(torch.from_numpy(matmul(A.numpy(), W.numpy(), scales.numpy())), A, dense)
    with torch.inference_mode():
        unwatched = W.clone()
    near(matmul(A, unwatched, scales), A, dense)
    assert not packings


def test_operands_that_do_not_fit_are_named_as_before() -> None:
    matmul = operator()
    A, W, scales, _ = operands(matmul)
    with pytest.raises(Exception, match=r"scale has shape \[4, 64\], expected \[64, 4\]"):
        matmul(A, W, scales.T)
    with pytest.raises(Exception, match=r"W has shape \[64, 63\], expected \[64, 64\]"):
        matmul(A, W[:, 1:], scales)
    with pytest.raises(Exception, match=r"scale is float64, expected float32"):
        matmul(A, W, scales.double())


CONFIGS = {
    "int4 fast": {"A_dtype": "float16", "W_dtype": "int4"},
    "int4 tiles": {"A_dtype": "float16", "W_dtype": "int4", "M": 16, "propagate_b": 3},
    "uint2 tiles": {"A_dtype": "float16", "W_dtype": "uint2", "propagate_b": 2},
    "int2 by int8": {"A_dtype": "int8", "W_dtype": "int2", "out_dtype": "int32"},
    "int4 by int8 tiles": {"A_dtype": "int8", "W_dtype": "int4", "out_dtype": "int32", "propagate_b": 3},
    "int8 by int8 tiles": {"A_dtype": "int8", "W_dtype": "int8", "out_dtype": "int32", "propagate_b": 3},
    "uint1": {"A_dtype": "float16", "W_dtype": "uint1"},
    "int1": {"A_dtype": "float16", "W_dtype": "int1"},
    "nf4": {"A_dtype": "float16", "W_dtype": "nf4"},
    "fp4": {"A_dtype": "float16", "W_dtype": "fp4_e2m1"},
    "float16 tiles": {"A_dtype": "float16", "W_dtype": "float16", "M": 16},
    "rows": {"A_dtype": "float16", "W_dtype": "int4", "fast_decoding": False},
    "packed zeros": {"A_dtype": "float16", "W_dtype": "uint4", "with_scaling": True, "with_zeros": True,
                     "zeros_mode": "quantized", "group_size": 32},
    "short groups": {"A_dtype": "float16", "W_dtype": "uint4", "with_scaling": True, "group_size": 8},
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_bitblas_bytes_are_understood(name: str) -> None:
    """A packed weight of random bytes stands for what BitBLAS's bytes stand for, by the importer's own formula."""
    from tilewright.matmul.random_operands import random_operands
    from tilewright.matmul.weight_forms import MatmulCall
    from tilewright.quant.importers import from_bitblas
    from tilewright.quant.weight import QuantizedWeight

    config = bitblas.MatmulConfig(**{"N": N, "K": K, **CONFIGS[name]})
    matmul = bitblas.Matmul(config, target="cpu", enable_tuning=False)
    (A, W, scale, zeros, _), _ = random_operands(config, 2, "cpu")
    if config.format.is_dense:
        expected = QuantizedWeight(config.order.unpack(W.reshape(-1), N, K), config.format)
    else:
        expected = from_bitblas(
            W, scale, zeros, W_dtype=config.W_dtype, A_dtype=config.A_dtype, N=N, K=K, group_size=config.group_size,
            zeros_mode=config.zeros_mode, propagate_b=int(config.propagate_b), fast_decoding=config.fast_decoding,
            native=config.native,
        )  # fmt: skip
    for kind in (lambda array: array, lambda array: None if array is None else torch.from_numpy(array)):
        given = (kind(one) for one in (A, W.reshape(matmul.retrieve_weight_shape()), scale, zeros))
        held = matmul._packed(MatmulCall(*given))
        assert isinstance(held, PackedWeight)
        np.testing.assert_array_equal(held.to_dense(), expected.to_dense())


def test_a_weight_without_another_order_stays_raw() -> None:
    """Found out once: NaN among 8-bit floats, for example, has no place in records."""
    tried = []

    def pack() -> PackedWeight:
        tried.append(1)
        raise CannotQuantize("no number")

    raw, W = RawWeights(), torch.zeros(4)
    assert raw.find((W, None, None), pack) is None and raw.find((W, None, None), pack) is None and len(tried) == 1
