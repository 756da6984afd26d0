"""The Hopper models, launched by our own host code beside the hand-written originals and torch."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_runner import text

from tilewright.ir.dtypes import ALL
from tilewright.targets.cuda.arch import ARCHITECTURES
from tilewright.targets.cuda.compiler import compile_text
from tilewright.targets.cuda.instructions import ENGINE
from tilewright.targets.cuda.launcher import TENSOR_MAP, CudaKernel, LaunchShape, PreparedKernel
from tilewright.targets.cuda.tma import encoded
from tilewright.targets.gpu.copies.boxes import Swizzle
from tilewright.targets.gpu.copies.tensor_maps import BoxDescriptor
from tilewright.targets.gpu.host import POINTER

BF16 = ALL["bfloat16"]
HOPPER = ARCHITECTURES["sm_90a"]


@dataclass(frozen=True)
class GemmTile:
    """One instance of the GEMM model: its text and sizes."""

    name: str
    bm: int
    bn: int
    stages: int
    cm: int
    cn: int

    @property
    def shared_bytes(self) -> int:
        return self.stages * (self.bm + self.bn) * 128 + 4 * 64 * 128 + 16 * self.stages

    def prepare(self) -> PreparedKernel:
        binary = compile_text(text(self.name, "hopper_gemm_body"), HOPPER)
        codes = (TENSOR_MAP,) * 3 + ("i",) * 5
        shape = LaunchShape(384, self.shared_bytes, (self.cm * self.cn, 1, 1))
        return CudaKernel(binary.image, "hopper_gemm", codes).prepare(shape)


TILES = {1: GemmTile("hopper_gemm_128x256", 128, 256, 4, 2, 1), 2: GemmTile("hopper_gemm_256x192", 256, 192, 3, 1, 2)}
"""By the number that the original gives them."""


def matrix_map(pointer: int, rows: int, columns: int, box_rows: int) -> bytes:
    """Row-major bfloat16, boxes of 64 columns in the 128-byte swizzle."""
    return encoded(BoxDescriptor(ENGINE, BF16, pointer, (columns, rows), (columns * 2,), (64, box_rows), Swizzle.B128))


class Gemm:
    """C = A B^T by the model's text."""

    def __init__(self, tile: GemmTile) -> None:
        self.tile, self.kernel = tile, tile.prepare()
        self.resident = self.kernel.active_clusters()

    def __call__(self, a: Any, b: Any, c: Any) -> None:
        (m, k), n, tile = a.shape, b.shape[0], self.tile
        tiles_m, tiles_n = -(-m // (tile.bm * tile.cm)), -(-n // (tile.bn * tile.cn))
        total = tiles_m * tiles_n
        waves = -(-total // self.resident)
        grid = -(-total // waves) * tile.cm * tile.cn
        maps = (
            matrix_map(a.data_ptr(), m, k, tile.bm // tile.cn), matrix_map(b.data_ptr(), n, k, tile.bn // tile.cm),
            matrix_map(c.data_ptr(), m, n, 64),
        )  # fmt: skip
        self.kernel((grid, 1, 1), (*maps, -(-k // 64), tiles_m, tiles_n, 2048 // (tile.bm * tile.cm), total))


class W4A16:
    """The small-M kernel for K = 8192 and M <= 8."""

    K, WARPS, G, STAGES, BLOCK, NT, RD = 8192, 16, 4, 2, 1056, 8, 3

    def __init__(self, dependent: bool = False) -> None:
        ring = self.WARPS * self.STAGES * self.G * self.BLOCK
        shared = ring + self.RD * self.WARPS * self.NT * 64 + (self.WARPS * self.STAGES + 2 * self.RD) * 8
        binary = compile_text(text("hopper_w4a16_few"), HOPPER)
        shape = LaunchShape(self.WARPS * 32, shared, dependent=dependent)
        self.kernel = CudaKernel(binary.image, "w4a16_few", (POINTER,) * 3 + ("i", "i")).prepare(shape)

    def __call__(self, packed: Any, x: Any, y: Any, blocks: int = 132) -> None:
        (m, _), n = x.shape, y.shape[1]
        values = (packed.data_ptr(), x.data_ptr(), y.data_ptr(), m, n)
        self.kernel((min(blocks, n // 16), 1, 1), values)


def pack_w4(codes: Any, scales: Any) -> Any:
    """Codes [N, K] of uint8 and half scales [N, K / 128] as the kernel's blocks of 16 rows by 128."""
    import torch

    n, k = codes.shape
    rows, groups = n // 16, k // 128
    split = (
        codes.reshape(rows, 2, 8, groups, 2, 4, 2, 4, 2)
        .permute(0, 3, 4, 2, 7, 5, 8, 6, 1)
        .reshape(rows, groups, 1024, 2)
    )
    nibbles = split[..., 0] | split[..., 1] << 4
    tails = (
        scales.reshape(rows, 2, 8, groups).permute(0, 3, 2, 1).contiguous().view(torch.uint8).reshape(rows, groups, 32)
    )
    return torch.cat([nibbles, tails], dim=2).contiguous()


def original(directory: Path, name: str) -> ctypes.CDLL | None:
    """A hand-written original as a library, built here with nvcc where it has to be; None where it is not here."""
    source, library = directory / f"{name}.cu", directory / f"lib{name}.so"
    if not library.exists():
        if not source.exists():
            return None
        flags = ["-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-Xcompiler", "-fPIC", "-shared"]
        subprocess.run(["nvcc", *flags, "-o", str(library), str(source)], check=True, capture_output=True)
    return ctypes.CDLL(str(library))


def original_gemm(library: ctypes.CDLL, tile: int) -> Callable[[Any, Any, Any], None]:
    """The original GEMM with one of its tiles."""
    import torch

    def run(a: Any, b: Any, c: Any) -> None:
        (m, k), n = a.shape, b.shape[0]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (a, b, c))
        result = library.hopper_gemm_bf16(*pointers, m, n, k, tile, stream)
        assert result == 0, result

    return run


def original_w4a16(library: ctypes.CDLL, dependent: bool = False) -> Callable[[Any, Any, Any], None]:
    """The original's first instance: K = 8192, M <= 8."""
    import torch

    def run(packed: Any, x: Any, y: Any) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (packed, x, y))
        result = library.w4a16_run(0, *pointers, x.shape[0], y.shape[1], x.shape[1], 132, int(dependent), stream)
        assert result == 0, result

    return run
