"""Dense products on the GPU: clusters, persistent grids, scales, split K; exact on integers, the same bits every time."""

from __future__ import annotations

import pytest

import tilewright
import tilewright.language as T
from tilewright.kernels.activation_quantization import LARGEST, quantize_activations
from tilewright.kernels.dense_matmul import dense_matmul, scaled_matmul
from tilewright.kernels.few_rows_matmul import few_rows_matmul
from tilewright.kernels.tiles import Tiles
from tilewright.targets.cuda.arch import detect

torch = pytest.importorskip("torch")

ARCH = detect()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(ARCH is None or not ARCH.has("wgmma"), reason="no Hopper GPU here")]

REPEATS = 100


def integers(rows, columns, limit=127, dtype=torch.int8):
    return torch.randint(-limit, limit + 1, (rows, columns), device="cuda").to(dtype)


def repeated(kernel, shape, dtype, *arguments):
    """The result, the same bits in 100 runs into outputs that hold something else."""
    first = torch.full(shape, 77, device="cuda", dtype=dtype)
    kernel(*arguments, first)
    for _ in range(REPEATS):
        again = torch.full(shape, 3, device="cuda", dtype=dtype)
        kernel(*arguments, again)
        assert torch.equal(again.view(torch.uint8), first.view(torch.uint8))
    return first


