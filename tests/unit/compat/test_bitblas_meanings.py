"""What bytes and calls mean in BitBLAS's own programs: products of int4, operands in turn, the left operand's permutation, the log."""

from __future__ import annotations

import logging
import os
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tilewright.compat import bitblas  # noqa: E402
from tilewright.errors import MissingOperand, TilewrightError, Unsupported  # noqa: E402
from tilewright.quant.importers import from_bitblas  # noqa: E402

M, N, K = 20, 32, 128


def halves(numbers: Any) -> Any:
    """Two numbers a byte, the even one low."""
    return (numbers[:, ::2] & 15) | (numbers[:, 1::2] & 15) << 4


def quarters(numbers: Any) -> Any:
    parts = [(numbers[:, i::4] & 3) << 2 * i for i in range(4)]
    return parts[0] | parts[1] | parts[2] | parts[3]


def as_bytes_of_int8(packed: Any, kind: int = 3) -> Any:
    """A program moves pairs of codes as it moves bytes."""
    rows, width = packed.shape
    config = bitblas.ops.LadderPermutateConfig(
        M=rows, N=width, datatype="int8", storage_dtype="int8", transform_kind=kind, transpose_matrix=True
    )
    return bitblas.ops.LadderPermutate(config)(packed)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize(("W_dtype", "fast"), [("int4", False), ("int2", False), ("int2", True)])
def test_products_of_int4_take_the_bytes_that_programs_make(W_dtype: str, fast: bool, stage: int) -> None:
    generator = torch.Generator().manual_seed(stage)
    low, high = (-8, 8) if W_dtype == "int4" else (0, 2)  # codes of two bits are the numbers themselves
    A = torch.randint(-8, 8, (M, K), dtype=torch.int8, generator=generator)
    B = torch.randint(low, high, (N, K), dtype=torch.int8, generator=generator)
    config = bitblas.MatmulConfig(
        M=M, N=N, K=K, A_dtype="int4", W_dtype=W_dtype, accum_dtype="int32", out_dtype="int32", propagate_b=stage,
        fast_decoding=fast,
    )  # fmt: skip
    matmul = bitblas.Matmul(config, enable_tuning=False)
    kind = int(config.propagate_b)  # BitBLAS makes 3 of 2 beside int4
    packed = halves(B) if not kind else as_bytes_of_int8(halves(B), kind)
    if W_dtype == "int2":
        whole = packed.reshape(N, -1)
        low_codes, high_codes = whole & 3, whole >> 4 & 3
        packed = quarters(torch.stack([low_codes, high_codes], -1).reshape(N, K))
    if fast:
        config_of_words = bitblas.ops.LOP3PermutateConfig(
            M=N, N=K, datatype="int4", dequantize_bits=2, storage_dtype="int8"
        )
        packed = bitblas.ops.LOP3Permutate(config_of_words)(packed)
    expected = A.double().numpy() @ B.double().numpy().T
    found = matmul(halves(A), packed.reshape(matmul.retrieve_weight_shape()))
    assert (found.numpy() == expected).all()
    assert torch.equal(matmul.transform_weight(B).reshape(-1), packed.reshape(-1))
    raw = np.array(matmul(halves(A).numpy(), packed.reshape(matmul.retrieve_weight_shape()).numpy()))
    assert (raw == expected).all()
    weight = from_bitblas(packed, W_dtype=W_dtype, A_dtype="int4", N=N, K=K, propagate_b=kind, fast_decoding=fast)
    assert (weight.to_dense() == B.numpy()).all()


def test_signed_numbers_of_two_bits_beside_int4() -> None:
    A, B = torch.randint(-8, 8, (5, K), dtype=torch.int8), torch.randint(-2, 2, (N, K), dtype=torch.int8)
    config = bitblas.MatmulConfig(M=5, N=N, K=K, A_dtype="int4", W_dtype="int2", accum_dtype="int32", out_dtype="int32")
    matmul = bitblas.Matmul(config, enable_tuning=False)
    assert config.fast_decoding
    assert torch.equal(matmul(halves(A), matmul.transform_weight(B)), A.int() @ B.int().T)


