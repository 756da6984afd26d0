"""Weights in BitBLAS's packed forms: the order of codes as one formula, packer and unpacker derived from it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import InvalidTensor
from tilewright.formats import WORD_ORDERS, Format, number_format, pack_plain, unpack_plain
from tilewright.kernels.recipe import TILE_ROWS as ROWS
from tilewright.kernels.recipe import tile_place
from tilewright.libraries import torch
from tilewright.quant.importers.arrays import FLOATS, expect
from tilewright.quant.importers.assemble import assemble, fields
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.tensors import as_numpy


@dataclass(frozen=True, slots=True)
class BitblasOrder:
    """Where BitBLAS keeps the code of an element.

    In rows (stage 0) the place of element (n, k) in the sequence of codes is ``n * K + k``, and a row that ends within
    a byte is padded; in tiles of 16 rows it is, with the formulas of `kernels.recipe.tile_place` for the places inside
    one::

        (n // 16 * (K / columns) + k // columns) * 16 * columns + tile_place(n % 16, k % columns)

    The code at place e is bits ``bits * s`` to ``bits * s + bits`` of the 32-bit word ``e // w``, where a word holds
    ``w = 32 / bits`` codes and ``s`` is the slot with ``order[s] == e % w``; without fast decoding ``s = e % w``.

    Attributes
    ----------
    bits : of a code; 8 and 16 are whole elements.
    stage : `propagate_b`, 0 to 3.
    columns : of a tile, 16 for activations of 16 bits, 32 for those of 8, 64 for those of 4.
    order : elements of a word from its low bits to its high ones, None without fast decoding.

    Source: BitBLAS's `LadderPermutate`, `QuantCompress` and `LOP3Permutate` (Wang et al., "Ladder", OSDI 2024).
    """

    bits: int
    stage: int = 0
    columns: int = 16
    order: tuple[int, ...] | None = None

    def place(self, n: Any, k: Any, K: int) -> Any:  # of the kind of n and k
        """Place of elements (n, k) of a weight with K columns in the sequence of codes; for integers and arrays."""
        if self.stage == 0:
            return n * K + k
        tile = (n // ROWS * (K // self.columns) + k // self.columns) * ROWS * self.columns
        return tile + tile_place(n % ROWS, k % self.columns, (self.columns, self.stage))

    def check(self, N: int, K: int, name: str = "the weight") -> None:
        """A weight of N rows and K columns has this form. Raises InvalidTensor for tiles or words that do not come out
        even."""
        if self.stage and (N % ROWS or K % self.columns):
            raise InvalidTensor(
                f"{name}: propagate_b={self.stage} cuts a weight into tiles of {ROWS} x {self.columns}, "
                f"which N = {N}, K = {K} does not fill",
                hint="use propagate_b=0",
            )
        if self.order and self.bits * (N * K if self.stage else K) % 32:
            raise InvalidTensor(
                f"{name}: fast decoding interleaves codes in words of 32 bits, which a row of {K} codes of "
                f"{self.bits} bits does not fill",
                hint="use fast_decoding=False",
            )

    def shape(self, N: int, K: int) -> list[int]:
        """Shape of the packed weight, in bytes along the last dimension (in elements from 8 bits up)."""
        self.check(N, K)
        if not self.stage:
            return [N, self._stored(K)]
        return [N // ROWS, K // self.columns, ROWS, self._stored(self.columns)]

    def _stored(self, count: int) -> int:
        """Bytes that so many codes of a row take; elements from 8 bits up."""
        return count if self.bits >= 8 else -(-count * self.bits // 8)

    def pack(self, codes: np.ndarray) -> np.ndarray:
        """Codes ``[N, K]`` (uint8, or elements of 8 bits or more) to ``[N, ceil(K * bits / 8)]`` bytes (or
        elements)."""
        N, K = codes.shape
        self.check(N, K)
        if self.stage:
            tiles = codes.reshape(N // ROWS, ROWS, K // self.columns, self.columns).swapaxes(1, 2)
            codes = tiles.reshape(-1, ROWS * self.columns)[:, self._tile_order()]
        if self.bits >= 8:
            return np.ascontiguousarray(codes).reshape(N, K)
        if self.order:
            codes = codes.reshape(-1, len(self.order))[:, np.array(self.order)]
        return pack_plain(np.ascontiguousarray(codes).reshape(N, K), self.bits).reshape(N, -1)

    def unpack(self, packed: np.ndarray, N: int, K: int) -> np.ndarray:
        """Inverse of `pack`, from any shape with as many elements."""
        self.check(N, K)
        codes = packed.reshape(N, -1)
        if self.bits < 8:
            codes = unpack_plain(np.ascontiguousarray(codes).view(np.uint8), K, self.bits)
        return np.ascontiguousarray(self._ordered(codes, N, K)).reshape(N, K)

    def _ordered(self, codes: Any, N: int, K: int) -> Any:  # arrays of NumPy or tensors of torch
        """Codes in their plain order, rows of tiles together."""
        if self.order:
            codes = codes.reshape(-1, len(self.order))[:, np.argsort(self.order)]
        if self.stage:
            tiles = codes.reshape(-1, ROWS * self.columns)[:, np.argsort(self._tile_order())]
            codes = tiles.reshape(N // ROWS, K // self.columns, ROWS, self.columns).swapaxes(1, 2)
        return codes

    def plain(self, packed: np.ndarray, N: int, K: int) -> np.ndarray:
        """Packed bytes (or elements) with the codes row by row, low bits first: ``[N, K * bits / 8]``."""
        codes = self.unpack(packed, N, K)
        return codes if self.bits >= 8 else pack_plain(codes, self.bits)

    def plain_tensor(self, packed: torch.Tensor, N: int, K: int) -> torch.Tensor:
        """`plain` for a tensor of torch, where it is."""
        self.check(N, K)
        codes, share = packed.reshape(-1), max(1, 8 // self.bits)
        if self.bits < 8:
            mask = (1 << self.bits) - 1
            codes = torch.stack([codes >> (self.bits * field) & mask for field in range(share)], 1)
        codes = self._ordered(codes, N, K).reshape(N, K // share, share)
        fields = [codes[..., field] << (self.bits * field) for field in range(share)] if share > 1 else [codes[..., 0]]
        return functools.reduce(torch.bitwise_or, fields).contiguous()

    def _tile_order(self) -> np.ndarray:
        """Which element of a tile, row by row, stands at each place."""
        n, k = np.divmod(np.arange(ROWS * self.columns), self.columns)
        return np.argsort(self.place(n, k, self.columns))


def bitblas_order(bits: int, activations: str, stage: int, fast_decoding: bool) -> BitblasOrder:
    """The order for weights of so many bits beside activations of a type (BitBLAS's A_dtype), of a stage
    (`propagate_b`), with words interleaved where decoding is fast. Raises InvalidTensor: it has no interleaving for the
    pair, or no such stage."""
    if stage not in (0, 1, 2, 3):
        raise InvalidTensor(f"propagate_b is {stage!r}, where 0 to 3 is due")
    order = None
    if fast_decoding:
        if not is_interleaved(bits, activations):
            known = ", ".join(f"{b} bits beside {a}" for a, b in WORD_ORDERS)
            raise InvalidTensor(f"BitBLAS does not interleave codes of {bits} bits beside {activations}", hint=known)
        order = WORD_ORDERS[_target(activations), bits]
    return BitblasOrder(bits, stage, columns_of(activations), order)


def columns_of(activations: str) -> int:
    """Columns of a tile beside activations of some type: 32 bytes of them. What int4 multiplies is moved two codes at a
    time, as bytes are."""
    return 16 if activations in ("float16", "bfloat16") else 64 if activations in HALF_BYTES else 32


HALF_BYTES = ("int4", "uint4")


def is_offset_binary(of: Format, activations: str) -> bool:
    """Whether signed codes are stored plus half of their range: below 8 bits, but not beside int4, where bits are
    numbers as they are."""
    return of.kind == "int" and 1 < of.bits < 8 and activations not in HALF_BYTES


def is_interleaved(bits: int, activations: str) -> bool:
    """Whether BitBLAS has an order for fast decoding of codes of some bits beside activations of some type."""
    return (_target(activations), bits) in WORD_ORDERS


def _target(activations: str) -> str:
    """The type that codes are decoded to in registers."""
    return activations.removeprefix("u") if activations in ("uint8", "uint4") else activations


def stored_codes(codes: np.ndarray, of: Format, activations: str) -> np.ndarray:
    """BitBLAS's codes for ours and ours for its: where they are offset binary there, the sign bit differs."""
    return codes ^ np.uint8(1 << (of.bits - 1)) if is_offset_binary(of, activations) else codes


def from_bitblas(
    qweight: object,
    scales: object = None,
    zeros: object = None,
    *,
    W_dtype: str,
    A_dtype: str = "float16",
    N: int,
    K: int,
    group_size: int = -1,
    zeros_mode: str = "original",
    propagate_b: int = 0,
    fast_decoding: bool = False,
    native: bool = False,
    name: str = "weight",
) -> QuantizedWeight:
    """A weight as BitBLAS's ``transform_weight`` and its checkpoints have it; see `BitblasOrder` for the formula.

    Parameters
    ----------
    qweight : int8 or uint8, `BitblasOrder.shape` or the same bytes as ``[N, K * bits / 8]``.
    scales : floats ``[N, K / group_size]``.
    zeros : floats of the scales' shape; in the mode ``"quantized"`` int8 ``[K / group_size, N * bits / 8]``, packed
        along N.
    W_dtype, A_dtype : BitBLAS's names of types.
    N, K : of the weight.
    group_size : -1 for K.
    zeros_mode, propagate_b, fast_decoding : as the operator's configuration has them.
    native : signed codes are two's complement, as where W is multiplied in its own type; beside int4 they always are.
    """
    of = number_format(W_dtype)
    order = bitblas_order(of.bits, A_dtype, propagate_b, fast_decoding)
    order.check(N, K, name)
    flat = np.reshape(as_numpy(qweight), -1)
    kinds = ["int8", "uint8", "float8_e4m3fn", "float8_e5m2"]
    packed = expect(f"{name}.qweight", flat, kinds, [int(np.prod(order.shape(N, K)))], "[N * K * bits / 8]")
    codes = order.unpack(packed.view(np.uint8), N, K)
    codes = codes if native else stored_codes(codes, of, A_dtype)
    group = K if group_size == -1 else group_size
    groups = -(-K // group)
    factors = None
    if scales is not None:
        factors = expect(f"{name}.scales", scales, FLOATS, [N, groups], "[N, K / group_size]")
    points: dict[str, Any] = {"zeros_mode": zeros_mode}
    if zeros is not None and zeros_mode == "quantized":
        wide = expect(
            f"{name}.zeros", zeros, ["int8", "uint8"], [groups, -(-N * of.bits // 8)], "[K / group_size, N * bits / 8]"
        )
        points["points"] = np.ascontiguousarray(fields(wide, of.bits, N).T)
    elif zeros is not None:
        points["zeros"] = expect(f"{name}.zeros", zeros, FLOATS, [N, groups], "[N, K / group_size]")
    return assemble(name, codes, of.name, factors, group, **points)
