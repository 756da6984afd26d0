"""The tiers of equal operands on GPUs: int8 by int8 and 8-bit floats. Scales of tokens and channels are applied to
finished sums, those of blocks to the sums of each 128 columns."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import numpy as np

from tilewright.ir.dtypes import dtype
from tilewright.kernels import Request, WeightFacts, speed_of
from tilewright.kernels.dense_matmul import SCALES_AT, dense_matmul, scaled_matmul
from tilewright.kernels.tile_choice import MANY, DenseProduct
from tilewright.kernels.tile_launches import Parts
from tilewright.kernels.tiles import BLOCK, Tiles
from tilewright.machine import Arch, MatrixInstruction
from tilewright.matmul.arrays import contiguous, placed_like, viewed, with_rows_at
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.tiers.base import Machine, Operands, Prepared, Tier, begun
from tilewright.runtime.tensors import Array, as_float32, as_numpy, is_torch
from tilewright.tuning import Candidate


class Scaled(Tier):
    """Dense matrix instructions read the codes as they are.

    Parameters
    ----------
    in_blocks : whether the weight has a scale for each 128 x 128 block: each step of 128 columns is then a product of
        its own, whose sums are scaled and added to others.
    """

    machines = "GPUs"

    def __init__(self, in_blocks: bool = False) -> None:
        self.in_blocks = in_blocks
        self.name, self.version = ("blocks", 5) if in_blocks else ("scaled", 3)

    def runs_on(self, arch: Arch) -> bool:
        return arch.has_threads

    def reasons(self, facts: WeightFacts, request: Request, arch: Arch) -> Iterator[tuple[bool, str]]:
        own, out = facts.format.dtype, dtype(request.out)
        fed = any(i.a == own == i.b and i.asynchronous for i in arch.products(MatrixInstruction))
        decoded = f"{request.activations} by {facts.format} is decoded first"
        yield own is None or own.name != request.activations, decoded
        assert own is not None
        yield self.in_blocks and not own.is_float, f"whole sums of {facts.format}, which no block's scale can enter"
        yield not fed, f"{arch.name} has no warpgroup instruction for {request.activations}"
        yield self._has_other_scales(facts)
        yield facts.zeros != "none" or facts.multiplier is not None, "zeros or second-level scales"
        yield facts.gather or bool(facts.slots or facts.tiles[1]), "columns or codes in another order"
        yield facts.divisors and not request.divided, "divisors of activations"
        groups, width = request.activation_scales == "group", request.activation_group
        if self.in_blocks:
            yield groups and width != BLOCK, f"activation scales of {width} columns"
        else:
            yield groups, "activation scales of groups"
        yield request.residual or request.function is not None, "an activation function or a residual"
        exact = out.name == "int32" and not self.in_blocks and not is_scaled(facts, request)
        yield not out.is_float and not exact, f"results of {request.out}"
        yield facts.K * own.bits % 128 != 0, "rows that do not begin at multiples of 16 bytes"

    def _has_other_scales(self, facts: WeightFacts) -> tuple[bool, str]:
        """Whether the weight has scales of other parts, and what to say of it."""
        scale = facts.scale
        along_k = scale is not None and scale.varies_along_k
        if not self.in_blocks:
            return along_k, "weight scales of groups"
        blocks = scale is not None and along_k and (facts.group, scale.rows_each) == (BLOCK, BLOCK)
        return not blocks, f"the weight has no scales of {BLOCK} x {BLOCK} blocks"

    def candidates(self, weight: PackedWeight, request: Request, machine: Machine) -> Iterator[Candidate]:
        size, kind, speed = (weight.facts.N, weight.facts.K), request.activations, speed_of(machine.arch)
        product = DenseProduct(*size, kind, speed, promoted=self.in_blocks, in_blocks=self.in_blocks)
        for parts in product.candidates(request.rows or MANY):
            yield {"parts": [{"columns": columns, **as_options(tiles)} for columns, tiles in parts]}

    def prepare(
        self, weight: PackedWeight, request: Request, machine: Machine, example: Array, options: Candidate
    ) -> Prepared:
        facts, own = weight.facts, weight.facts.format.dtype
        assert own is not None
        tiles: Parts = tuple((part["columns"], tiles_of(part)) for part in options["parts"])
        codes = viewed(weight.codes, own)
        if not is_scaled(facts, request) and request.bias is None:
            kernel = dense_matmul.for_target(machine.arch, facts.N, facts.K, own.name, out=request.out, tiles=tiles)
            return Prepared(self.name, kernel, [codes], lambda call, held: (call.activations, *held, call.out))
        kind = request.activation_scales if request.activation_scales in ("group", "token") else "tensor"
        kernel = scaled_matmul.for_target(
            machine.arch,
            facts.N,
            facts.K,
            own.name,
            out=request.out,
            scale_A=kind,
            scale_B="block" if self.in_blocks else "channel",
            bias=request.bias is not None,
            tiles=tiles,
        )
        own_scales = block_scales if self.in_blocks else channel_scales
        scales = weight.derived((self.name, type(example)), lambda: own_scales(weight, example))
        one = placed_like(np.ones(1, np.float32), example)

        def arguments(call: Operands, held: Sequence[object]) -> Sequence[object]:
            given = call.activation_scales
            if given is None:
                of_rows = one
            elif kind == "group":
                of_rows = with_rows_at(SCALES_AT, as_float32(given).T)
            else:
                of_rows = contiguous(as_float32(given.reshape(-1)))
            bias = () if call.bias is None else (contiguous(as_float32(call.bias)),)
            return (call.activations, held[0], of_rows, held[1], *bias, call.out)

        return Prepared(self.name, begun(kernel, example), [codes, scales], arguments)


def as_options(tiles: Tiles) -> dict[str, object]:
    """Tiles as they are kept on disk."""
    return asdict(tiles)


def tiles_of(options: Candidate) -> Tiles:
    """Inverse of `as_options`; what else there is is left alone."""
    given = {name: options[name] for name in Tiles.__dataclass_fields__ if name in options}
    return Tiles(**{**given, "cluster": None if given["cluster"] is None else tuple(given["cluster"])})


def is_scaled(facts: WeightFacts, request: Request) -> bool:
    """Whether sums are multiplied by anything."""
    return facts.scale is not None or facts.factor or request.activation_scales != "none"


def channel_scales(weight: PackedWeight, example: Array) -> Array:
    """A weight's scales, one float32 a row of it, on the device of `example`."""
    codes, scales = weight.held["codes"], weight.held.get("scales")
    if is_torch(codes):
        wide = codes.new_ones((1, 1), dtype=sys.modules["torch"].float64) if scales is None else scales.float().double()
        (N, _), (rows, _) = weight.shape, weight.block
        down = (wide * weight.tensor_scale).float().expand(-(-N // rows), 1)
        return down.repeat_interleave(rows, 0)[:N].reshape(-1).contiguous()
    return placed_like(np.ascontiguousarray(weight.unpack().grouped_scales[0]), example)


def block_scales(weight: PackedWeight, example: Array) -> Array:
    """A weight's scales of blocks with its tensor scale in them, float32."""
    scales = as_numpy(weight.held["scales"]).astype(np.float32) * np.float32(weight.tensor_scale)
    return placed_like(np.ascontiguousarray(scales), example)