def test_operands_are_taken_in_turn() -> None:
    A, W = torch.randn(3, 32).half(), torch.randn(16, 32).half()
    bias, zeros = torch.randn(16).half(), torch.randint(0, 3, (16, 1)).half()
    plain = bitblas.Matmul(bitblas.MatmulConfig(M=3, N=16, K=32, with_bias=True), enable_tuning=False)
    assert torch.equal(plain(A, W, bias), plain(A, W, bias=bias))
    codes = torch.randint(0, 16, (16, 32), dtype=torch.int8)
    shifted = bitblas.Matmul(
        bitblas.MatmulConfig(M=3, N=16, K=32, W_dtype="uint4", with_zeros=True, with_bias=True), enable_tuning=False
    )
    packed = shifted.transform_weight(codes)
    expected = shifted(A, packed, zeros=zeros, bias=bias)
    assert torch.equal(shifted(A, packed, zeros, bias), expected)
    assert torch.equal(shifted(A, packed, None, zeros, bias), expected)
    with pytest.raises(MissingOperand):
        shifted(A, packed, zeros)


@pytest.mark.parametrize("calls", [1, 4])
@pytest.mark.parametrize("form", ["raw", "packed"])
@pytest.mark.parametrize(
    "has", [(), ("scale",), ("scale", "zeros"), ("bias",), ("scale", "bias"), ("scale", "zeros", "bias")]
)
def test_the_result_is_handed_on_in_turn_too(has: tuple[str, ...], form: str, calls: int) -> None:
    """AutoGPTQ's layers call with a list: what they have, then the output. Calls that are known give the same."""
    config = bitblas.MatmulConfig(
        M=3, N=16, K=32, W_dtype="uint4", group_size=16, with_scaling="scale" in has, with_zeros="zeros" in has, with_bias="bias" in has
    )  # fmt: skip
    matmul = bitblas.Matmul(config, target="cpu", enable_tuning=False)
    codes = torch.randint(0, 16, (16, 32), dtype=torch.int8)
    operands = {
        "scale": torch.rand(16, 2).half(),
        "zeros": torch.randint(0, 3, (16, 2)).half(),
        "bias": torch.randn(16).half(),
    }
    named = {name: operands[name] for name in has}
    W = matmul.transform_weight(codes)
    if form == "packed":
        W = matmul.pack(
            codes, operands["scale"] if "scale" in has else None, operands["zeros"] if "zeros" in has else None
        )
        named = {name: one for name, one in named.items() if name == "bias"}
    for _ in range(calls):
        A, output = torch.randn(3, 32).half(), torch.zeros(3, 16).half()
        if "bias" in named:
            named["bias"] = torch.randn(16).half()
        expected = matmul(A, W, **named)
        assert matmul(A, W, *named.values(), output) is output
        assert torch.equal(output, expected) and torch.equal(matmul(A, W, *named.values()), expected)
    for wrong in (torch.zeros(3, 17).half(), torch.zeros(16).half()):
        with pytest.raises(TilewrightError):
            matmul(A, W, *named.values(), wrong)
    if named:
        with pytest.raises(MissingOperand):
            matmul(A, W, output=output)


def test_a_bias_that_is_handed_on_has_its_gradient() -> None:
    matmul = bitblas.Matmul(bitblas.MatmulConfig(M=3, N=16, K=32, with_bias=True), target="cpu", enable_tuning=False)
    A, W, bias = torch.randn(3, 32).half(), torch.randn(16, 32).half(), torch.randn(16).half().requires_grad_()
    matmul(A, W, bias).sum().backward()
    assert torch.equal(bias.grad, torch.full((16,), 3.0).half())


