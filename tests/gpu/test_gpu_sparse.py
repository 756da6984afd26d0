"""2:4 sparse products on the GPU: every type of the library's kernel, exact on integers, the same bits every time."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "cuda" / "programs"))
from sparse_matmul import pack_metadata, sparse_matmul
from test_gpu_dense import repeated

from tilewright.formats.sparse import compress, prune
from tilewright.kernels.tiles import Tiles
from tilewright.targets.cuda.arch import detect

torch = pytest.importorskip("torch")

ARCH = detect()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(ARCH is None or not ARCH.has("wgmma"), reason="no Hopper GPU here")]

DEEP = Tiles(256, 128, 128, 3, 256)


@pytest.mark.parametrize("M, N, K", [(1024, 520, 640), (200, 72, 1664)])
@pytest.mark.parametrize(
    "dtype, out, tiles",
    [
        ("float16", "float32", None), ("float16", "float16", DEEP), ("bfloat16", "float32", None), ("int8", "int32", None),
        ("float8_e4m3fn", "bfloat16", None), ("int8", "bfloat16", None),
    ],
)  # fmt: skip
def test_products(M, N, K, dtype, out, tiles):
    random = np.random.default_rng(M)
    a, b = prune(random.integers(-3, 4, (M, K))), random.integers(-3, 4, (N, K))
    kept, metadata = compress(a)
    kind = getattr(torch, dtype)
    arguments = [torch.from_numpy(one).float().cuda().to(kind) for one in (kept, b)]
    packed = torch.from_numpy(pack_metadata(metadata, dtype, tiles)).cuda()
    kernel = sparse_matmul(M, K, dtype, out, tiles=tiles)
    found = repeated(kernel, (M, N), getattr(torch, out), arguments[0], packed, arguments[1])
    exact = torch.from_numpy((a @ b.T).astype(np.float64)).cuda().to(getattr(torch, out))
    assert torch.equal(found, exact)