@pytest.mark.parametrize("transpose_A, transpose_B", [(False, True), (False, False), (True, True), (True, False)])
@pytest.mark.parametrize("dtype, limit", [(torch.bfloat16, 3), (torch.int8, 127)])
@pytest.mark.parametrize("M, N, K", [(1000, 1536, 512), (2064, 4096, 256)])
def test_every_order(M, N, K, dtype, limit, transpose_A, transpose_B):
    torch.manual_seed(0)
    a, b = integers(M, K, limit, dtype), integers(N, K, limit, dtype)
    exact = a.double() @ b.double().T
    tiles = Tiles(128, 256, 128 // a.itemsize, 4, 256, (1, 2))
    name = str(dtype).removeprefix("torch.")
    kernel = dense_matmul(N, K, name, None, None, transpose_A, transpose_B, tiles)
    out = torch.int32 if dtype == torch.int8 else torch.float32
    given = a.T.contiguous() if transpose_A else a, b if transpose_B else b.T.contiguous()
    assert torch.equal(repeated(kernel, (M, N), out, *given).double(), exact)


@pytest.mark.parametrize("dtype, out", [("int8", torch.int32), ("bfloat16", torch.float32)])
def test_two_parts(dtype, out):
    torch.manual_seed(0)
    M, N, K = 1000, 1536, 512
    a, b = (integers(rows, K, 3, getattr(torch, dtype)) for rows in (M, N))
    parts = (
        (1024, Tiles(128, 256, 128 // a.itemsize, 4, 256, (1, 2))),
        (512, Tiles(128, 64, 128 // a.itemsize, 4, 256)),
    )
    kernel = dense_matmul(N, K, dtype, tiles=parts)
    assert torch.equal(repeated(kernel, (M, N), out, a, b).double(), a.double() @ b.double().T)


@pytest.mark.parametrize("M", [1, 130, 2064])
def test_scales(M):
    torch.manual_seed(0)
    N, K = 1536, 640
    a, b = integers(M, K), integers(N, K)
    scales_A, scales_B = (torch.rand(size, device="cuda") * 0.01 for size in (M, N))
    found = repeated(scaled_matmul(N, K, "int8"), (M, N), torch.bfloat16, a, b, scales_A, scales_B).double()
    exact = (a.double() @ b.double().T) * scales_A.double()[:, None] * scales_B.double()
    assert ((found - exact).abs() <= 2.0**-8 * exact.abs() + 1e-30).all()


@pytest.mark.parametrize("M, K", [(1, 1024), (64, 1040), (300, 1024), (2064, 1040)])
def test_blocks(M, K):
    torch.manual_seed(0)
    N, steps = 1536, -(-K // 128)
    e4m3 = torch.float8_e4m3fn
    a, b = (torch.randn(rows, K, device="cuda").to(e4m3) for rows in (M, N))
    scales_A, scales_B = (torch.rand(shape, device="cuda") + 0.5 for shape in ((steps, M), (N // 128, steps)))
    wide_A = a.double() * scales_A.double().T.repeat_interleave(128, 1)[:, :K]
    wide_B = b.double() * scales_B.double().repeat_interleave(128, 0).repeat_interleave(128, 1)[:, :K]
    exact, size = wide_A @ wide_B.T, wide_A.abs() @ wide_B.abs().T
    for tiles in (None, Tiles(64, 64, 128, 8, 128), Tiles(128, 128, 128, 3, 256)):
        kernel = scaled_matmul(N, K, "float8_e4m3fn", scale_A="group", scale_B="block", tiles=tiles)
        found = repeated(kernel, (M, N), torch.bfloat16, a, b, scales_A, scales_B).double()
        assert ((found - exact).abs() <= 128 * 2.0**-14 * size + 2.0**-8 * exact.abs()).all()


@pytest.mark.parametrize("M", [1, 7, 16, 33, 64])
@pytest.mark.parametrize("N, K", [(4096, 4096), (1000, 8192)])
def test_a_few_rows(M, N, K):
    torch.manual_seed(0)
    a, b = integers(M, K), integers(N, K)
    found = repeated(few_rows_matmul(N, K, "int8", rows=M), (M, N), torch.int32, a, b)
    assert torch.equal(found.double(), a.double() @ b.double().T)


@pytest.mark.parametrize("out", LARGEST)
@pytest.mark.parametrize(
    "M, K, options",
    [
        (77, 4096, {}),
        (1000, 96, {}),
        (3, 40000, {}),
        (77, 4096, {"group": 128, "by_group": True}),
        (33, 1000, {"group": 64}),
        (77, 4096, {"tensor": True}),
        (2000, 100, {"tensor": True}),
    ],
)
def test_activations(M, K, options, out):
    torch.manual_seed(0)
    group, tensor = options.get("group") or K, "tensor" in options
    x = torch.randn(M, K, device="cuda", dtype=torch.bfloat16)
    shape = (1, 1) if tensor else (M, -(-K // group))
    codes = torch.empty(M, K, device="cuda", dtype=getattr(torch, out))
    scales = torch.empty(shape[::-1] if options.get("by_group") else shape, device="cuda")
    quantize_activations(K, "bfloat16", out, **options)(x, codes, scales)
    wide = torch.nn.functional.pad(x.float(), (0, -K % group)).reshape(M, -1, group)
    largest = wide.abs().amax(-1)
    largest = largest.amax().expand_as(largest) if tensor else largest
    scaled = (wide * (LARGEST[out] / largest)[..., None]).reshape(M, -1)[:, :K]
    meant = (scaled.round() if out == "int8" else scaled).to(codes.dtype)
    # Divisions are not rounded alike everywhere: next to a tie the neighbour is as good.
    away = (codes.float() - meant.float()).abs()
    assert (away > 0).float().mean() < 1e-3
    assert (away <= (1.0 if out == "int8" else 2.0**-2 * meant.float().abs() + 2.0**-9)).all()
    given = scales.T if options.get("by_group") else scales
    assert torch.allclose(given.expand(M, -1), largest / LARGEST[out], rtol=1e-6)


def test_blocks_claim_tiles_launch_after_launch():
    """Tiles of many lengths; every launch finds the count of the one before put back."""

    @T.prim_func
    def triangle(A: T.Tensor((6400, 6400), "int8"), C: T.Tensor((6400, 256), "int32")):
        with T.Kernel(4, 100, threads=128, persistent="claim") as (bx, by):
            a, b = T.alloc_shared((64, 64), "int8"), T.alloc_shared((64, 64), "int8")
            c = T.alloc_fragment((64, 64), "int32")
            T.clear(c)
            for k in T.Pipelined(by + 1, num_stages=3):
                T.copy(A[by * 64, k * 64], a)
                T.copy(A[bx * 64, k * 64], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[by * 64, bx * 64])

    torch.manual_seed(0)
    kernel = tilewright.compile(triangle)
    assert "tiles are claimed" in kernel.explain()
    a = integers(6400, 6400)
    kept = a.double() * (torch.arange(6400, device="cuda") // 64 <= torch.arange(6400, device="cuda")[:, None] // 64)
    assert torch.equal(repeated(kernel, (6400, 256), torch.int32, a).double(), kept @ a[:256].double().T)


@pytest.mark.parametrize("splits, shape", [(2, (128, 256)), (4, (128, 128)), (2, (64, 64))])
@pytest.mark.parametrize("M, N, K", [(200, 1000, 4096), (77, 520, 1100)])
def test_parts_of_k_in_clusters(M, N, K, splits, shape):
    torch.manual_seed(0)
    a, b = integers(M, K, 3).to(torch.bfloat16), integers(N, K, 3).to(torch.bfloat16)
    tiles = Tiles(*shape, 64, 4, 128 * (shape[0] // 64), None, splits)
    found = repeated(dense_matmul(N, K, "bfloat16", tiles=tiles), (M, N), torch.float32, a, b)
    assert torch.equal(found.double(), a.double() @ b.double().T)


@pytest.mark.parametrize(
    "tiles",
    [
        Tiles(80, 64, 64, 6, 128, (2, 1), swapped=True), Tiles(160, 128, 64, 5, 256, (1, 2), swapped=True),
        Tiles(112, 128, 64, 5, 256, (2, 2), persistent=False, swapped=True), Tiles(64, 144, 64, 6, 128, (1, 2)),
        Tiles(128, 64, 64, 6, 128, (4, 2), persistent=False, swapped=True), Tiles(128, 128, 64, 5, 256, (2, 2)),
        Tiles(96, 128, 64, 5, 256, (2, 1), 2, False, swapped=True), Tiles(128, 128, 64, 5, 256, (1, 2), 2, False),
    ],
)  # fmt: skip
def test_tiles_of_every_height_in_clusters_along_both_axes(tiles):
    torch.manual_seed(0)
    M, N, K = 1000, 1544, 576
    a, b = integers(M, K, 3).to(torch.bfloat16), integers(N, K, 3).to(torch.bfloat16)
    found = repeated(dense_matmul(N, K, "bfloat16", out="bfloat16", tiles=tiles), (M, N), torch.bfloat16, a, b)
    assert torch.equal(found, (a.double() @ b.double().T).to(torch.bfloat16))


@pytest.mark.parametrize("shape, cluster", [((128, 256), (1, 2)), ((64, 64), (2, 1)), ((128, 128), (1, 1))])
def test_one_tile_a_block(shape, cluster):
    torch.manual_seed(0)
    M, N, K = 1000, 1544, 576
    a, b = integers(M, K, 3).to(torch.bfloat16), integers(N, K, 3).to(torch.bfloat16)
    tiles = Tiles(*shape, 64, 4, 128 * (shape[0] // 64), cluster, persistent=False)
    found = repeated(dense_matmul(N, K, "bfloat16", out="bfloat16", tiles=tiles), (M, N), torch.bfloat16, a, b)
    assert torch.equal(found, (a.double() @ b.double().T).to(torch.bfloat16))
