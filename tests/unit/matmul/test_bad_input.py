"""What is given wrong: one clear sentence each, which says what is at fault and what there is; never a crash later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.conversion import load_quantized
from tilewright.conversion import quantize as quantize_model
from tilewright.errors import TilewrightError
from tilewright.matmul import Matmul, MatmulConfig, PackedExperts, PackedWeight, grouped_matmul, quant_bmm, quant_matmul
from tilewright.matmul.product import Product
from tilewright.quant import QuantizedWeight, quantize
from tilewright.quant.importers import from_gptq

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
        "the weight is a QuantizedWeight, expected a PackedWeight\n  help: PackedWeight.pack(weight) makes one of a QuantizedWeight, tilewright.quantize(array, 'w4a16') that of an array",
    ),
    "an out of another shape": (
        lambda: Product.of(X, PACKED, out=np.zeros((3, 23), np.float32)), "out has shape [3, 23], expected [3, 24]",
    ),
    "activation scales": (
        lambda: Product.of(np.zeros((3, K), np.int8), PACKED, activation_scales=np.ones((2, 1), np.float32)),
        "activation_scales have shape [2, 1], but there are 3 tokens of 64 elements\n  help: one number [1], one a token [3, 1], or one a group of columns [3, 64 / group], with activation_group where that does not come out even",
    ),
    "a kind of activation scales": (
        lambda: operator(a_scale="row"),
        "the a_scale 'row' is not supported\n  help: supported: None, 'tensor', 'token', columns that share a scale",
    ),
    "a kind of scales": (
        lambda: operator(scale_granularity="rowwise"),
        "the scale_granularity 'rowwise' is not supported\n  help: supported: 'group', 'channel', 'tensor', a block (rows, columns)",
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
        lambda: operator()([1.0], W, S), "a list was given for A\n  help: pass a NumPy array or a torch tensor"
    ),
    "no config": (lambda: Matmul({"N": N}), "a dict was given for a MatmulConfig"),  # type: ignore[arg-type]
    "no weight to transform": (
        lambda: operator().transform_weight(None), "the weight has shape [], expected [N, K] = [24, 64]"
    ),
    "an array for an expert": (
        lambda: PackedExperts([PACKED, X]), "weight 1 is an ndarray, expected a PackedWeight"  # type: ignore[list-item]
    ),
    "a layer without numbers": (
        lambda: Linear.from_float(torch.nn.Linear(K, N, device="meta")),
        "the weight is on the meta device: it has no numbers\n  help: load the model's weights first",
    ),
    "a sparse weight": (
        lambda: quantize(torch.zeros(N, K).to_sparse(), "int4"),
        "the weight is a torch.sparse_coo tensor\n  help: pass weight.to_dense()",
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
        "an ndarray was given for a QuantizedWeight\n  help: tilewright.quantize(array, 'w4a16') makes one of numbers",
    ),
    "an array for a layer": (
        lambda: Linear.from_quantized(X),  # type: ignore[arg-type]
        "an ndarray was given for a QuantizedWeight\n  help: a PackedWeight has unpack(), numbers tilewright.quantize",
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
    "a truth value for a size": (
        lambda: MatmulConfig(N=True, K=K), "the size N = True is not supported\n  help: supported: positive integers"
    ),
    "a truth value for a group": (
        lambda: operator(group_size=True),
        "the group_size True is not supported\n  help: supported: a positive integer, -1 (one group for all of K)",
    ),
    "a word for a truth value": (
        lambda: operator(with_bias="no"), "the with_bias 'no' is not supported\n  help: supported: True, False"
    ),
    "a transform that is none": (
        lambda: operator(propagate_b=9),
        "the transform 9 is not supported\n  help: supported: 0 to 3, True or False, a TransformKind, None",
    ),
    "a strategy that is none": (
        lambda: operator(optimize_stratety=9),
        "the optimize_stratety 9 is not supported\n  help: supported: 0, 1, an OptimizeStrategy",
    ),
    "a storage of floats": (
        lambda: operator(storage_dtype="float99"),
        "the storage_dtype 'float99' is not supported\n  help: supported: int8, uint8, int16, uint16, int32, uint32, int64, uint64",
    ),
    "whole sums of floats": (
        lambda: operator(accum_dtype="int32"),
        "sums of float16 activations in int32 are not supported\n  help: supported: float32, float64, float16 (by float32)",
    ),
    "scales of activations that are quantised": (
        lambda: operator(quantize="int8", a_scale="token"),
        "the a_scale 'token' beside quantize is not supported\n  help: supported: one of the two: quantising makes scales",
    ),
    "scales in a call that quantises": (
        lambda: quant_matmul(X, PACKED, quantize="int8", activation_scales=np.ones((3, 1), np.float32)),
        "activation_scales beside quantize are not supported\n  help: supported: one of the two: quantising makes scales",
    ),
    "activations in columns of a wrong height": (
        lambda: operator(layout="tt")(A, W, S), "A has shape [3, 64], expected [64, ...]"
    ),
    "a packed weight of another size": (
        lambda: Matmul(MatmulConfig(N=N + 1, K=K, W_dtype="int4"), target="cpu")(A, PACKED),
        "the packed weight has shape [24, 64], but the config's is [25, 64]",
    ),
    "a packed weight of another format": (
        lambda: Matmul(MatmulConfig(N=N, K=K, W_dtype="uint4"), target="cpu")(A, PACKED),
        "the packed weight is int4, but the config's W_dtype is uint4",
    ),
    "scales beside a packed weight": (
        lambda: operator(W_dtype="int4")(A, PACKED, S),
        "matmul was given scale beside a packed weight, which has its own\n  help: leave out scale",
    ),
    "codes out of range": (
        lambda: operator().weight_transform(np.full((N, K), 16, np.int32)),
        "the code 16 at index [0, 0] is none of uint4's\n  help: uint4 has the codes 0 to 15",
    ),
    "codes of another shape": (
        lambda: operator().weight_transform(np.zeros((K, N), np.uint8)),
        "the weight has shape [64, 24], expected [N, K] = [24, 64]",
    ),
    "fractions for codes": (
        lambda: operator().weight_transform(np.zeros((N, K))),
        "the codes are float64, expected integers\n  help: transform_weight takes numbers",
    ),
    "complex numbers for a weight": (
        lambda: operator().transform_weight(np.zeros((N, K), complex)),
        "a weight of complex128 has no codes\n  help: real numbers do",
    ),
    "numbers beyond float16": (
        lambda: Matmul(MatmulConfig(N=1, K=2), target="cpu").transform_weight(np.array([[1.0, 1e30]])),
        "the value 1e+30 at index [0, 1] is none of float16's\n  help: float16 has -65504 to 65504",
    ),
    "a weight without numbers": (
        lambda: operator().transform_weight(torch.zeros(N, K, device="meta")),
        "a tensor is on the meta device: it has no numbers\n  help: load them first",
    ),
    "complex scales": (
        lambda: QuantizedWeight(WEIGHT.codes, "int4", np.ones((N, 2), complex), block=(1, 32)),
        "the scales are complex128\n  help: real numbers are due",
    ),
    "a group of a fraction": (
        lambda: QuantizedWeight(WEIGHT.codes, "int4", block=(1, 32.0)),  # type: ignore[arg-type]
        "groups of 1 x 32.0 elements\n  help: whole numbers of rows and columns; 0 is all of them",
    ),
    "a word for a scale": (
        lambda: QuantizedWeight(WEIGHT.codes, "int4", tensor_scale="2"),  # type: ignore[arg-type]
        "the scale of the whole weight is 2\n  help: one finite number is due",
    ),
    "sparse activations": (
        lambda: quant_matmul(torch.zeros(3, K).to_sparse(), PACKED),
        "the activations are a torch.sparse_coo tensor\n  help: pass x.to_dense()",
    ),
    "nested activations": (
        lambda: Linear(K, N)(torch.nested.nested_tensor([torch.zeros(2, K), torch.zeros(3, K)], layout=torch.jagged)),
        "the activations are a nested tensor\n  help: pass x.values()",
    ),
    "three things for activations": (
        lambda: quant_matmul((X, "int4", 3), PACKED),
        'the activations are a tuple of 3\n  help: (array, "int4") are packed ones',
    ),
    "a number for raw scales": (
        lambda: operator(scale_granularity="tensor")(A, W, np.float16(1.0)),
        "a float16 was given for scale\n  help: pass a NumPy array or a torch tensor",
    ),
    "a list for a bias": (
        lambda: quant_matmul(X, PACKED, bias=[1.0] * N),
        "a list was given for bias\n  help: pass a NumPy array or a torch tensor",
    ),
    "a device that is none": (
        lambda: PackedWeight.pack(WEIGHT, "gpu0"),
        "torch knows no device 'gpu0'\n  help: 'cpu', 'cuda' and 'cuda:1' are some",
    ),
    "groups of a layer": (
        lambda: Linear(K, N, group_size=-2),
        "the group_size -2 is not supported\n  help: supported: a positive integer, -1 (one group for all of K)",
    ),
    "a function of a layer": (
        lambda: Linear(K, N, function="Silu"),
        "the activation function 'Silu' is not supported\n  help: supported: relu, gelu, gelu_tanh, silu, sigmoid, tanh",
    ),
    "scales of a layer": (
        lambda: Linear(K, N, scale_dtype="int8"),
        "scales of int8 are not supported\n  help: supported: floats: float16, bfloat16, float32, float8_e8m0fnu, ...",
    ),
    "sums of a layer": (
        lambda: Linear(K, N, accum_dtype="int9"),
        "sums in int9 are not supported\n  help: supported: int32, float32, float64, float16 (by float32)",
    ),
    "a scale for each group of a run's columns": (
        lambda: grouped_matmul(np.zeros((3, K), np.int8), [PACKED], [3], activation_scales=np.ones((3, 2), np.float32)),
        "activation_scales have shape [3, 2], expected [3, 1]",
    ),
    "scales of runs that are quantised": (
        lambda: grouped_matmul(X, [PACKED], [3], activation_scales=np.ones((3, 1), np.float32), quantize="int8"),
        "activation_scales beside quantize are not supported\n  help: supported: one of the two: quantising makes scales",
    ),
    "a tensor of sizes with one below no rows": (
        lambda: grouped_matmul(torch.from_numpy(X), [PACKED, PACKED], torch.tensor([-1, 4])), "a run of -1 rows was given"
    ),
    "no weights for runs": (
        lambda: grouped_matmul(X, None, [3]),  # type: ignore[arg-type]
        "a NoneType was given for the weights\n  help: a list of PackedWeight",
    ),
    "a list for a batch": (
        lambda: quant_bmm([[1.0]], [PACKED]),
        "a list was given for x\n  help: pass a NumPy array or a torch tensor",
    ),
    "a list for biases": (
        lambda: grouped_matmul(X, [PACKED], [3], bias=[[1.0] * N]),
        "a list was given for bias\n  help: pass a NumPy array or a torch tensor",
    ),
    "a tensor that a checkpoint lacks": (
        lambda: from_gptq(np.zeros((8, 32), np.int32), None, np.ones((1, 32), np.float16), bits=4),
        "weight.qzeros is missing, where int32 [groups, N * bits / 32] is due",
    ),
    "bits of another form": (
        lambda: from_gptq(np.zeros((8, 32), np.int32), None, None, bits=5),
        "weight: GPTQ weights have 2, 3, 4, 8 bits, not 5",
    ),
    "a skip that is no expression": (
        lambda: quantize_model(torch.nn.Sequential(torch.nn.Linear(K, N)), skip="("),
        "skip '(' is no regular expression: missing ), unterminated subpattern at position 0",
    ),
    "nothing to load into": (
        lambda: load_quantized(None, "model.safetensors"),
        "a NoneType was given for a model\n  help: load_quantized fills a torch.nn.Module",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_sentence_says_what_is_wrong(name: str) -> None:
    call, message = CASES[name]
    with pytest.raises(TilewrightError) as caught:
        call()
    assert str(caught.value) == message
