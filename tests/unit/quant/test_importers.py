"""Importers: weights written by loops over their formats' descriptions come back as the numbers they stand for."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from checkpoint_writers import (
    Written,
    write_awq_gemm,
    write_awq_gemv,
    write_bitnet,
    write_bitsandbytes,
    write_float8,
    write_gguf_blocks,
    write_gptq,
    write_int8,
    write_mxfp4,
    write_pack_quantized,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.conversion import readers
from tilewright.errors import InvalidTensor, MissingTensor
from tilewright.quant import QuantizedWeight
from tilewright.quant.importers import (
    from_awq,
    from_bitsandbytes,
    from_float_quantized,
    from_gguf,
    from_gptq,
    from_hf_bitnet,
    from_int_quantized,
    from_mx,
    from_pack_quantized,
    read_bitsandbytes,
)

SEEDS = st.integers(0, 1 << 30)
QUICK = settings(max_examples=25, deadline=None)


def same(made: QuantizedWeight, written: Written) -> None:
    """Both are products of the same few float64 numbers: equal to the last bit, up to the order of one sum."""
    assert made.shape == written.weight.shape
    np.testing.assert_allclose(made.dequantize(), written.weight, rtol=1e-15, atol=1e-15)


@QUICK
@given(
    SEEDS, st.sampled_from([2, 3, 4, 8]), st.sampled_from([1, 2]), st.booleans(), st.integers(1, 40), st.integers(1, 80)
)
def test_gptq(seed: int, bits: int, version: int, act_order: bool, N: int, K: int) -> None:
    rng = np.random.default_rng(seed)
    written = write_gptq(rng, N, K, bits, 16, version, act_order)
    same(from_gptq(**written.tensors, bits=bits, version=version, group=16), written)


@QUICK
@given(SEEDS, st.sampled_from([2, 3, 4, 8]), st.integers(1, 4))
def test_gptq_finds_its_groups_from_the_shapes(seed: int, bits: int, groups: int) -> None:
    written = write_gptq(np.random.default_rng(seed), 8, 32 * groups, bits, 32, 2, False)
    with_order = from_gptq(**written.tensors, bits=bits, version=2)
    del written.tensors["g_idx"]
    made = from_gptq(**written.tensors, bits=bits, version=2)
    same(made, written)
    assert made.group == 32 and made.g_idx is None and with_order.g_idx is None


def test_gptq_version_1_wraps_the_largest_zero_point() -> None:
    written = write_gptq(np.random.default_rng(0), 4, 32, 4, 32, 1, False)
    written.tensors["qzeros"][:] = -1  # every stored zero is 15, so every zero is 16 mod 16
    made = from_gptq(**written.tensors, bits=4)
    assert made.zeros is not None and (made.zeros == 0).all()


@QUICK
@given(SEEDS, st.sampled_from([2, 4, 8]))
def test_gptqmodel_takes_one_off_of_words(seed: int, bits: int) -> None:
    """A zero point 0, which borrows from its neighbour, was read as it is and the neighbour as one less."""
    written = write_gptq(np.random.default_rng(seed), 32, 64, bits, 16, 1, False, borrowed=True)
    same(from_gptq(**written.tensors, bits=bits, borrowed=True), written)


def test_symmetric_gptq_has_one_zero_point() -> None:
    written = write_gptq(np.random.default_rng(0), 24, 64, 4, 16, 1, False, symmetric=True)
    made = from_gptq(**written.tensors, bits=4)
    assert made.zero == 8.0 and made.format.name == "uint4"
    same(made, written)


@QUICK
@given(SEEDS, st.integers(1, 5), st.integers(1, 5), st.sampled_from([8, 16, 24]))
def test_awq_gemm(seed: int, columns: int, groups: int, group: int) -> None:
    written = write_awq_gemm(np.random.default_rng(seed), 8 * columns, groups * group, group)
    same(from_awq(**written.tensors), written)


@QUICK
@given(SEEDS, st.integers(1, 9), st.integers(1, 11), st.sampled_from([32, 64, 128]))
def test_awq_gemv(seed: int, N: int, groups: int, group: int) -> None:
    written = write_awq_gemv(np.random.default_rng(seed), N, groups * group, group)
    same(from_awq(**written.tensors, form="gemv", group=group), written)


@QUICK
@given(SEEDS, st.integers(1, 9), st.integers(1, 100), st.sampled_from([32, 64]), st.booleans())
def test_bitsandbytes(seed: int, N: int, K: int, block: int, nested: bool) -> None:
    written = write_bitsandbytes(np.random.default_rng(seed), N, K, block, nested)
    named = {f"layer.weight{ending}": tensor for ending, tensor in written.tensors.items()}
    same(read_bitsandbytes(named, "layer.weight"), written)


@QUICK
@given(SEEDS, st.sampled_from([2, 4, 8]), st.integers(1, 20), st.integers(1, 70), st.booleans(), st.booleans())
def test_pack_quantized(seed: int, bits: int, N: int, K: int, asymmetric: bool, act_order: bool) -> None:
    group = -(-K // min(K, 3))
    written = write_pack_quantized(np.random.default_rng(seed), N, K, bits, group, asymmetric, act_order)
    same(from_pack_quantized(**written.tensors, bits=bits, group=group), written)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("bits", [3, 5, 6, 7])
def test_pack_quantized_where_bits_do_not_divide_a_word(bits: int, whole: bool) -> None:
    """As strings of bits, and as earlier versions packed them: told apart by the number of words."""
    written = write_pack_quantized(np.random.default_rng(bits), 72, 160, bits, 32, True, False, whole)
    same(from_pack_quantized(**written.tensors, bits=bits), written)
    layer = {f"up.{name}": tensor for name, tensor in written.tensors.items()}
    settings = {"config_groups": {"group_0": {"weights": {"num_bits": bits}}}}
    same(readers.pack_quantized(layer, "up", settings), written)


@QUICK
@given(SEEDS, st.integers(1, 20), st.integers(1, 20), st.integers(0, 4))
def test_int_quantized(seed: int, N: int, K: int, groups: int) -> None:
    written = write_int8(np.random.default_rng(seed), N, K * max(groups, 1), groups)
    same(from_int_quantized(**written.tensors), written)


@QUICK
@given(SEEDS, st.integers(1, 20), st.integers(1, 20), st.sampled_from([(4, 8), (128, 128), (3, 5)]))
def test_float_quantized(seed: int, N: int, K: int, block: tuple[int, int]) -> None:
    written = write_float8(np.random.default_rng(seed), N, K, block)
    same(from_float_quantized(**written.tensors, block=block), written)


@pytest.mark.parametrize("block", [(7, 12), (1, 12), (1, 4)])
def test_float_quantized_finds_tensor_channel_and_group_scales(block: tuple[int, int]) -> None:
    written = write_float8(np.random.default_rng(0), 7, 12, block)
    made = from_float_quantized(**written.tensors)
    same(made, written)
    assert made.block == block and made.format.name == "e4m3"


@QUICK
@given(SEEDS, st.integers(1, 23), st.integers(1, 30), st.booleans())
def test_hf_bitnet(seed: int, N: int, K: int, divides: bool) -> None:
    written = write_bitnet(np.random.default_rng(seed), N, K, divides)
    same(from_hf_bitnet(**written.tensors, out_features=N, divides=divides), written)


@QUICK
@given(SEEDS, st.integers(1, 9), st.integers(1, 4), st.booleans())
def test_mxfp4(seed: int, N: int, groups: int, flat: bool) -> None:
    written = write_mxfp4(np.random.default_rng(seed), N, 32 * groups)
    blocks = written.tensors["_blocks"]
    same(from_mx(blocks.reshape(N, -1) if flat else blocks, written.tensors["_scales"]), written)


@QUICK
@given(SEEDS, st.sampled_from(["Q4_0", "Q4_1", "Q8_0", "MXFP4"]), st.integers(1, 7), st.integers(1, 4))
def test_gguf(seed: int, type_name: str, N: int, blocks: int) -> None:
    written = write_gguf_blocks(np.random.default_rng(seed), N, 32 * blocks, type_name)
    same(from_gguf(written.tensors[""], type_name, (N, 32 * blocks)), written)


def test_torch_tensors_are_taken_as_they_are() -> None:
    torch = pytest.importorskip("torch")
    written = write_pack_quantized(np.random.default_rng(0), 6, 32, 4, 16, True, False)
    tensors = {name: torch.from_numpy(t) for name, t in written.tensors.items() if name != "weight_scale"}
    bits16 = torch.from_numpy(written.tensors["weight_scale"].view(np.int16)).view(torch.bfloat16)
    same(from_pack_quantized(**tensors, weight_scale=bits16), written)
    eight = write_float8(np.random.default_rng(0), 6, 32, (6, 32))
    weight = torch.from_numpy(eight.tensors["weight"].view(np.uint8)).view(torch.float8_e4m3fn)
    same(from_float_quantized(weight, torch.from_numpy(eight.tensors["weight_scale"])), eight)


def gptq(**changes: object) -> dict[str, object]:
    return {
        **write_gptq(np.random.default_rng(0), 8, 64, 4, 32, 1, False).tensors,
        "bits": 4,
        "name": "q_proj",
    } | changes


MISTAKES = [
    (from_gptq, gptq(qweight=np.zeros((8, 8))), InvalidTensor,
     "q_proj.qweight is float64 [8, 8], where int32 [K * bits / 32, N] is due"),
    (from_gptq, gptq(scales=np.zeros((2, 9), np.float16)), InvalidTensor,
     "q_proj.scales is float16 [2, 9], where float16 or bfloat16 or float32 or float64 [groups, N] is due"),
    (from_gptq, gptq(qzeros=np.zeros((2, 2), np.int32)), InvalidTensor,
     "q_proj.qzeros is int32 [2, 2], where int32 [groups, N * bits / 32] = [2, 1] is due"),
    (from_gptq, gptq(g_idx=np.zeros(40, np.int32)), InvalidTensor,
     "q_proj.g_idx has 40 elements, where qweight holds K = 64"),
    (from_gptq, gptq(g_idx=np.full(64, 2, np.int32)), InvalidTensor, "q_proj: g_idx[0] is 2, but there are 2 groups"),
    (from_gptq, gptq(bits=5), InvalidTensor, "q_proj: GPTQ weights have 2, 3, 4, 8 bits, not 5"),
    (from_gptq, gptq(version=3), InvalidTensor, "q_proj: GPTQ checkpoints are of version 1 or 2, not 3"),
    (from_gptq, gptq(group=16), InvalidTensor,
     "q_proj.scales has 2 groups of scales, which groups of 16 do not make of K = 64"),
    (from_gptq, gptq(scales=np.full((2, 8), np.nan, np.float16)), InvalidTensor,
     "q_proj: the scale of group 0 of row 0 is nan"),
    (from_awq, {**write_awq_gemm(np.random.default_rng(0), 8, 32, 16).tensors, "form": "fast", "name": "up"}, InvalidTensor,
     "up: no AWQ form 'fast'"),
    (from_awq, {**write_awq_gemv(np.random.default_rng(0), 8, 32, 32).tensors, "form": "gemv", "name": "up"}, InvalidTensor,
     "up: the gemv form of AWQ does not tell its group size"),
    (from_bitsandbytes, {"weight": np.zeros(8, np.uint8), "absmax": np.zeros(1, np.uint8), "shape": (4, 4), "name": "w"},
     MissingTensor, "w.absmax is quantised, but w.nested_absmax or w.nested_quant_map is missing"),
    (from_hf_bitnet, {"weight": np.full((1, 2), 3, np.uint8), "weight_scale": np.ones(1, np.float32), "name": "w"},
     InvalidTensor, "w.weight holds the code 3 at [0, 0]: a ternary weight has 0, 1 and 2"),
    (from_mx, {"blocks": np.zeros((1, 1, 16), np.uint8), "scales": np.full((1, 1), 255, np.uint8), "name": "w"},
     InvalidTensor, "w_scales is NaN (255) at [0, 0]"),
    (from_gguf, {"data": b"", "type_name": "Q1_0", "shape": (1, 256), "name": "w"}, InvalidTensor,
     "w is of the GGUF type Q1_0"),
    (from_gguf, {"data": b"", "type_name": "Q8_0", "shape": (1, 40), "name": "w"}, InvalidTensor,
     "w has rows of 40 elements, which blocks of 32 do not divide"),
    (from_float_quantized, {"weight": np.full((1, 2), np.nan).astype(ml_dtypes.float8_e4m3fn),
                            "weight_scale": np.ones(1, np.float32), "name": "w"}, InvalidTensor,
     "w.weight is NaN at [0, 0]"),
]  # fmt: skip


@pytest.mark.parametrize(("importer", "arguments", "kind", "message"), MISTAKES)
def test_mistakes_name_the_tensor(importer: object, arguments: dict[str, object], kind: type, message: str) -> None:
    with pytest.raises(kind) as raised:
        importer(**arguments)  # type: ignore[operator]
    assert raised.value.message == message


def test_a_missing_quant_state_is_told() -> None:
    with pytest.raises(MissingTensor, match=r"w\.quant_state\.bitsandbytes__nf4 is missing: a 4-bit weight"):
        read_bitsandbytes({"w": np.zeros(2, np.uint8)}, "w")


def test_an_empty_order_is_none() -> None:
    """What some writers leave of act-order that is not there."""
    written = write_gptq(np.random.default_rng(0), 8, 64, 4, 32, 1, False)
    layer = {f"up.{name}": tensor for name, tensor in written.tensors.items()}
    same(readers.gptq(layer | {"up.g_idx": np.zeros(0, np.int32)}, "up", {"bits": 4, "group_size": 32}), written)


def test_an_empty_order_of_gptq_is_none() -> None:
    words, points = np.zeros((8, 32), np.int32), np.zeros((1, 4), np.int32)
    made = from_gptq(words, points, np.ones((1, 32), np.float16), np.empty(0, np.int32), bits=4)
    assert made.g_idx is None and made.shape == (32, 64)


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_packed_integers_of_one_scale(bits: int, asymmetric: bool) -> None:
    written = write_pack_quantized(np.random.default_rng(bits), 5, 48, bits, 48, False, False)
    zero = np.array([-2 if asymmetric else 0], np.int8)
    numbers = written.weight / written.tensors["weight_scale"].astype(float)
    tensors = {**written.tensors, "weight_scale": np.array([0.25], np.float32)}
    tensors |= {"weight_zero_point": zero} if asymmetric else {}
    expected = (np.rint(numbers) - zero.astype(float)) * 0.25
    assert (from_pack_quantized(**tensors, bits=bits).to_dense() == expected).all()
    with pytest.raises(InvalidTensor, match="weight_g_idx deals columns out to groups, where there is one scale"):
        from_pack_quantized(**tensors, bits=bits, weight_g_idx=np.arange(48, dtype=np.int32) % 2)


@pytest.mark.parametrize("storage", ["int8", "float16", "bfloat16", "float32", "float64"])
def test_bytes_of_bitsandbytes_may_pass_for_other_types(storage: str) -> None:
    written = write_bitsandbytes(np.random.default_rng(0), 8, 64, 64, True)
    stored = written.tensors[""].reshape(-1).view(ml_dtypes.bfloat16 if storage == "bfloat16" else storage)[:, None]
    tensors = {f"w{ending}": tensor for ending, tensor in {**written.tensors, "": stored}.items()}
    same(read_bitsandbytes(tensors, "w"), written)
