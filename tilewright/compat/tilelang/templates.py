"""``tilelang.carver``'s templates: a kind of work says how it may be cut, and a model of the machine ranks the ways.

>>> from tilewright.compat.tilelang.carver import CUDA, MatmulTemplate
>>> hints = MatmulTemplate(M=1024, N=1024, K=1024).with_arch(CUDA("cuda -arch=sm_90a")).recommend_hints(topk=3)
>>> len(hints), hints[0].block[0] % 16
(3, 0)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tilewright.language as T
from tilewright.compat.tilelang import hints
from tilewright.kernels.roofline import Speed
from tilewright.language.trace import PrimFunc
from tilewright.specialization import InvalidUse

MOST_STAGES = 4
LARGE_TILE = 128 * 256
"""Sums of a block that eight warps share, and not four."""


@dataclass
class _Product(hints.BaseTemplate):
    """What is a product of matrices, whatever the author calls its dimensions."""

    def extents(self) -> tuple[int, int, int]:
        """Rows, columns, and what is summed."""
        raise NotImplementedError

    def _types(self) -> tuple[object, object]:
        return self.in_dtype, self.accum_dtype  # type: ignore[attr-defined]

    def candidates(self) -> Iterable[hints.Hint]:
        rows, columns, deep = self.extents()
        machine, size = self.arch.machine, hints.bytes_of(self._types()[0])
        room = machine.shared_bytes if machine.has_threads else 1 << 20
        most = [min(256, max(16, hints.next_power(extent))) for extent in (rows, columns)]
        for m, n in itertools.product(hints.powers(16, most[0]), hints.powers(16, most[1])):
            if m * n > LARGE_TILE or m * n < min(1024, most[0] * most[1]):
                continue
            warps = min(8 if m * n > LARGE_TILE // 2 else 4, max(1, m * n // 256))
            across = min(hints.next_power(int(math.sqrt(warps * m / n)) or 1), m // 16, warps)
            for k in hints.powers(16, 128):
                held = (m + n) * k * size
                stages = min(MOST_STAGES, int(room // held), max(1, -(-deep // k)))
                if stages < 1 or (k > deep and k > 16) or n // max(1, warps // across) < 8:
                    continue
                order = hints.Rasterization2DColumn(10) if rows > 4 * m and columns > 4 * n else hints.NoRasterization()
                yield hints.Hint(
                    block=[m, n],
                    warp=[m // across, n // (warps // across)],
                    rstep=[k],
                    use_tc=True,
                    pipeline_stage=stages,
                    use_async=stages > 1,
                    rasterization_plan=order,
                    arch=self.arch,
                )

    def took(self, hint: hints.Hint, speed: Speed) -> float:
        rows, columns, deep = self.extents()
        (m, n), (k,), size = hint.block, hint.rstep, hints.bytes_of(self._types()[0])
        blocks, steps = -(-rows // m) * -(-columns // n), -(-deep // k)
        rate = dict(speed.products).get(max(1, int(size)), min(rate for _, rate in speed.products))
        products = m * n * k / (rate * min(1.0, m * n / 4096))
        loads = (m + n) * k * size / speed.cache
        hidden = 0.3 if hint.pipeline_stage > 2 else 1.0
        return hints.waves_of(blocks, speed) * (
            steps * (max(products, loads) + hidden * min(products, loads) + 40) + 1500
        )


@dataclass
class MatmulTemplate(_Product):
    """``C[M, N] = A[M, K] B[N, K]``, either of them transposed."""

    M: int = 0
    N: int = 0
    K: int = 0
    trans_A: bool = False
    trans_B: bool = True
    in_dtype: str = "float16"
    out_dtype: str = "float16"
    accum_dtype: str = "float16"
    with_bias: bool = False
    sizes = ("M", "N", "K")

    def extents(self) -> tuple[int, int, int]:
        return self.M, self.N, self.K

    def equivalent_function(self) -> PrimFunc:
        M, N, K, across_A, across_B = self.M, self.N, self.K, self.trans_A, self.trans_B
        given, made, total = self.in_dtype, self.out_dtype, self.accum_dtype

        @T.prim_func
        def main(
            A: T.Tensor((K, M) if across_A else (M, K), given),
            B: T.Tensor((N, K) if across_B else (K, N), given),
            C: T.Tensor((M, N), made),
        ) -> None:
            with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
                sums = T.alloc_fragment((64, 64), total)
                T.clear(sums)
                for k in T.serial(K):
                    for i, j in T.Parallel(64, 64):
                        a = A[k, by * 64 + i] if across_A else A[by * 64 + i, k]
                        b = B[bx * 64 + j, k] if across_B else B[k, bx * 64 + j]
                        sums[i, j] += T.cast(a, total) * T.cast(b, total)
                T.copy(sums, C[by * 64, bx * 64])

        return main


@dataclass
class ConvTemplate(_Product):
    """A convolution of ``[N, H, W, C]`` by ``[K, K, C, F]`` with stride S, dilation D and padding P."""

    N: int = 0
    C: int = 0
    H: int = 0
    W: int = 0
    F: int = 0
    K: int = 0
    S: int = 1
    D: int = 1
    P: int = 0
    in_dtype: str = "float16"
    out_dtype: str = "float16"
    accum_dtype: str = "float16"
    with_bias: bool = False
    sizes = ("N", "C", "H", "W", "F", "K", "S", "D")

    def _made(self) -> tuple[int, int]:
        high, wide = ((size + 2 * self.P - self.D * (self.K - 1) - 1) // self.S + 1 for size in (self.H, self.W))
        return high, wide

    def extents(self) -> tuple[int, int, int]:
        high, wide = self._made()
        return self.N * high * wide, self.F, self.K * self.K * self.C

    def equivalent_function(self) -> PrimFunc:
        N, C, H, W, F, K, S, D, P = (getattr(self, name) for name in "NCHWFKSDP")
        high, wide = self._made()
        given, made, total = self.in_dtype, self.out_dtype, self.accum_dtype

        @T.prim_func
        def main(
            A: T.Tensor((N, H, W, C), given), B: T.Tensor((K, K, C, F), given), O: T.Tensor((N, high, wide, F), made)
        ) -> None:
            with T.Kernel(N * high * wide, threads=128) as row:
                sums = T.alloc_fragment((F,), total)
                T.clear(sums)
                for y, x, c in T.grid(K, K, C):
                    at_y = row // wide % high * S + y * D - P
                    at_x = row % wide * S + x * D - P
                    if at_y >= 0 and at_y < H and at_x >= 0 and at_x < W:
                        for f in T.Parallel(F):
                            sums[f] += T.cast(A[row // (high * wide), at_y, at_x, c], total) * T.cast(
                                B[y, x, c, f], total
                            )
                for f in T.Parallel(F):
                    O[row // (high * wide), row // wide % high, row % wide, f] = sums[f]

        return main


@dataclass
class FlashAttentionTemplate(_Product):
    """Attention: tiles of queries by tiles of keys."""

    batch_size: int = 1
    num_heads: int = 1
    head_dim: int = 1
    seq_length: int = 1
    seq_kv_length: int = 1
    is_causal: bool = False
    in_dtype: str = "float16"
    out_dtype: str = "float16"
    accum_dtype: str = "float16"
    sizes = ("batch_size", "num_heads", "head_dim", "seq_length", "seq_kv_length")

    def extents(self) -> tuple[int, int, int]:
        return self.batch_size * self.num_heads * self.seq_length, self.seq_kv_length, self.head_dim

    def equivalent_function(self) -> PrimFunc:
        heads, S, S_kv, D = self.batch_size * self.num_heads, self.seq_length, self.seq_kv_length, self.head_dim
        given, made = self.in_dtype, self.out_dtype

        @T.prim_func
        def main(
            Q: T.Tensor((heads, S, D), given),
            K: T.Tensor((heads, S_kv, D), given),
            V: T.Tensor((heads, S_kv, D), given),
            O: T.Tensor((heads, S, D), made),
        ) -> None:
            with T.Kernel(S, heads, threads=128) as (row, head):
                products, result = T.alloc_fragment((D,), "float32"), T.alloc_fragment((D,), "float32")
                score, total = T.alloc_fragment((1,), "float32"), T.alloc_fragment((1,), "float32")
                most, scale = T.alloc_fragment((1,), "float32"), T.alloc_fragment((1,), "float32")
                T.clear(result)
                T.clear(total)
                T.fill(most, -T.infinity("float32"))
                for key in T.serial(S_kv):
                    for d in T.Parallel(D):
                        products[d] = T.cast(Q[head, row, d], "float32") * T.cast(K[head, key, d], "float32")
                    T.reduce_sum(products, score, dim=0)
                    for i in T.Parallel(1):
                        scale[i] = T.exp(most[i] - T.max(most[i], score[i]))
                        most[i] = T.max(most[i], score[i])
                        score[i] = T.exp(score[i] - most[i])
                        total[i] = total[i] * scale[i] + score[i]
                    for d in T.Parallel(D):
                        result[d] = result[d] * scale[0] + score[0] * T.cast(V[head, key, d], "float32")
                for d in T.Parallel(D):
                    O[head, row, d] = result[d] / total[0]

        return main


@dataclass
class _Passing(hints.BaseTemplate):
    """What memory is waited for alone: a row of results, and what is summed for each."""

    def shape_of(self) -> tuple[Sequence[int], int, float]:
        """Extents of the result, what is summed, bytes of an element."""
        raise NotImplementedError

    def candidates(self) -> Iterable[hints.Hint]:
        extents, summed, size = self.shape_of()
        *outer, last = extents
        lanes = max(1, int(16 // size))
        for threads, each in itertools.product((64, 128, 256), (1, 2, 4, 8)):
            if summed == 1:
                wide = min(hints.next_power(last), threads * each)
                rest = max(1, threads * each // wide)
                block = [*(1 for _ in outer[:-1]), *([min(rest, hints.next_power(outer[-1]))] if outer else []), wide]
                thread = [*block[:-1], max(1, wide // each)]
                yield hints.Hint(block=block, thread=thread, vectorize={"A": min(each, lanes)}, arch=self.arch)
                continue
            for sharing in hints.powers(8, threads):
                rows = threads // sharing
                step = min(hints.next_power(summed), sharing * each)
                block = [*(1 for _ in outer), rows]
                yield hints.Hint(
                    block=block,
                    thread=list(block),
                    rstep=[step],
                    reduce_thread=[sharing],
                    vectorize={"A": min(each, lanes)},
                    arch=self.arch,
                )

    def took(self, hint: hints.Hint, speed: Speed) -> float:
        extents, summed, size = self.shape_of()
        blocks = math.prod(-(-extent // tile) for extent, tile in zip(extents, hint.block, strict=True))
        threads = math.prod(hint.thread) * math.prod(hint.reduce_thread)
        read = math.prod(hint.block) * (-(-summed // hint.rstep[0]) * hint.rstep[0] if hint.rstep else 1) * size
        together = max(1, min(2048 // max(32, threads), -(-blocks // speed.cores)))
        in_flight = together * threads * hint.vectorize["A"] * size
        served = min(speed.memory / speed.cores, in_flight / 600)
        sums = 30 * math.log2(hint.reduce_thread[0]) if hint.reduce_thread else 0
        return hints.waves_of(blocks, speed) / together * (together * read / served + sums + 600)


@dataclass
class GEMVTemplate(_Passing):
    """``C[N] = A[K] B[N, K]``."""

    N: int = 0
    K: int = 0
    trans_B: bool = True
    in_dtype: str = "float16"
    out_dtype: str = "float16"
    accum_dtype: str = "float16"
    with_bias: bool = False
    sizes = ("N", "K")

    def shape_of(self) -> tuple[Sequence[int], int, float]:
        return (self.N,), self.K, hints.bytes_of(self.in_dtype)

    def equivalent_function(self) -> PrimFunc:
        return MatmulTemplate(
            1, self.N, self.K, False, self.trans_B, self.in_dtype, self.out_dtype, self.accum_dtype
        ).equivalent_function()


@dataclass
class ElementwiseTemplate(_Passing):
    """One result for each element of a shape."""

    shape: Sequence[int] = ()
    dtype: Any = "float16"

    def shape_of(self) -> tuple[Sequence[int], int, float]:
        return tuple(self.shape), 1, hints.bytes_of(self.dtype)

    def equivalent_function(self) -> PrimFunc:
        count, dtype = math.prod(self.shape), self.dtype

        @T.prim_func
        def main(A: T.Tensor((count,), dtype), B: T.Tensor((count,), dtype)) -> None:
            with T.Kernel(T.ceildiv(count, 1024), threads=128) as block:
                for i in T.Parallel(1024):
                    B[block * 1024 + i] = A[block * 1024 + i] + T.cast(1, dtype)

        return main


@dataclass
class GeneralReductionTemplate(_Passing):
    """Sums: `structure` has an S for each dimension that stays and an R for each that is summed."""

    structure: str | Sequence[str] = ""
    shape: Sequence[int] = ()
    dtype: Any = "float16"

    def __post_init__(self) -> None:
        super().__post_init__()
        letters = "".join(self.structure)
        if len(letters) != len(self.shape) or not set(letters) <= set("SR"):
            raise InvalidUse(
                f"structure={self.structure!r} does not say which of {len(self.shape)} dimensions are summed",
                hint="write one S or R for each, such as 'SSR'",
            )

    def shape_of(self) -> tuple[Sequence[int], int, float]:
        kept = [size for letter, size in zip(self.structure, self.shape, strict=True) if letter == "S"] or [1]
        summed = math.prod(size for letter, size in zip(self.structure, self.shape, strict=True) if letter == "R")
        return kept, summed, hints.bytes_of(self.dtype)

    def equivalent_function(self) -> PrimFunc:
        letters, shape, dtype = "".join(self.structure), tuple(self.shape), self.dtype
        kept = [size for letter, size in zip(letters, shape, strict=True) if letter == "S"]
        summed = [size for letter, size in zip(letters, shape, strict=True) if letter == "R"]

        @T.prim_func
        def main(A: T.Tensor(shape, dtype), B: T.Tensor((math.prod(kept),), dtype)) -> None:
            with T.Kernel(math.prod(kept), threads=32) as row:
                total: Any = T.alloc_var("float32", init=0)
                for step in T.serial(math.prod(summed)):
                    stays, goes = (
                        T.index_to_coordinates(row, kept or (1,)),
                        T.index_to_coordinates(step, summed or (1,)),
                    )
                    place = [(stays if letter == "S" else goes).pop(0) for letter in letters]
                    total += T.cast(A[tuple(place)], "float32")
                B[row] = total

        return main
