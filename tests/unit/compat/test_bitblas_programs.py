"""Programs of BitBLAS's users, unchanged but for the import; and the rest of its names."""

from __future__ import annotations

import contextlib
import io
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.compat import bitblas
from tilewright.errors import InvalidCheckpoint, NotRepresentable, Unsupported, WrongArgumentShape

torch = pytest.importorskip("torch")

STATIC_AND_DYNAMIC = """
import bitblas
from bitblas import Matmul, MatmulConfig
from bitblas.common import MAX_ERROR_MESSAGE_LENGTH

bitblas.set_log_level("Debug")

for M in (1024, [1024]):
    config = MatmulConfig(
        M=M, N=17280, K=3200, A_dtype="int8", W_dtype="int8", accum_dtype="int32", out_dtype="int32", layout="nt",
        with_bias=False, propagate_b=3,
    )
    matmul = Matmul(config=config, target=TARGET, enable_tuning=False)
    matmul.hardware_aware_finetune(topk=20, parallel_build=True)
    print(matmul.scheduled_ir_module)
    print(matmul.get_source())
    operators.append(matmul)
"""

SCALED = """
import bitblas
import torch

bitblas.set_log_level("DEBUG")

in_features = 4096
out_features = 4096

matmul_config = bitblas.MatmulConfig(
    M=1, N=out_features, K=in_features, A_dtype="int8", W_dtype="int8", accum_dtype="int32", out_dtype="float16", layout="nt",
    with_bias=False, group_size=None, with_scaling=True, with_zeros=False, zeros_mode=None,
)
matmul = bitblas.Matmul(config=matmul_config)

scaling = torch.rand((out_features, 1), dtype=torch.float16)
input_tensor = torch.randint(0, 7, (1, in_features), dtype=torch.int8)
weight_tensor = torch.randint(0, 7, (out_features, in_features), dtype=torch.int8)

output_tensor = matmul(input_tensor, weight_tensor, scale=scaling)
"""


def run(program: str, **names: Any) -> tuple[dict[str, Any], str]:
    """Run a program with ``bitblas`` from here; its names and what it printed."""
    program = program.replace("import bitblas\n", "from tilewright.compat import bitblas\n")
    program = program.replace("from bitblas", "from tilewright.compat.bitblas")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "program.py", "exec"), names)
    return names, printed.getvalue()


def small(program: str) -> str:
    """The program with smaller sizes, and fewer candidates to compile and time."""
    program = program.replace("1024", "64").replace("17280", "160").replace("3200", "320").replace("4096", "256")
    return program.replace("topk=20", "topk=2")