def moved(config: Any, array: np.ndarray) -> np.ndarray:
    """Element by element: the row and the column that ldmatrix gives each lane, and for stage 3 what mma holds."""
    columns, half = (16, 8) if config.datatype == "float16" else (32, 16)
    made = np.zeros((config.M // 16, config.N // columns, 16, columns), array.dtype)
    for place in np.ndindex(made.shape):
        i, j = place[2:]
        if config.transform_kind == 3:  # which element of stage 2 stands here
            flat = i * columns + j
            lane, part = flat // half // 4, flat // half % 4
            matrix, rest = flat % half // (half // 4), flat % (half // 4)
            flat = (8 * matrix + lane) * half + part * (half // 4) + rest
            i, j = divmod(flat, columns)
        if config.transform_kind > 1:
            lane, local = 2 * i + j // half, j % half
            row, column = (
                (8 * (lane // 16) + lane % 8, lane % 16 // 8) if config.transpose_matrix else (lane % 16, lane // 16)
            )
            i, j = row, half * column + local
        made[place] = array[16 * place[0] + i, columns * place[1] + j]
    return made  # fmt: skip


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize(("datatype", "kind", "transposed"), [
    ("float16", "A", False), ("float16", "A", True), ("float16", "B", True), ("float16", "B", False), ("int8", "A", False), ("int8", "B", True),
])  # fmt: skip
def test_either_operand_is_permuted(datatype: str, kind: str, transposed: bool, stage: int) -> None:
    config = bitblas.ops.LadderPermutateConfig(
        M=32, N=64, datatype=datatype, storage_dtype=datatype, propagate_kind=kind, transpose_matrix=transposed, transform_kind=stage
    )  # fmt: skip
    array = np.random.default_rng(0).integers(-100, 100, (32, 64)).astype(datatype)
    found = bitblas.ops.LadderPermutate(config)(torch.from_numpy(array)).numpy()
    assert (found == moved(config, array)).all()
    if stage == 2 and kind == "A" and datatype == "float16":
        bits = bitblas.ops.LadderPermutateConfig(
            M=32, N=64, dequantize_bits=4, storage_dtype="int8", propagate_kind="A", transpose_matrix=transposed
        )
        codes = np.random.default_rng(1).integers(0, 16, (32, 64)).astype(np.uint8)
        packed = (codes[:, ::2] | codes[:, 1::2] << 4).view(np.int8)
        made = bitblas.ops.LadderPermutate(bits)(torch.from_numpy(packed)).numpy().view(np.uint8).reshape(-1)
        wanted = moved(config, codes).reshape(-1)
        assert (made == (wanted[::2] | wanted[1::2] << 4)).all()


def test_bytes_that_ldmatrix_does_not_turn_are_refused() -> None:
    for kind, transposed in (("A", True), ("B", False)):
        with pytest.raises(Unsupported, match=rf"permuting {kind} of int8 with transpose_matrix={transposed}"):
            bitblas.ops.LadderPermutate(
                bitblas.ops.LadderPermutateConfig(M=16, N=32, datatype="int8", propagate_kind=kind, transpose_matrix=transposed)
            )  # fmt: skip


def test_a_directory_for_a_while(tmp_path: Any) -> None:
    with bitblas.tvm.contrib.utils.tempdir() as room:
        assert room.path == room.temp_dir and os.path.isdir(room.path) and room.listdir() == []
        open(room.relpath("a"), "w").close()
        assert room.listdir() == ["a"]
    assert not os.path.exists(room.path)
    kept = bitblas.tvm.contrib.utils.tempdir(str(tmp_path / "named"))
    kept.remove()
    assert kept.path == str(tmp_path / "named") and os.path.isdir(kept.path)


def test_tuning_is_logged_in_its_words(caplog: pytest.LogCaptureFixture) -> None:
    matmul = bitblas.Matmul(bitblas.MatmulConfig(M=1, N=16, K=32, W_dtype="int4"), target="cpu", enable_tuning=False)
    bitblas.set_log_level("DEBUG")
    try:
        with caplog.at_level(logging.DEBUG, "bitblas"):
            found = matmul.hardware_aware_finetune(topk=2)
    finally:
        bitblas.set_log_level("WARNING")
    said = [(one.levelname, one.getMessage()) for one in caplog.records]
    assert found and ("DEBUG", f"Apply config {found[0].options}") in said
    assert ("INFO", f"Evaluation with config {found[0].options}") in said
    assert ("INFO", f"Time cost of this config: {found[0].milliseconds:.3f} ms") in said
