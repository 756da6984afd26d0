"""Every public product of tensors, given each kind of tensor that torch and NumPy have in each of its places: the result
is that of the plain tensor, or one of our errors says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tilewright
import tilewright.language as T
from tilewright import Linear, PackedExperts, fp8_scaled_matmul, grouped_matmul, quant_bmm, quant_matmul
from tilewright.errors import TilewrightError, WrongArgumentDevice

M, N, K = 4, 24, 64

RANDOM = torch.Generator().manual_seed(0)
X = torch.randn(M, K, generator=RANDOM)
A, B = X.to(torch.float8_e4m3fn), torch.randn(N, K, generator=RANDOM).to(torch.float8_e4m3fn)
SCALES_A, SCALES_B = (torch.rand(size, generator=RANDOM) + 0.5 for size in (M, N))
LAYER = Linear.from_float(torch.nn.Linear(K, N).half(), "int4", group=32)
BYTES = Linear.from_float(torch.nn.Linear(K, N).half(), "e4m3", activations="e4m3")
PACKED = LAYER.weight
EXPERTS = PackedExperts([PACKED, PACKED])
SIZES = torch.tensor([1, 3], dtype=torch.int32)
WEIGHT, BIAS = LAYER.dequantize().double(), LAYER.bias.double()
OF_BYTES, BIAS_OF_BYTES = BYTES.dequantize().double(), BYTES.bias.double()


@tilewright.jit
def scaled_rows(A, S, out):
    n = T.dynamic("n")
    A: T.Tensor((n, K), "float32")
    S: T.Tensor((n,), "float32")
    out: T.Tensor((n, K), "float32")
    with T.Kernel(n, threads=32) as row:
        for j in T.Parallel(K):
            out[row, j] = A[row, j] * S[row]


def in_place(a: Any, s: Any) -> torch.Tensor:
    out = torch.full((M, K), torch.nan)
    scaled_rows(a, s, out)
    return out


def product(a: Any, of_a: Any, b: Any, of_b: Any) -> torch.Tensor:
    return (a.double() * of_a.double().reshape(-1, 1)) @ (b.double() * of_b.double().reshape(-1, 1)).T


@dataclass(frozen=True)
class Entry:
    """A call, tensors for it, and its result in float64."""

    call: Callable[..., Any]
    tensors: tuple[torch.Tensor, ...]
    reference: Callable[..., torch.Tensor]
    bound: float = 1e-2


ENTRIES = {
    "fp8_scaled_matmul": Entry(
        lambda *given: fp8_scaled_matmul(*given, transpose_B=True), (A, SCALES_A, B, SCALES_B), product, 1e-5
    ),
    "fp8_scaled_matmul of floats": Entry(
        lambda a: fp8_scaled_matmul(a, None, B, SCALES_B, transpose_B=True), (X,),
        lambda a: product(a, torch.ones(1), B, SCALES_B), 0.06,
    ),
    "quant_matmul": Entry(lambda x: quant_matmul(x, PACKED), (X.half(),), lambda x: x.double() @ WEIGHT.T),
    "Linear": Entry(LAYER, (X.half(),), lambda x: x.double() @ WEIGHT.T + BIAS),
    "Linear of bytes": Entry(BYTES, (X.half(),), lambda x: x.double() @ OF_BYTES.T + BIAS_OF_BYTES, 0.06),
    "grouped_matmul": Entry(
        lambda x, sizes: grouped_matmul(x, EXPERTS, sizes), (X.half(), SIZES), lambda x, sizes: x.double() @ WEIGHT.T
    ),
    "quant_bmm": Entry(
        lambda x: quant_bmm(x, EXPERTS), (torch.stack([X, X]).half(),), lambda x: x.double() @ WEIGHT.T
    ),
    "a kernel": Entry(in_place, (X, SCALES_A), lambda a, s: a.double() * s.double()[:, None]),
}  # fmt: skip


def apart(t: torch.Tensor) -> torch.Tensor:
    """Every other element of a larger tensor."""
    view = torch.zeros([2 * extent for extent in t.shape]).to(t.dtype)[tuple(slice(None, None, 2) for _ in t.shape)]
    return view.copy_(t)


class Subclass(torch.Tensor):
    pass


KINDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "plain": lambda t: t,
    "on meta": lambda t: t.to("meta"),
    "apart": apart,
    "transposed": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    "without rows": lambda t: t[:0],
    "without columns": lambda t: t[..., :0],
    **{name: partial(torch.Tensor.to, dtype=getattr(torch, name)) for name in (
        "float64", "bfloat16", "int64", "bool", "complex64", "float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu")},
    "uint8": lambda t: t.float().clamp(0, 3).to(torch.uint8),
    "a list": lambda t: t.float().tolist(),
    "None": lambda t: None,
    "a text": lambda t: "x",
    "a number": lambda t: 1.5,
    "of NumPy": lambda t: t.float().numpy(),
    "of NumPy, big-endian": lambda t: t.float().numpy().astype(">f4"),
    "of NumPy, objects": lambda t: t.float().numpy().astype(object),
    "of no dimensions": lambda t: t.reshape(-1)[0],
    "of one dimension": lambda t: t.reshape(-1),
    "of one dimension more": lambda t: t[None],
    "sparse": lambda t: t.float().to_sparse(),
    "sparse by rows": lambda t: t.float().reshape(t.shape[0], -1).to_sparse_csr(),
    "nested": lambda t: torch.nested.nested_tensor([t.float()]),
    "conjugated": lambda t: torch.conj(t.to(torch.complex64)),
    "negated": lambda t: torch._neg_view(t),
    "zeros without memory": lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype),
    "quantised by torch": lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8),
    "of a subclass": lambda t: t.as_subclass(Subclass),
    "a parameter": lambda t: torch.nn.Parameter(t, requires_grad=False),
    "with a gradient": lambda t: t.clone().requires_grad_() if t.is_floating_point() else t,
}  # fmt: skip

CASES = [
    pytest.param(name, place, kind, id=f"{name}, {place}, {kind}")
    for name, entry in ENTRIES.items()
    for place in range(len(entry.tensors))
    for kind in KINDS
    if (name, kind) != ("a kernel", "nested")  # torch's own guard of tensors ends the process
]


def as_reference(given: Any) -> torch.Tensor:
    """What a tensor stands for, in float64."""
    if not isinstance(given, torch.Tensor):
        return torch.from_numpy(np.asarray(given, np.float64))
    given = -torch._neg_view(given).double() if given.is_neg() else given
    return torch.zeros(given.shape).double() if given._is_zerotensor() else given.detach().double()


def agrees(entry: Entry, given: list[Any], result: Any) -> None:
    result = torch.from_numpy(result) if isinstance(result, np.ndarray) else result.detach()
    if result.numel():
        expected = entry.reference(*map(as_reference, given))
        assert tuple(result.shape) == tuple(expected.shape)
        error = (result.double().as_subclass(torch.Tensor) - expected).abs().max()
        assert error <= entry.bound * max(1.0, float(expected.abs().max()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, place, kind", CASES)
def test_right_or_one_of_our_errors(name: str, place: int, kind: str) -> None:
    entry = ENTRIES[name]
    given: list[Any] = list(entry.tensors)
    try:
        given[place] = KINDS[kind](given[place])
    except (RuntimeError, NotImplementedError, TypeError) as error:
        pytest.skip(f"torch makes no such tensor: {error}")
    if kind == "negated" and given[place].dtype == torch.int32:
        given[place] = torch._neg_view(-given[place])
    try:
        result = entry.call(*given)
    except TilewrightError as error:
        assert kind != "plain"
        assert "unknown target" not in str(error)
        return
    except (AttributeError, TypeError) as error:
        assert name == "a kernel" and "None" in str(error)  # an argument that is left out
        return
    if isinstance(result, torch.Tensor) and result.is_meta:
        assert given[0].is_meta
    elif name == "grouped_matmul" and place == 1 and sum(given[1]) < M:
        pass  # rows behind the last run are not written
    else:
        agrees(entry, given, result)


def modes(entry: Entry) -> dict[str, Callable[[], Any]]:
    tensors = entry.tensors

    def cast() -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return entry.call(*tensors)

    def without_gradients() -> Any:
        with torch.inference_mode():
            return entry.call(*(one.clone() for one in tensors))

    return {
        "cast": cast,
        "without gradients": without_gradients,
        "compiled": lambda: torch.compile(entry.call, backend="eager")(*tensors),
        "again": lambda: entry.call(*tensors),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["cast", "without gradients", "compiled", "again"])
@pytest.mark.parametrize("name", [name for name in ENTRIES if name != "a kernel"])
def test_modes_of_torch(name: str, mode: str) -> None:
    entry = ENTRIES[name]
    result = modes(entry)[mode]()
    agrees(Entry(entry.call, entry.tensors, entry.reference, max(entry.bound, 2e-2)), list(entry.tensors), result)


@pytest.mark.parametrize("name", [name for name in ENTRIES if name != "a kernel"])
def test_followed_calls_know_their_shapes(name: str) -> None:
    entry = ENTRIES[name]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        result = entry.call(*(mode.from_tensor(one) for one in entry.tensors))
    assert tuple(result.shape) == tuple(entry.reference(*map(as_reference, entry.tensors)).shape)


def test_batches_by_vmap() -> None:
    twice = [torch.stack([one, one]) for one in (A, SCALES_A)]
    call = torch.func.vmap(lambda a, s: fp8_scaled_matmul(a, s, B, SCALES_B, transpose_B=True))
    expected = product(A, SCALES_A, B, SCALES_B)
    assert torch.allclose(call(*twice).double(), torch.stack([expected, expected]), rtol=1e-5, atol=1e-4)


def test_all_on_meta_says_what_shape_comes() -> None:
    result = fp8_scaled_matmul(*(one.to("meta") for one in (A, SCALES_A, B, SCALES_B)), transpose_B=True)
    assert result.is_meta and tuple(result.shape) == (M, N) and result.dtype == torch.float32
    with pytest.raises(WrongArgumentDevice, match="b is on cpu, a is on meta"):
        fp8_scaled_matmul(A.to("meta"), SCALES_A.to("meta"), B, SCALES_B, transpose_B=True)
    with pytest.raises(WrongArgumentDevice, match="argument 'A' is on meta, where no kernel runs"):
        scaled_rows(X.to("meta"), SCALES_A.to("meta"), X.to("meta"))


@pytest.mark.parametrize("place", range(4))
def test_what_has_no_gradient_says_so_when_it_is_asked_for(place: int) -> None:
    given = [A, SCALES_A, B, SCALES_B]
    given[place] = given[place].clone().requires_grad_()
    result = fp8_scaled_matmul(*given, transpose_B=True)
    assert result.requires_grad
    with pytest.raises(TilewrightError, match="gradients of 8-bit floats and their scales are not supported"):
        result.sum().backward()


def test_gradients_by_transforms_are_refused() -> None:
    with pytest.raises(TilewrightError, match=r"torch.func.grad, vjp and jvp of fp8_scaled_matmul are not supported"):
        torch.func.grad(lambda x: fp8_scaled_matmul(x, None, B, SCALES_B, transpose_B=True).sum())(X)