def static_and_dynamic(program: str, rows: int, N: int, K: int) -> None:
    made, printed = run(program, TARGET=None, operators=[])
    assert "general_matmul" in printed and "int32" in printed
    A = torch.randint(-128, 128, (rows, K), dtype=torch.int8)
    weight = torch.randint(-128, 128, (N, K), dtype=torch.int8)
    expected = torch._int_mm(A, weight.T.contiguous()) if rows > 16 else A.int() @ weight.int().T
    for matmul in made["operators"]:
        packed = matmul.transform_weight(weight)
        assert matmul.retrieve_weight_shape() == [N // 16, K // 32, 16, 32] and packed.shape == (N, K)
        assert (matmul(A, packed) == expected).all()


def test_static_and_dynamic_int8() -> None:
    static_and_dynamic(small(STATIC_AND_DYNAMIC), 64, 160, 320)


@pytest.mark.proof
def test_static_and_dynamic_int8_at_the_users_size() -> None:
    static_and_dynamic(STATIC_AND_DYNAMIC, 1024, 17280, 3200)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_both_main_loops_load_by_asynchronous_copies(arch: str) -> None:
    made, printed = run(STATIC_AND_DYNAMIC, TARGET=f"cuda -arch={arch}", operators=[])
    sources = [matmul.get_source() for matmul in made["operators"]]
    assert len(sources) == 2 and all(source in printed for source in sources)
    for source in sources:
        # Each branch (few rows, many rows) has a loop; A and W reach shared memory by no other way than these.
        copied = re.findall(r"(?:cp_async\w*|tma_load\w*|bulk_load\w*)(?:<[^>]*>)?\([^;]*;", source)
        assert any(re.search(r"&?\bW\b", copy) for copy in copied) and any(
            re.search(r"\bA(_map)?\b", copy) for copy in copied
        )
        stored = [line for line in source.splitlines() if re.search(r"(A_shared|codes)\w*\[[^=]*\] = ", line)]
        assert not stored, stored


def scaled(program: str) -> None:
    made, _ = run(program)
    exact = (made["input_tensor"].double() @ made["weight_tensor"].double().T) * made["scaling"].double().T
    assert made["output_tensor"].dtype == torch.float16
    # One rounding to float32 and one to float16.
    assert ((made["output_tensor"].double() - exact).abs() <= exact.abs() * 2.0**-10.9).all()


def test_int8_with_a_scale_a_channel() -> None:
    scaled(small(SCALED))


@pytest.mark.proof
def test_int8_with_a_scale_a_channel_at_the_users_size() -> None:
    scaled(SCALED)


def test_finetuning_keeps_a_shape_that_was_measured() -> None:
    matmul = bitblas.Matmul(bitblas.MatmulConfig(M=16, N=64, K=64, W_dtype="int4"), enable_tuning=False)
    assert len(matmul.hardware_aware_finetune(topk=2)) == 2
    assert matmul.profile_latency() > 0.0 and matmul.profile_latency(dynamic_symbolic_constraints={"m": 3}) > 0.0
    absent = bitblas.Matmul(bitblas.MatmulConfig(M=16, N=64, K=64, W_dtype="int4"), target="cuda -arch=sm_80")
    assert absent.hardware_aware_finetune() == []
    assert absent.lib is not None and "mma" in absent.get_source(kenrel_only=True)


def test_cached_operators_survive_their_process(tmp_path: Path) -> None:
    config = bitblas.MatmulConfig(
        M=[1, 16], N=32, K=64, W_dtype="uint4", with_scaling=True, with_zeros=True, zeros_mode="quantized"
    )
    matmul = bitblas.Matmul(config, enable_tuning=False)
    matmul.tuned = {"a product": {"block_N": 32}}
    cache = bitblas.cache.OperatorCache()
    assert cache.get(config) is None and not cache.exists(config)
    cache.add(config, matmul)
    assert cache.exists(config) and cache.size() == 1 and cache.get(config) is matmul
    cache.save_into_database(str(tmp_path))
    cache.save_into_database(str(tmp_path))
    again = bitblas.cache.OperatorCache()
    again.load_from_database(str(tmp_path))
    loaded = again.get(config)
    assert loaded is not None and loaded.config == config and loaded.tuned == matmul.tuned
    assert loaded.get_source() == matmul.get_source()
    other = bitblas.cache.OperatorCache()
    other.load_from_database(str(tmp_path), target="cuda -arch=sm_80")
    assert other.size() == 0
    next(tmp_path.glob("*/*/operator.json")).write_text("{}")
    with pytest.raises(InvalidCheckpoint, match="holds no operator"):
        again.load_from_database(str(tmp_path))
    cache.clear()
    assert cache.size() == 0
    before = bitblas.cache.get_database_path()
    bitblas.cache.set_database_path(str(tmp_path))
    assert bitblas.cache.get_database_path() == str(tmp_path)
    bitblas.cache.set_database_path(before)


def test_packing_helpers_say_what_they_cannot_pack() -> None:
    general_compress, interleave_weight = bitblas.quantization.general_compress, bitblas.quantization.interleave_weight
    codes = np.arange(16, dtype=np.int8).reshape(2, 8)
    packed = general_compress(codes, 4)
    assert packed.dtype == np.int8 and packed.view(np.uint8).tolist() == [[16, 50, 84, 118], [152, 186, 220, 254]]
    # BitBLAS's order for float16: 0 2 4 6 1 3 5 7.
    assert interleave_weight(packed).view(np.uint8).tolist() == [[0x20, 0x64, 0x31, 0x75], [0xA8, 0xEC, 0xB9, 0xFD]]
    assert bitblas.quantization.utils.general_compress is general_compress
    with pytest.raises(NotRepresentable, match=r"the value 16 at index \[1, 7\] is none of uint4's"):
        general_compress(codes + (codes == 15), 4)
    # Two different matrices of one bit have different bytes (an issue of BitBLAS's).
    ones = [np.eye(32, dtype=np.int8)[[row]] for row in (3, 17)]
    first, second = (interleave_weight(general_compress(one, 1), 1, "float16") for one in ones)
    assert (first != second).any()


def test_permutations_one_by_one() -> None:
    ops, rng = bitblas.ops, np.random.default_rng(0)
    weight = torch.from_numpy(rng.integers(0, 16, (32, 64)).astype(np.int8))
    ladder = ops.LadderPermutate(
        ops.LadderPermutateConfig(
            M=32, N=64, datatype="float16", storage_dtype="int8", transpose_matrix=True, transform_kind=3
        )
    )
    compress = ops.QuantCompress(ops.QuantCompressConfig(M=32, N=64, dequantize_bits=4))
    lop3 = ops.LOP3Permutate(ops.LOP3PermutateConfig(M=32, N=64, datatype="float16", dequantize_bits=4))
    assert ladder.retrieve_output_shape() == [2, 4, 16, 16] == list(ladder(weight).shape)
    assert compress.retrieve_qweight_shape() == [32, 32] == lop3.retrieve_weight_shape()
    matmul = bitblas.Matmul(bitblas.MatmulConfig(M=16, N=32, K=64, W_dtype="uint4", propagate_b=3), enable_tuning=False)
    steps = lop3(compress(ladder(weight).reshape(32, 64)))
    assert (steps == matmul.transform_weight(weight)).all()
    words = compress(ladder(weight).reshape(32, 64)).view(torch.int32)
    assert torch.equal(lop3(words), steps.view(torch.int32))
    out = torch.empty(32, 32, dtype=torch.int8)
    assert compress.forward(weight, out) is out
    assert all(step.profile_latency() > 0 for step in (ladder, compress, lop3))


def test_where_names_are_imported_from() -> None:
    """The modules that BitBLAS's own tests and its users' programs take names from."""
    program = """
from bitblas.base.operator_common import OptimizeStrategy, QuantizationMemoryStage, TransformKind
from bitblas.cache.operator import OperatorCache
from bitblas.ops.general_matmul import Matmul, MatmulConfig, OptimizeStrategy
from bitblas.ops.ladder_permutate import LadderPermutate, LadderPermutateConfig
from bitblas.ops.lop3_permutate import LOP3Permutate, LOP3PermutateConfig
from bitblas.ops.operator import TransformKind
from bitblas.ops.quant_compress import QuantCompress, QuantCompressConfig
from bitblas.quantization.utils import general_compress
"""
    made, _ = run(program)
    assert made["LadderPermutate"] is bitblas.ops.LadderPermutate
    lut = bitblas.Matmul(bitblas.MatmulConfig(M=1, N=16, K=32, W_dtype="nf4", A_dtype="bfloat16")).lut
    assert lut.dtype == torch.bfloat16 and lut.tolist()[0] == -1.0 and len(lut) == 16


def test_the_other_names() -> None:
    assert bitblas.__version__ and bitblas.auto_detect_nvidia_target() == bitblas.utils.auto_detect_nvidia_target(0)
    assert bitblas.tvm.target.Target("cuda -arch=sm_80").arch == "sm_80"
    assert Path(bitblas.tvm.contrib.utils.tempdir().relpath("x")).name == "x"
    bitblas.set_log_level("Debug")
    assert logging.getLogger("bitblas").level == logging.DEBUG
    bitblas.set_log_level("verbose")  # a name of nothing
    assert logging.getLogger("bitblas").level == logging.INFO
    bitblas.set_log_level(logging.WARNING)
    operator = bitblas.Matmul(bitblas.MatmulConfig(M=1, N=16, K=16, propagate_b=True))
    assert (operator.propagate_a, operator.propagate_b, operator.storage_dtype) == (0, 3, "float16")
    assert operator.fast_decoding is False
    a = torch.ones(100)
    assert bitblas.testing.torch_assert_close(a, a + 1e-4)
    with pytest.raises(AssertionError, match="100 of 100 elements differ, where 0 may"):
        bitblas.testing.torch_assert_close(a, a + 1)
    original, linear, scales, codes = bitblas.quantization.gen_quant4(64, 32, 16)
    assert scales.shape == (4, 32) and codes.min() >= -8 and codes.max() <= 7
    rounded = (codes.reshape(4, 16, 32) * scales[:, None].float()).reshape(64, 32)
    assert torch.allclose(linear.weight.T.float(), rounded, atol=2e-3) and original.shape == (64, 32)
    tile = torch.arange(6).reshape(2, 3)
    assert (bitblas.apply_transform_on_input(tile, lambda i, j: (1 - i, j)) == tile.flip(0)).all()


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
@pytest.mark.parametrize(("A_dtype", "W_dtype"), [("float16", "int4"), ("int8", "int8"), ("float16", "float16")])
def test_other_layouts_take_weights_as_they_lie(layout: str, A_dtype: str, W_dtype: str) -> None:
    """Square sizes, where a weight the other way round has the right shape."""
    kind = {"float16": torch.float16, "int8": torch.int8}
    A, W = torch.randint(-8, 8, (3, 32)), torch.randint(-8, 8, (32, 32))
    config = bitblas.MatmulConfig(
        M=3, N=32, K=32, A_dtype=A_dtype, W_dtype=W_dtype, accum_dtype="float32", out_dtype="float32", layout=layout,
        propagate_b=False,
    )  # fmt: skip
    matmul = bitblas.Matmul(config, enable_tuning=False)
    given = (A if layout[0] == "n" else A.T).contiguous().to(kind[A_dtype])
    weight = (W if layout[1] == "t" else W.T).contiguous().to(kind.get(W_dtype, torch.int8))
    transformed = matmul.transform_weight(weight)
    assert list(transformed.shape) == matmul.retrieve_weight_shape()
    for raw in (transformed, weight) if matmul.weight_transform is None else (transformed,):
        assert (matmul(given, raw).double() == A.double() @ W.double().T).all()


@pytest.mark.parametrize("k_split", [1, 4])
def test_the_operator_that_divides_k(k_split: int) -> None:
    from tilewright.compat.bitblas.ops.general_matmul_splitk import MatmulConfigWithSplitK, MatmulWithSplitK

    config = MatmulConfigWithSplitK(
        k_split=k_split, M=[1, 16], N=32, K=64, A_dtype="float16", W_dtype="float16", accum_dtype="float32",
        out_dtype="float16", propagate_a=False, propagate_b=False,
    )  # fmt: skip
    matmul = MatmulWithSplitK(config=config, enable_tuning=False)
    A, W, out = torch.rand(5, 64).half() - 0.5, torch.rand(32, 64).half() - 0.5, torch.empty(5, 32).half()
    matmul.forward(A, W, output=out)
    torch.testing.assert_close(out.double(), A.double() @ W.double().T, rtol=1e-3, atol=1e-3)
    with pytest.raises(Unsupported, match="k_split=0"):
        MatmulConfigWithSplitK(k_split=0, M=1, N=32, K=64)


@pytest.mark.parametrize(("layout", "causal", "kv_heads"), [("nnn", False, None), ("ntn", True, 2)])
def test_attention(layout: str, causal: bool, kv_heads: int | None) -> None:
    config = bitblas.FlashAttenConfig(
        batch=1, heads=4, kv_heads=kv_heads, seq_len=48, dim=32, Q_dtype="float32", K_dtype="float32", V_dtype="float32",
        Out_dtype="float32", layout=layout, is_causal=causal,
    )  # fmt: skip
    operator = bitblas.FlashAtten(config=config, enable_tuning=False, backend="tl")
    Q, K, V = (torch.rand(shape) - 0.5 for shape in (config.query_shape, config.key_shape, config.value_shape))
    out = torch.empty(config.query_shape)
    operator(Q, K, V, output=out)
    heads_first = (
        tensor.transpose(1, 2).double() for tensor in (Q, K if layout == "nnn" else K.permute(0, 3, 2, 1), V)
    )
    expected = torch.nn.functional.scaled_dot_product_attention(
        *heads_first, is_causal=causal, enable_gqa=kv_heads is not None
    )
    torch.testing.assert_close(out.double(), expected.transpose(1, 2), rtol=1e-4, atol=1e-5)
    assert operator.get_source()
    with pytest.raises(WrongArgumentShape, match=r"V has shape \[1, 2\], the configuration says"):
        operator(Q, K, torch.zeros(1, 2))
    with pytest.raises(Unsupported, match="attention of float16, int8"):
        bitblas.FlashAttenConfig(batch=1, heads=4, seq_len=48, dim=32, K_dtype="int8")


def test_targets_by_the_environment_and_by_tvms_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITBLAS_TARGET", "cuda -arch=sm_80")
    assert bitblas.auto_detect_nvidia_target() == "cuda -arch=sm_80"
    config = bitblas.MatmulConfig(M=1, N=16, K=32)
    for name, arch in (
        ("nvidia/nvidia-a100", "sm_80"),
        ("nvidia/nvidia-h100", "sm_90a"),
        ("nvidia/geforce-rtx-4090", "sm_89"),
    ):
        target = bitblas.tvm.target.Target(name)
        assert bitblas.Matmul(config, target=target).arch.name == target.arch == arch and target.kind.name == "cuda"
    with pytest.raises(Unsupported, match="the transform 7 is not supported"):
        bitblas.MatmulConfig(M=1, N=16, K=32, propagate_b=7)
