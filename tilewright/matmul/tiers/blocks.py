"""The tier of 8-bit operands whose weight has a scale for each 128 x 128 block: sums of 128 products are scaled and
added up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.ir.dtypes import dtype
from tilewright.kernels.dense_matmul import SCALES_AT, scaled_matmul
from tilewright.kernels.roofline import speed_of
from tilewright.kernels.tile_choice import candidate_parts
from tilewright.kernels.tiles import BLOCK, Parts
from tilewright.machine.arch import Arch
from tilewright.matmul.arrays import as_numpy, contiguous, placed_like, viewed, with_rows_at
from tilewright.matmul.facts import Request, WeightFacts
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.tiers.base import Machine, Operands, Prepared, begun
from tilewright.matmul.tiers.scaled import as_options, tiles_of
from tilewright.runtime.tensors import Array, as_float32
from tilewright.tuning import Candidate


class Blocks:
    """Warpgroup instructions read the codes as they are; each step of 128 columns is a product of its own."""

    name = "blocks"
    version = 3
    pairs = quantises = False
    machines = "GPUs"

    def runs_on(self, arch: Arch) -> bool:
        """See `Tier`."""
        return arch.has_threads

    def refuses(self, facts: WeightFacts, request: Request, arch: Arch) -> str | None:
        """See `Tier`."""
        own, scale = facts.format.dtype, facts.scale
        whole = scale is not None and scale.varies_along_k and (facts.group, scale.rows_each) == (BLOCK, BLOCK)
        fed = any(i.a == own == i.b and i.asynchronous for i in arch.matrix_instructions)
        reasons = (
            (own is None or own.name != request.activations, f"{request.activations} by {facts.format} is "
                                                             "decoded first"),
            (own is not None and not own.is_float, f"whole sums of {facts.format}, which no block's scale can enter"),
            (not fed, f"{arch.name} has no warpgroup instruction for {request.activations}"),
            (not whole, f"the weight has no scales of {BLOCK} x {BLOCK} blocks"),
            (facts.zeros != "none" or facts.multiplier is not None, "zeros or second-level scales"),
            (facts.gather or bool(facts.slots or facts.tiles[1]), "columns or codes in another order"),
            (facts.divisors and not request.divided, "divisors of activations"),
            (request.activation_scales == "group" and request.activation_group != BLOCK,
             f"activation scales of {request.activation_group} columns"),
            (request.residual or request.function is not None, "an activation function or a residual"),
            (not dtype(request.out).is_float, f"results of {request.out}"),
            (facts.K % 16 != 0, "rows that do not begin at multiples of 16 bytes"),
        )  # fmt: skip
        return next((reason for holds, reason in reasons if holds), None)

    def candidates(self, weight: PackedWeight, request: Request, machine: Machine) -> Iterator[Candidate]:
        """See `Tier`."""
        facts, speed = weight.facts, speed_of(machine.arch)
        for parts in candidate_parts(
            request.rows or 4096, facts.N, facts.K, request.activations, speed, in_blocks=True
        ):
            yield {"parts": [{"columns": columns, **as_options(tiles)} for columns, tiles in parts]}

    def prepare(
        self, weight: PackedWeight, request: Request, machine: Machine, example: Array, options: Candidate
    ) -> Prepared:
        """See `Tier`."""
        facts = weight.facts
        assert facts.format.dtype is not None
        kind = request.activation_scales if request.activation_scales in ("group", "token") else "tensor"
        tiles: Parts = tuple((part["columns"], tiles_of(part)) for part in options["parts"])
        kernel = scaled_matmul.for_target(
            machine.arch, facts.N, facts.K, facts.format.dtype.name, out=request.out, scale_A=kind, scale_B="block",
            bias=request.bias is not None, tiles=tiles,
        )  # fmt: skip
        codes = viewed(weight.codes, facts.format.dtype)
        scales = weight.derived(("block scales", type(example)), lambda: _block_scales(weight, example))
        one = placed_like(np.ones(1, np.float32), example)

        def arguments(call: Operands, held: Sequence[object]) -> Sequence[object]:
            given = call.activation_scales
            if given is None:
                scales = one
            elif kind == "group":
                scales = with_rows_at(SCALES_AT, as_float32(given).T)
            else:
                scales = contiguous(as_float32(given.reshape(-1)))
            bias = () if call.bias is None else (contiguous(as_float32(call.bias)),)
            return (call.activations, held[0], scales, held[1], *bias, call.out)

        return Prepared(self.name, begun(kernel, example), [codes, scales], arguments)


def _block_scales(weight: PackedWeight, example: Array) -> Array:
    """The weight's scales with its tensor scale in them."""
    scales = as_numpy(weight.held["scales"]).astype(np.float32) * np.float32(weight.tensor_scale)
    return placed_like(np.ascontiguousarray(scales), example)
