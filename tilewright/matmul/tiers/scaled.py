"""The tier of equal operands on GPUs: int8 by int8 and 8-bit floats, scales of tokens and channels applied to the
sums."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import numpy as np

from tilewright.ir.dtypes import dtype
from tilewright.kernels.dense_matmul import dense_matmul, scaled_matmul
from tilewright.kernels.roofline import speed_of
from tilewright.kernels.tile_choice import candidate_parts
from tilewright.kernels.tiles import Parts, Tiles
from tilewright.machine.arch import Arch
from tilewright.matmul.arrays import placed_like, viewed
from tilewright.matmul.facts import Request, WeightFacts
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.tiers.base import Machine, Operands, Prepared, begun
from tilewright.runtime.tensors import Array, as_float32, is_torch
from tilewright.tuning import Candidate


class Scaled:
    """Dense matrix instructions read the codes as they are."""

    name = "scaled"
    version = 1
    pairs = quantises = False
    machines = "GPUs"

    def runs_on(self, arch: Arch) -> bool:
        """See `Tier`."""
        return arch.has_threads

    def refuses(self, facts: WeightFacts, request: Request, arch: Arch) -> str | None:
        """See `Tier`."""
        own = facts.format.dtype
        along_k = facts.scale is not None and facts.scale.varies_along_k
        out = dtype(request.out)
        fed = any(i.a == own == i.b and i.asynchronous for i in arch.matrix_instructions)
        reasons = (
            (own is None or own.name != request.activations, f"{request.activations} by {facts.format} is "
                                                             "decoded first"),
            (not fed, f"{arch.name} has no warpgroup instruction for {request.activations}"),
            (along_k, "weight scales of groups"),
            (facts.zeros != "none" or facts.multiplier is not None, "zeros or second-level scales"),
            (facts.gather or bool(facts.slots or facts.tiles[1]), "columns or codes in another order"),
            (facts.divisors and not request.divided, "divisors of activations"),
            (request.activation_scales == "group", "activation scales of groups"),
            (request.residual or request.function is not None, "an activation function or a residual"),
            (not out.is_float and (out.name != "int32" or is_scaled(facts, request)), f"results of {request.out}"),
            (facts.K * (own.bits if own else 8) % 128 != 0, "rows that do not begin at multiples of 16 bytes"),
        )  # fmt: skip
        return next((reason for holds, reason in reasons if holds), None)

    def candidates(self, weight: PackedWeight, request: Request, machine: Machine) -> Iterator[Candidate]:
        """See `Tier`."""
        facts = weight.facts
        assert facts.format.dtype is not None
        name, speed = facts.format.dtype.name, speed_of(machine.arch)
        for parts in candidate_parts(request.rows or 4096, facts.N, facts.K, name, speed):
            yield {"parts": [{"columns": columns, **as_options(tiles)} for columns, tiles in parts]}

    def prepare(
        self, weight: PackedWeight, request: Request, machine: Machine, example: Array, options: Candidate
    ) -> Prepared:
        """See `Tier`."""
        facts = weight.facts
        assert facts.format.dtype is not None
        name = facts.format.dtype.name
        tiles: Parts = tuple((part["columns"], tiles_of(part)) for part in options["parts"])
        codes = viewed(weight.codes, facts.format.dtype)
        if not is_scaled(facts, request) and request.bias is None:
            kernel = dense_matmul.for_target(machine.arch, facts.N, facts.K, name, out=request.out, tiles=tiles)
            return Prepared(self.name, kernel, [codes], lambda call, held: (call.activations, *held, call.out))
        by_token = request.activation_scales == "token"
        kernel = scaled_matmul.for_target(
            machine.arch, facts.N, facts.K, name, out=request.out, scale_A="token" if by_token else "tensor",
            scale_B="channel",
            bias=request.bias is not None, tiles=tiles,
        )  # fmt: skip
        scales = weight.derived(("channel scales", type(example)), lambda: channel_scales(weight, example))
        ones = placed_like(np.ones(1, np.float32), example)

        def arguments(call: Operands, held: Sequence[object]) -> Sequence[object]:
            given = call.activation_scales
            of_tokens = ones if given is None else as_float32(given.reshape(-1))
            bias = () if call.bias is None else (as_float32(call.bias),)
            return (call.activations, held[0], of_tokens, held[1], *bias, call.out)

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
