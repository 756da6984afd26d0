"""``bitblas`` by another import: its operator on its packed bytes, every type, order, scale and zero, against float64."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.compat import bitblas
from tilewright.errors import InvalidTensor, MissingOperand, NotRepresentable, WrongArgumentShape
from tilewright.formats import number_format
from tilewright.matmul.tiers import ladder
from tilewright.quant.importers import from_bitblas
from tilewright.targets.registry import resolve

torch = pytest.importorskip("torch")

N, K, GROUP = 48, 192, 64
BITS = {"int8": 8, "uint8": 8, "nf4": 4, "fp4_e2m1": 4, "e4m3_float8": 8, "e5m2_float8": 8}


def numbers_of(kind: str, rng: np.random.Generator) -> tuple[Any, np.ndarray]:
    """A weight as a BitBLAS user writes it (every code of its type in it), and what it stands for."""
    if kind == "float16":
        made = torch.from_numpy(rng.standard_normal((N, K)).astype(np.float16))
        return made, made.double().numpy()
    bits = BITS.get(kind) or int(kind[-1])
    codes = rng.permutation(np.arange(N * K) % (1 << bits)).reshape(N, K)
    if kind in ("nf4", "fp4_e2m1"):
        return torch.from_numpy(codes.astype(np.int8)), number_format(kind).table[codes]
    if kind in ("e4m3_float8", "e5m2_float8"):
        codes = np.where(np.isfinite(number_format(kind).table[codes]), codes, 0).astype(np.uint8)
        name = {"e4m3_float8": "float8_e4m3fn", "e5m2_float8": "float8_e5m2"}[kind]
        return torch.from_numpy(codes).view(getattr(torch, name)), number_format(kind).table[codes]
    values = codes * 1.0
    if kind == "int1":
        values = 2.0 * codes - 1.0
    elif kind.startswith("int"):
        values = codes - 2.0 ** (bits - 1)
    return torch.from_numpy(values.astype(np.int16 if kind == "uint8" else np.int8)), values


def activations_of(kind: str, rows: int, rng: np.random.Generator) -> tuple[Any, np.ndarray]:
    if kind == "int8":
        values = rng.integers(-128, 128, (rows, K)).astype(np.int8)
        return torch.from_numpy(values), values.astype(np.float64)
    made = torch.from_numpy(rng.standard_normal((rows, K)).astype(np.float32))
    made = made.to({"float16": torch.float16, "bfloat16": torch.bfloat16, "e4m3_float8": torch.float8_e4m3fn}[kind])
    return made, made.double().numpy()


def check(
    A_dtype: str, W_dtype: str, *, rows: int = 5, zeros: str = "none", scaled: bool = False, **options: Any
) -> None:
    rng = np.random.default_rng(0)
    unscaled_integers = (
        A_dtype == "int8" and not scaled and zeros == "none" and number_format(W_dtype).kind in ("int", "uint")
    )
    config = bitblas.MatmulConfig(
        M=options.pop("M", rows), N=N, K=K, A_dtype=A_dtype, W_dtype=W_dtype, out_dtype="int32" if unscaled_integers else "float32",
        accum_dtype="float32", with_scaling=scaled, group_size=GROUP if scaled or zeros != "none" else -1,
        with_zeros=zeros != "none", zeros_mode=zeros if zeros != "none" else None, **options,
    )  # fmt: skip
    matmul = bitblas.Matmul(config, enable_tuning=False)
    weight, values = numbers_of(W_dtype, rng)
    A, wide = activations_of(A_dtype, rows, rng)
    packed = matmul.transform_weight(weight)
    assert packed.numel() == np.prod(matmul.retrieve_weight_shape()) and tuple(packed.shape[:1]) == (N,)
    kind = torch.bfloat16 if A_dtype == "bfloat16" else torch.float16
    given: dict[str, Any] = {}
    expected = values
    if zeros == "quantized":
        bits = number_format(W_dtype).bits
        points = rng.integers(0, 1 << bits, (K // GROUP, N))
        given["zeros"] = torch.from_numpy(bitblas.quantization.general_compress(points, bits))
        expected = expected - np.repeat(points.T, GROUP, 1)
    elif zeros == "original":
        given["zeros"] = torch.from_numpy(rng.integers(0, 3, (N, K // GROUP)).astype(np.float32)).to(kind)
        expected = expected - np.repeat(given["zeros"].double().numpy(), GROUP, 1)
    if scaled:
        given["scale"] = torch.from_numpy(rng.uniform(0.5, 1.5, (N, K // GROUP)).astype(np.float32)).to(kind)
        expected = expected * np.repeat(given["scale"].double().numpy(), GROUP, 1)
    if zeros == "rescale":
        given["zeros"] = torch.from_numpy(rng.uniform(-1, 1, (N, K // GROUP)).astype(np.float32)).to(kind)
        expected = expected - np.repeat(given["zeros"].double().numpy(), GROUP, 1)
    made = matmul(A, packed, **given).double().numpy()
    reference = wide @ expected.T
    if unscaled_integers:
        assert (made == reference).all()
    else:
        # Sums of K products in float32, and operands rounded to A's type where the weight is scaled before the product.
        slack = 2.0**-8 if A_dtype == "bfloat16" else 2.0**-11
        bound = (np.abs(wide) @ np.abs(expected).T) * (slack if zeros == "rescale" or scaled else 2.0**-18) + 1e-6
        assert (np.abs(made - reference) <= bound).all()
    # The same bytes in the shape that retrieve_weight_shape tells.
    assert (matmul(A, packed.reshape(matmul.retrieve_weight_shape()), **given).double().numpy() == made).all()


QUICK = [
    ("float16", "int4", {"scaled": True, "propagate_b": 3}), ("float16", "uint4", {"zeros": "quantized", "scaled": True}),
    ("float16", "uint4", {"zeros": "rescale", "scaled": True, "propagate_b": 2}), ("float16", "uint1", {}),
    ("float16", "fp4_e2m1", {}), ("float16", "float16", {"propagate_b": 3}), ("bfloat16", "int4", {"scaled": True}),
    ("int8", "int4", {"propagate_b": 3}), ("int8", "int2", {"scaled": True}),
]  # fmt: skip

SLOW = [
    ("float16", "int1", {"propagate_b": 1}), ("float16", "uint2", {"zeros": "original", "scaled": True}),
    ("float16", "nf4", {"scaled": True}), ("float16", "e4m3_float8", {}), ("float16", "int8", {"scaled": True}),
    ("int8", "int8", {"propagate_b": 3}), ("int8", "uint1", {"propagate_b": 2}), ("e4m3_float8", "e4m3_float8", {}),
]  # fmt: skip


@pytest.mark.parametrize(("A_dtype", "W_dtype", "options"), QUICK)
def test_products_of_packed_bytes(A_dtype: str, W_dtype: str, options: dict[str, Any]) -> None:
    check(A_dtype, W_dtype, **options)


@pytest.mark.proof
@pytest.mark.parametrize(("A_dtype", "W_dtype", "options"), SLOW)
def test_more_products_of_packed_bytes(A_dtype: str, W_dtype: str, options: dict[str, Any]) -> None:
    check(A_dtype, W_dtype, **options)


@pytest.mark.proof
@pytest.mark.parametrize("A_dtype", ["float16", "bfloat16", "int8"])
@pytest.mark.parametrize(
    "W_dtype", ["int1", "uint1", "int2", "uint2", "int4", "uint4", "int8", "uint8", "nf4", "fp4_e2m1", "e4m3_float8"]
)
def test_all_products_of_packed_bytes(A_dtype: str, W_dtype: str) -> None:
    modes = ["none", "original", "rescale", "quantized"] if W_dtype.startswith("uint") else ["none"]
    for stage, zeros, scaled, fast in itertools.product(range(4), modes, (False, True), (None, False)):
        check(A_dtype, W_dtype, zeros=zeros, scaled=scaled, propagate_b=stage, fast_decoding=fast)


@pytest.mark.parametrize(("M", "rows"), [(None, 1), (None, 100), (128, 3)])
def test_any_number_of_rows_is_served(M: Any, rows: int) -> None:
    check("float16", "int4", M=M, rows=rows, scaled=True, propagate_b=0)


@pytest.mark.parametrize(
    ("A_dtype", "W_dtype", "K"),
    [
        ("int8", "int4", 36), ("int8", "int4", 43), ("int8", "uint2", 24), ("int8", "uint1", 17), ("float16", "uint4", 61),
        ("float32", "uint4", 33), ("uint8", "int2", 9),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [torch.as_tensor, np.asarray])
def test_without_propagation_any_size_is_served(kind: Any, A_dtype: str, W_dtype: str, K: int) -> None:
    """A row that ends within a byte is padded; only fast decoding that is asked for wants whole words."""
    of, out = number_format(W_dtype), "int32" if "int" in A_dtype else "float32"
    config = bitblas.MatmulConfig(M=3, N=8, K=K, A_dtype=A_dtype, W_dtype=W_dtype, out_dtype=out, accum_dtype=None)
    assert config.propagate_b == 0 and not config.fast_decoding
    matmul = bitblas.Matmul(config, target="cpu")
    weight = torch.randint(int(of.minimum), int(of.maximum) + 1, (8, K), dtype=torch.int8)
    A = torch.randint(0, 128, (3, K)).to(getattr(torch, A_dtype))
    packed = matmul.transform_weight(weight)
    assert list(packed.shape) == matmul.retrieve_weight_shape() == [8, -(-K * of.bits // 8)]
    assert (torch.as_tensor(matmul(kind(A), kind(packed))).int() == A.int() @ weight.int().T).all()
    read = from_bitblas(packed, W_dtype=W_dtype, A_dtype=A_dtype, N=8, K=K)
    assert (read.dequantize() == weight.double().numpy()).all()
    with pytest.raises(InvalidTensor, match=r"interleaves codes in words of 32 bits|BitBLAS does not interleave"):
        bitblas.Matmul(bitblas.MatmulConfig(M=3, N=8, K=K, A_dtype=A_dtype, W_dtype=W_dtype, fast_decoding=True))


@pytest.mark.parametrize(
    ("options", "shape", "propagate", "fast"),
    [
        ({"M": 1, "A_dtype": "float16", "W_dtype": "int4"}, [256, 128], 0, True),
        ({"M": 256, "A_dtype": "float16", "W_dtype": "int4"}, [16, 16, 16, 8], 3, True),
        ({"M": None, "A_dtype": "float16", "W_dtype": "uint2"}, [256, 64], 0, True),
        ({"M": 256, "A_dtype": "int8", "W_dtype": "int2"}, [16, 8, 16, 8], 3, True),
        ({"M": 256, "A_dtype": "int8", "W_dtype": "int8"}, [16, 8, 16, 32], 3, False),
        ({"M": 256, "A_dtype": "int8", "W_dtype": "uint4"}, [16, 8, 16, 16], 3, False),
        ({"M": 256, "A_dtype": "float16", "W_dtype": "float16", "propagate_b": False}, [256, 256], 0, False),
        ({"M": 256, "A_dtype": "bfloat16", "W_dtype": "int4"}, [256, 128], 0, False),
        ({"M": None, "A_dtype": "float16", "W_dtype": "int4", "optimize_stratety": 1}, [16, 16, 16, 8], 3, True),
        ({"M": 256, "A_dtype": "float16", "W_dtype": "uint4", "with_zeros": True, "zeros_mode": "quantized"}, [256, 128], 0, True),
        ({"M": 256, "A_dtype": "e4m3_float8", "W_dtype": "e4m3_float8"}, [256, 256], 0, False),
    ],
)  # fmt: skip
def test_choices_and_shapes_are_bitblas_s(
    options: dict[str, Any], shape: list[int], propagate: int, fast: bool
) -> None:
    config = bitblas.MatmulConfig(N=256, K=256, **options)
    matmul = bitblas.Matmul(config, target="cpu", enable_tuning=False)
    assert matmul.retrieve_weight_shape() == shape
    assert config.propagate_b == propagate and config.fast_decoding == fast and config.propagate_a == 0
    assert hash(config) == hash(bitblas.MatmulConfig(N=256, K=256, **options))
    assert matmul.source_format == bitblas.Matmul.BITBLAS_TRICK_DTYPE_MAP[config.W_dtype][0]
    assert matmul.bit == bitblas.Matmul.BITBLAS_TRICK_DTYPE_MAP[config.W_dtype][1]


def test_weight_transform_takes_stored_codes() -> None:
    config = bitblas.MatmulConfig(M=1, N=16, K=32, W_dtype="int4", with_scaling=True, group_size=16)
    matmul = bitblas.Matmul(config)
    weight = torch.randint(-8, 8, (16, 32), dtype=torch.int8)
    assert matmul.weight_transform is not None
    assert (matmul.weight_transform(weight + 8) == matmul.transform_weight(weight)).all()
    plain = bitblas.Matmul(bitblas.MatmulConfig(M=1, N=16, K=32, A_dtype="int8", W_dtype="int8"))
    assert plain.weight_transform is None and plain.lut is None
    assert bitblas.Matmul(bitblas.MatmulConfig(M=1, N=16, K=32, W_dtype="nf4")).lut[0] == -1.0


def test_numbers_that_no_code_has_are_told() -> None:
    matmul = bitblas.Matmul(bitblas.MatmulConfig(M=1, N=16, K=32, W_dtype="int4"))
    weight = torch.zeros(16, 32, dtype=torch.int8)
    weight[3, 5] = 8
    with pytest.raises(NotRepresentable) as raised:
        matmul.transform_weight(weight)
    assert raised.value.message == "the value 8 at index [3, 5] is none of int4's"
    assert matmul.weight_transform is not None
    with pytest.raises(NotRepresentable, match=r"the value 16 at index \[3, 5\] is none of a code of int4's"):
        matmul.weight_transform(weight * 2)


def test_mistakes_are_told() -> None:
    with pytest.raises(
        InvalidTensor, match=r"propagate_b=3 cuts a weight into tiles of 16 x 32, which N = 24, K = 40 does not fill"
    ):
        bitblas.Matmul(bitblas.MatmulConfig(M=16, N=24, K=40, A_dtype="int8", W_dtype="int8", propagate_b=3))
    matmul = bitblas.Matmul(bitblas.MatmulConfig(M=1, N=16, K=32, W_dtype="int4", with_scaling=True))
    A, W = torch.zeros(1, 32, dtype=torch.float16), torch.zeros(16, 16, dtype=torch.int8)
    with pytest.raises(MissingOperand, match="matmul was called without scale"):
        matmul(A, W)
    with pytest.raises(WrongArgumentShape, match=r"W has shape \[16, 15\], expected \[16, 16\]"):
        matmul(A, W[:, :15].contiguous(), scale=torch.ones(16, 1, dtype=torch.float16))


@pytest.mark.parametrize(
    ("arch", "A_dtype", "W_dtype", "options"),
    [
        ("sm_80", "float16", "int4", {"propagate_b": 3}),
        ("sm_90a", "int8", "int8", {"propagate_b": 3, "M": 64}),
        ("sm_80", "int8", "int2", {}),
    ],
)
def test_device_text_computes_the_same(arch: str, A_dtype: str, W_dtype: str, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    out = "int32" if A_dtype == "int8" else "float32"
    config = bitblas.MatmulConfig(
        **{"M": 8, "N": 64, "K": 64, "A_dtype": A_dtype, "W_dtype": W_dtype, "out_dtype": out, **options}
    )
    matmul = bitblas.Matmul(config, target=f"cuda -arch={arch}")
    half = 1 << (number_format(W_dtype).bits - 1)
    weight = rng.integers(-half, half, (64, 64)).astype(np.int8)
    rows = config.M
    assert isinstance(rows, int)
    A = rng.integers(-9, 10, (rows, 64)).astype(np.float16 if A_dtype == "float16" else np.int8)
    made = matmul.emulate(A, matmul.transform_weight(weight))
    assert (made == A.astype(np.int64) @ weight.astype(np.int64).T).all()


@pytest.mark.parametrize("rows", [(1, 3), (64, 40)])
@pytest.mark.parametrize("scaled", [False, True])
def test_propagated_int8_is_multiplied_as_it_lies_on_hopper(rows: tuple[int, int], scaled: bool) -> None:
    """The caller's bytes reach the matrix unit's registers: no other order of them is made, whatever is kept."""
    wanted, given = rows
    rng = np.random.default_rng(wanted)
    config = bitblas.MatmulConfig(
        M=[wanted], N=80, K=384, A_dtype="int8", W_dtype="int8", out_dtype="float32" if scaled else "int32",
        accum_dtype="int32", with_scaling=scaled, with_bias=scaled, propagate_b=3,
    )  # fmt: skip
    matmul = bitblas.Matmul(config, target="cuda -arch=sm_90a", enable_tuning=False)
    assert matmul.explain().startswith("raw weights are multiplied as they lie")
    A, weight = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((given, 384), (80, 384)))
    scale, bias = rng.random((80, 1)).astype(np.float16), rng.standard_normal(80).astype(np.float16)
    found = matmul.emulate(A, matmul.transform_weight(weight), *((scale, None, bias) if scaled else ()))
    expected: np.ndarray = A.astype(np.int64) @ weight.astype(np.int64).T
    if scaled:
        exact = expected * scale.astype(np.float64).T + bias
        assert (np.abs(found - exact) <= 2.0**-22 * (np.abs(exact) + np.abs(bias))).all()
    else:
        np.testing.assert_array_equal(found, expected)
    assert "bulk_load" in matmul.get_source() and "tma_load" in matmul.get_source()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [({"K": 160}, "K is no multiple of 128"), ({"propagate_b": 2}, "codes in another order than that of propagated int8"),
     ({"with_scaling": True, "group_size": 128, "out_dtype": "float32"}, "scales other than those of channels")],
)  # fmt: skip
def test_what_is_repacked_says_why(changed: dict[str, Any], reason: str) -> None:
    given = {"M": 64, "N": 80, "K": 384, "A_dtype": "int8", "W_dtype": "int8", "out_dtype": "int32", "propagate_b": 3}
    config = bitblas.MatmulConfig(accum_dtype="int32", **{**given, **changed})
    matmul = bitblas.Matmul(config, target="cuda -arch=sm_90a", enable_tuning=False)
    assert matmul.explain().startswith(f"raw weights are repacked: {reason}")


def test_tiles_of_bytes_as_they_lie_fit_a_multiprocessor() -> None:
    for N, K in ((17280, 3200), (8192, 8192), (1024, 512), (48, 128), (28672, 28672)):
        config = bitblas.MatmulConfig(M=[1], N=N, K=K, A_dtype="int8", W_dtype="int8", out_dtype="int32", propagate_b=3)
        across, words = ladder.FORM.shape(N, K)[1:]
        arch = resolve("cuda -arch=sm_90a")[1]
        for rows in (1, 8, 9, 64, 65, 128, 129, 256, 1024, 8192):
            for sizes in ladder.candidates(config.facts(), replace(config.request(), rows=rows), arch):
                weights = (
                    sizes["weight_stages"] * 4 * sizes["warpgroups"] * sizes["tiles"] * sizes["records"] * words * 4
                )
                activations = sizes["stages"] * sizes["tokens"] * 128
                staged = sizes["part"] * (64 * sizes["warpgroups"] + 4) * 4
                assert weights + activations < 226 << 10 and across % sizes["records"] == 0
                assert staged <= max(weights, activations), sizes
