"""What is given wrong: one clear sentence each, which says what is at fault and what there is; never a crash later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.conversion import quantize as quantize_model
from tilewright.errors import TilewrightError
from tilewright.matmul import Matmul, MatmulConfig, PackedExperts, PackedWeight, grouped_matmul, quant_matmul
from tilewright.matmul.product import Product
from tilewright.quant import QuantizedWeight, quantize

torch = pytest.importorskip("torch")

from tilewright.nn import Linear  # noqa: E402

N, K = 24, 64
WEIGHT = quantize(np.random.default_rng(0).standard_normal((N, K)), "int4", group=32)
PACKED = PackedWeight.pack(WEIGHT)
X = np.zeros((3, K), np.float32)


def operator(**options: Any) -> Matmul:
    given = {"with_scaling": True, "W_dtype": "uint4", "group_size": 32, **options}
    return Matmul(MatmulConfig(N=N, K=K, **given), target="cpu")


A, W, S = X.astype(np.float16), np.zeros((N, K // 2), np.int8), np.ones((N, 2), np.float16)

CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "scales of a wrong shape": (
        lambda: QuantizedWeight(WEIGHT.codes, "int4", np.ones((N, 3)), block=(1, 32)),
        "the scales have shape [24, 3], expected [24, 2]\n  help: the weight is [24, 64] in groups of 1 x 32; 1 for either extent is the same in all groups",
    ),
    "raw scales of a wrong shape": (lambda: operator()(A, W, S[:, :1]), "scale has shape [24, 1], expected [24, 2]"),
    "a number out of range": (
        lambda: operator(W_dtype="int4").transform_weight(np.full((N, K), 8)),
        "the value 8 at index [0, 0] is none of int4's\n  help: int4 has the whole numbers from -8 to 7",
    ),
    "a code out of range": (
        lambda: QuantizedWeight(np.full((2, 3), 19, np.uint8), "int4"),
        "the code 19 at index [0, 0] is none of int4's\n  help: int4 has the codes 0 to 15",
    ),
    "a weight elsewhere": (
        lambda: quant_matmul(torch.zeros(3, K, device="meta"), PACKED),
        "the weight is on cpu, the activations are on meta:0\n  help: move one: the weight.to('meta:0'), for example",
    ),
    "raw tensors elsewhere": (
        lambda: operator()(torch.zeros(3, K, dtype=torch.float16), torch.zeros(N, K // 2, dtype=torch.int8, device="meta"), torch.ones(N, 2).half()),
        "W is on meta:0, A is on cpu\n  help: move one: W.to('cpu'), for example",
    ),
    "missing zeros": (
        lambda: operator(with_zeros=True)(A, W, S), "matmul was called without zeros\n  help: its config has with_zeros",
    ),
    "zeros of another type": (
        lambda: operator(with_zeros=True)(A, W, S, np.zeros((N, 2), np.int8)), "zeros is int8, expected float16",
    ),
    "activations of a type": (
        lambda: quant_matmul(np.zeros((3, K), np.int32), PACKED),
        "activations of int32 are not supported\n  help: supported: float16, bfloat16, float32, float64, int8, uint8, int4, uint4, int2, uint2, float8_e4m3fn, float8_e5m2",
    ),
    "a weight that is not packed": (
        lambda: quant_matmul(X, WEIGHT),  # type: ignore[arg-type]
        "the weight is a QuantizedWeight, expected a PackedWeight\n  help: PackedWeight.pack(weight) makes one of a QuantizedWeight, tilewright.quantize(array) that of an array",
    ),
    "an out of another shape": (
        lambda: Product.of(X, PACKED, out=np.zeros((3, 23), np.float32)), "out has shape [3, 23], expected [3, 24]",
    ),
    "activation scales": (
        lambda: Product.of(np.zeros((3, K), np.int8), PACKED, activation_scales=np.ones((2, 1), np.float32)),
        "activation_scales have shape [2, 1], but there are 3 tokens of 64 elements\n  help: one number [1], one a token [3, 1], or one a group of columns [3, 64 / group]",
    ),
    "a kind of activation scales": (
        lambda: operator(a_scale="row"),
        "the a_scale 'row' is not supported\n  help: supported: None, 'tensor', 'token', columns that share a scale",
    ),
    "a kind of scales": (
        lambda: operator(scale_granularity="rowwise"),
        "the scale_granularity 'rowwise' is not supported\n  help: supported: 'group', 'tensor', a block (rows, columns)",
    ),
    "scales of integers": (
        lambda: operator(scale_dtype="int8"),
        "scales of int8 are not supported\n  help: supported: floats: float16, bfloat16, float32, float8_e8m0fnu, ...",
    ),
    "an M": (lambda: operator(M="many"), "the M 'many' is not supported\n  help: supported: a positive integer, a list of them, None"),
    "a negative M": (lambda: operator(M=[1, -3]), "the M (1, -3) is not supported\n  help: supported: a positive integer, a list of them, None"),
    "a layer of no size": (lambda: Linear(-1, N), "a layer of -1 to 24 features has nothing to multiply by"),
    "a layer of another size": (
        lambda: Linear(2 * K, N).load_state_dict(Linear.from_quantized(WEIGHT).state_dict()),
        "the state dict has a weight of shape [24, 64], the layer [24, 128]",
    ),
    "a group size": (
        lambda: operator(group_size=-5),
        "the group_size -5 is not supported\n  help: supported: a positive integer, -1 (one group for all of K)",
    ),
    "a raw weight of floats": (
        lambda: operator()(A, W.astype(np.float32), S),
        "W is float32, where the bytes of packed uint4 codes are due\n  help: transform_weight makes them of numbers",
    ),
    "a list for activations": (
        lambda: operator()([1.0], W, S), "a list was given for a tensor\n  help: pass a NumPy array or a torch tensor"
    ),
    "no config": (lambda: Matmul({"N": N}), "a dict was given for a MatmulConfig"),  # type: ignore[arg-type]
    "no weight to transform": (
        lambda: operator().transform_weight(None), "the weight has shape [], expected [N, K] = [24, 64]"
    ),
    "an array for an expert": (
        lambda: PackedExperts([PACKED, X]), "weight 1 is a ndarray, expected a PackedWeight"  # type: ignore[list-item]
    ),
    "a layer without numbers": (
        lambda: Linear.from_float(torch.nn.Linear(K, N, device="meta")), "the weight is on the meta device: it has no numbers"
    ),
    "no sizes of runs": (
        lambda: grouped_matmul(X, [PACKED, PACKED], None), "the sizes are None, expected 2 numbers of rows"
    ),
    "a run of fewer than no rows": (
        lambda: grouped_matmul(X, [PACKED, PACKED], [-1, 4]), "a run of -1 rows was given"
    ),
    "scales of another weight": (
        lambda: quant_matmul(X, PackedWeight("int4", (N, K), PACKED.held | {"scales": np.ones((3, 3), np.float32)}, block=(1, 32))),
        "the weight's scales have shape [3, 3], expected [24, 2]\n  help: it is [24, 64] in groups of 1 x 32",
    ),
    "an array to pack": (
        lambda: PackedWeight.pack(X),  # type: ignore[arg-type]
        "a ndarray was given for a QuantizedWeight\n  help: tilewright.quantize(array, 'w4a16') makes one of numbers",
    ),
    "an array for a layer": (
        lambda: Linear.from_quantized(X),  # type: ignore[arg-type]
        "a ndarray was given for a QuantizedWeight\n  help: a PackedWeight has unpack(), numbers tilewright.quantize",
    ),
    "a convolution for a layer": (
        lambda: Linear.from_float(torch.nn.Conv2d(3, 3, 1)),
        "a Conv2d was given for a torch.nn.Linear\n  help: tilewright.quantize(array, scheme) takes a matrix",
    ),
    "a layer of fractions": (lambda: Linear(4.5, N), "a layer of 4.5 to 24 features has nothing to multiply by"),  # type: ignore[arg-type]
    "nothing for a model": (
        lambda: quantize_model(None),
        "a NoneType was given for a model or a weight\n  help: convert_checkpoint(path, destination, scheme) quantises what is in files",
    ),
    "a path for a model": (
        lambda: quantize_model("model.safetensors"),
        "a str was given for a model or a weight\n  help: convert_checkpoint(path, destination, scheme) quantises what is in files",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_sentence_says_what_is_wrong(name: str) -> None:
    call, message = CASES[name]
    with pytest.raises(TilewrightError) as caught:
        call()
    assert str(caught.value) == message
