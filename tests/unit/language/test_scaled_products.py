"""`T.fp8_scaled_matmul` in the interpreter, on a processor and as CUDA text, and what is said where operands do not fit."""

from __future__ import annotations

import numpy as np
import pytest
from scaled_programs import CASES, E4M3, E5M2, E8M0, program

import tilewright
import tilewright.language as T
from tilewright.interpreter import interpret
from tilewright.ir.dtypes import ALL

TARGETS = ["interpreter", "cpu", "cuda -arch=sm_80", "cuda -arch=sm_89", "cuda -arch=sm_90a", "metal -arch=apple7"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_products_are_exact_but_for_their_sums(case: str, target: str) -> None:
    function, arguments, expected = program(**CASES[case])
    if target == "interpreter":
        interpret(function.function, arguments)
    else:
        kernel = tilewright.compile(function, target=target)
        (kernel if target == "cpu" else kernel.emulate)(*arguments)
    error = np.abs(arguments[-1].astype(np.float64) - expected).max() / np.abs(expected).max()
    # Hopper's matrix unit keeps 14 bits of a run of 128 columns, as the emulator does.
    assert error < (1.5e-4 if target.endswith("sm_90a") and not CASES[case].get("exact") else 2e-6)


def test_text_of_hopper_keeps_copies_and_matrix_instructions() -> None:
    function, _, _ = program(size=(256, 256, 512), tile=(128, 128, 128), transpose_B=True, stages=3)
    kernel = tilewright.compile(function, target="cuda -arch=sm_90a")
    assert "wgmma_ss<128" in kernel.get_kernel_source() and "tma_load" in kernel.explain()


SHAPES = {"A_fp8": (32, 64), "A_scale": (32,), "B_fp8": (64, 48), "B_scale": (48,), "C_out": (32, 48)}
TYPES = {"A_fp8": E4M3, "A_scale": "float32", "B_fp8": E5M2, "B_scale": "float32", "C_out": "float32"}


@pytest.mark.parametrize(
    ("shapes", "types", "options", "kind", "message"),
    [
        ({}, {"A_fp8": "float16"}, {}, TypeError, "A_fp8 must be FP8"),
        ({}, {"B_fp8": "float8_e8m0fnu"}, {}, TypeError, "B_fp8 must be FP8"),
        ({}, {"A_scale": "int32"}, {}, TypeError, "A_scale must be a floating-point"),
        ({}, {"B_scale": "int8"}, {}, TypeError, "B_scale must be a floating-point"),
        ({}, {"C_out": "int32"}, {}, TypeError, "C output must be float32"),
        ({"A_fp8": (64,)}, {}, {}, ValueError, "at least 2D"),
        ({"B_fp8": (32, 48)}, {}, {}, ValueError, "K mismatch: 64 in A, 32 in B"),
        ({"C_out": (16, 48)}, {}, {}, ValueError, "M mismatch: 32 in A, 16 in C"),
        ({"C_out": (32, 64)}, {}, {}, ValueError, "N mismatch: 48 in B, 64 in C"),
        ({"A_scale": (7,)}, {}, {}, ValueError, "A_scale must be per-tensor, per-row"),
        ({"B_scale": (7,)}, {}, {}, ValueError, "B_scale must be per-tensor, per-column"),
        ({}, {}, {"accum_dtype": "float16"}, ValueError, "accum_dtype must be float32"),
        ({}, {}, {"exact": True, "fast": True}, ValueError, "exact=True and fast=True ask for opposite sums"),
    ],
)
def test_mistakes_are_told_while_tracing(shapes: dict, types: dict, options: dict, kind: type, message: str) -> None:
    of, size = {**TYPES, **types}, {**SHAPES, **shapes}
    with pytest.raises(kind, match=message) as caught:

        @T.prim_func
        def wrong(X: T.Tensor((4,), "float32")):
            with T.Kernel(1, threads=32):
                tiles = {name: T.alloc_shared(size[name], of[name]) for name in list(SHAPES)}
                T.fp8_scaled_matmul(*tiles.values(), **options)

    assert isinstance(caught.value, tilewright.TilewrightError) and "T.fp8_scaled_matmul(" in str(caught.value)


@pytest.mark.parametrize("target", ["interpreter", "cpu", "cuda -arch=sm_80", "metal -arch=apple7"])
@pytest.mark.parametrize("kind", ["uint8", E8M0])
def test_scales_of_blocks_by_their_layout_and_offsets(kind: str, target: str) -> None:
    """Bytes 0 and 255 are 2**-127 and NaN; scales and C are those of more rows and columns than the operands have."""
    M, N, K, rows = 16, 32, 64, 40

    @T.prim_func
    def product(
        A: T.Tensor((M, K), E4M3), SA: T.Tensor((rows, K // 32), kind), B: T.Tensor((N, K), E5M2),
        SB: T.Tensor((rows, K // 32), kind), C: T.Tensor((48, 64), "float32"), F: T.Tensor((256,), "float32"),
        codes: T.Tensor((256,), kind),
    ):  # fmt: skip
        with T.Kernel(1, threads=64):
            a, b = T.alloc_shared((M, K), E4M3), T.alloc_shared((N, K), E5M2)
            total = T.alloc_fragment((48, 64), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.clear(total)
            T.fp8_scaled_matmul(
                a, SA, b, SB, total, transpose_B=True, block_scale_layout=T.BlockScaledLayout.e8m0_k32(), a_scale_offset=24,
                b_scale_offset=8, c_row_offset=32, c_col_offset=16, simd_group_width=32, outputs_per_block=4,
            )  # fmt: skip
            T.copy(total, C)
            for i in T.Parallel(256):
                F[i] = T.e8m0_to_float(codes[i])

    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((M, K)).astype(ALL[E4M3].numpy), rng.standard_normal((N, K)).astype(ALL[E5M2].numpy)
    of_a, of_b = (rng.integers(120, 133, (rows, 2)).astype(np.uint8) for _ in "ab")
    given = [one.view(ALL[kind].numpy) for one in (of_a, of_b, np.arange(256, dtype=np.uint8))]
    found, floats = np.full((48, 64), np.nan, np.float32), np.full(256, 7, np.float32)
    arguments = [a, given[0], b, given[1], found, floats, given[2]]
    if target == "interpreter":
        interpret(product.function, arguments)
    else:
        kernel = tilewright.compile(product, target=target)
        (kernel if target == "cpu" else kernel.emulate)(*arguments)
    wide = [np.exp2(np.repeat(one, 32, 1).astype(np.float64) - 127) for one in (of_a[24:40], of_b[8:40])]
    exact = np.zeros((48, 64))
    exact[32:, 16:48] = (a.astype(np.float64) * wide[0]) @ (b.astype(np.float64) * wide[1]).T
    assert np.abs(found - exact).max() <= 2e-6 * np.abs(exact).max()
    np.testing.assert_array_equal(floats[:255].astype(np.float64), np.exp2(np.arange(255) - 127.0))
    assert np.isnan(floats[255])


def test_block_scales_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="A_scale has a scale for each 64 columns of K, but scale_block_size is 32"):

        @T.prim_func
        def wrong(X: T.Tensor((4,), "float32")):
            with T.Kernel(1, threads=32):
                a, b = T.alloc_shared((16, 64), E4M3), T.alloc_shared((64, 16), E4M3)
                of_a, of_b = T.alloc_shared((16, 1), "uint8"), T.alloc_shared((16, 2), "uint8")
                c = T.alloc_fragment((16, 16), "float32")
                T.fp8_scaled_matmul(a, of_a, b, of_b, c, scale_format="e8m0", scale_block_size=32)


@pytest.mark.parametrize("kind", ["float32", E8M0])
@pytest.mark.parametrize("shape", [(4, 1), (1, 4), (4, 2), (1, 1, 4)], ids=str)
def test_blocks_of_lines_and_of_columns_are_told_apart(shape: tuple[int, ...], kind: str) -> None:
    """Four scales of eight rows each, or of 16 columns of K each, whatever their type; ``(4, 1)`` was read as rows, or as parts of K."""
    M, N, K = 32, 16, 64

    @T.prim_func
    def product(
        A: T.Tensor((M, K), E4M3), SA: T.Tensor(shape, kind), B: T.Tensor((K, N), E4M3), C: T.Tensor((M, N), "float32")
    ):
        with T.Kernel(1, threads=64):
            one, total = T.alloc_shared((1,), "float32"), T.alloc_fragment((M, N), "float32")
            T.fill(one, 1)
            T.clear(total)
            T.fp8_scaled_matmul(A, SA, B, one, total)
            T.copy(total, C)

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, size).astype(ALL[E4M3].numpy) for size in ((M, K), (K, N)))
    scales = np.exp2(np.arange(np.prod(shape)) - 3.0).astype(ALL[kind].numpy).reshape(shape)
    found = np.full((M, N), np.nan, np.float32)
    interpret(product.function, [a, scales, b, found])
    lines, parts = shape[-2:]
    wide = scales.astype(np.float64).reshape(lines, parts).repeat(M // lines, 0).repeat(K // parts, 1)
    np.testing.assert_array_equal(found, (a.astype(np.float64) * wide) @ b.astype(np.float64))


@pytest.mark.parametrize("shape", [(2,), (1, 2)], ids=str)
def test_a_line_of_as_many_scales_as_rows_is_what_its_layout_says(shape: tuple[int, ...]) -> None:
    """Two scales of 32 columns of K each for all of two rows: without the layout they are one for each row."""
    M, N, K = 2, 16, 64

    def product(**options: object) -> np.ndarray:
        @T.prim_func
        def program(
            A: T.Tensor((M, K), E4M3), SA: T.Tensor(shape, E8M0), SB: T.Tensor((N, K // 32), E8M0),
            B: T.Tensor((K, N), E4M3), C: T.Tensor((M, N), "float32"),
        ):  # fmt: skip
            with T.Kernel(1, threads=64):
                total = T.alloc_fragment((M, N), "float32")
                T.clear(total)
                T.fp8_scaled_matmul(A, SA, B, SB, total, **options)
                T.copy(total, C)

        rng = np.random.default_rng(0)
        a, b = (rng.integers(-2, 3, size).astype(ALL[E4M3].numpy) for size in ((M, K), (K, N)))
        of_a, of_b = np.array([0.5, 4.0]), np.exp2(rng.integers(-2, 3, (N, 2)))
        found = np.full((M, N), np.nan, np.float32)
        interpret(
            program.function, [a, of_a.astype(ALL[E8M0].numpy).reshape(shape), of_b.astype(ALL[E8M0].numpy), b, found]
        )
        wide_b = b.astype(np.float64) * of_b.repeat(32, 1).T
        lines = of_a.repeat(32) if options else of_a.reshape(2, 1)
        np.testing.assert_array_equal(found, (a.astype(np.float64) * lines) @ wide_b)
        return found

    assert not np.array_equal(product(block_scale_layout=T.BlockScaledLayout.e8m0_k32()), product())


@pytest.mark.parametrize("target", [*TARGETS, "hip -arch=gfx942"])
@pytest.mark.parametrize("types", [("float32", "float32"), ("bfloat16", "float16"), (E8M0, "float32"), (E8M0, E8M0)])
def test_nothing_between_is_beyond_float32_where_results_are_not(types: tuple[str, str], target: str) -> None:
    """Scales of every exponent, and sums of zero: two scales together reach 2**256."""
    powers = [E8M0 in types and kind == E8M0 for kind in types]
    shapes = [(32, 1) if power else (32,) for power in powers]

    @T.prim_func
    def product(
        A: T.Tensor((32, 32), E5M2), SA: T.Tensor(shapes[0], types[0]), B: T.Tensor((32, 32), E5M2),
        SB: T.Tensor(shapes[1], types[1]), C: T.Tensor((32, 32), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            c = T.alloc_fragment((32, 32), "float32")
            T.clear(c)
            T.fp8_scaled_matmul(A, SA, B, SB, c)
            T.copy(c, C)

    kernel = tilewright.compile(product, target=target if target != "interpreter" else "cpu")
    run = kernel.interpret if target == "interpreter" else kernel if target == "cpu" else kernel.emulate
    rng = np.random.default_rng(5)
    for _ in range(3):
        a, b = (np.exp2(rng.integers(-7, 8, (32, 32)) + rng.integers(-7, 7, 32)).astype(ALL[E5M2].numpy) for _ in "ab")
        a[5] = 0
        scales = []
        for kind, shape in zip(types, shapes):
            low, high = (-127, 127) if kind == E8M0 else (-14, 15) if kind == "float16" else (-126, 127)
            scales.append(np.exp2(rng.integers(low, high, shape, endpoint=True).astype(float)).astype(ALL[kind].numpy))
        found = np.full((32, 32), np.nan, np.float32)
        run(a, scales[0], b, scales[1], found)
        wide = [scale.astype(np.longdouble).reshape(-1) for scale in scales]
        wanted = (a.astype(np.longdouble) @ b.astype(np.longdouble)) * wide[0][:, None] * wide[1]
        with np.errstate(all="ignore"):
            close = np.abs(found - wanted) <= wanted * 5e-4 + (2.0**-126 if target.startswith("metal") else 2.0**-149)
        assert (close | (np.isinf(found) & (wanted > 2.0**127.99))).all(), np.argwhere(~close)[:3]
