"""BitBLAS's propagated int8 weights as they lie, on Hopper: their tiles are what the registers of matrix instructions
hold.

No packed weight is made: the kernel of the tier `bytes` copies the caller's own bytes into shared memory, and a lane's
16 bytes of a tile are its share of the instruction's left operand (`FragmentRecords.ladder`).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from tilewright.ir.dtypes import ALL, UINT32
from tilewright.kernels import Request, Speed, WeightFacts, speed_of
from tilewright.kernels.hopper_quant_bytes import LONGEST
from tilewright.kernels.hopper_quant_bytes_choice import byte_quant_candidates, fitted
from tilewright.machine import COLUMNS, Arch, FragmentRecords
from tilewright.matmul.arrays import placed_like, viewed
from tilewright.matmul.tiers.base import Machine, Prepared, kept_under, made_once
from tilewright.matmul.tiers.bytes import byte_arguments, byte_kernel
from tilewright.runtime.tensors import Array
from tilewright.tuning import Candidate, Database

NAME, VERSION = "ladder", 1

FORM = FragmentRecords(8, ALL["int8"], ladder=True)

TILES = (32, 3)
"""Columns of BitBLAS's tiles of int8 weights, and the order inside them: ``propagate_b=3``."""


def refuses(facts: WeightFacts, request: Request, arch: Arch) -> str | None:
    """Why the caller's bytes are not multiplied as they lie; None where they are."""
    scale = facts.scale
    reasons = (
        (not arch.starts_products, f"it is for Hopper, not {arch.target} {arch.name}"),
        (facts.format.name != "int8" or facts.tiles != TILES, "codes in another order than that of propagated int8"),
        (facts.K % COLUMNS != 0, f"K is no multiple of {COLUMNS}"),
        (facts.K > LONGEST, f"sums of {facts.K} products"),
        (request.activations not in ("int8", "uint8"), f"activations of {request.activations}"),
        (scale is not None and (scale.columns > 1 or scale.rows != facts.N), "scales other than those of channels"),
        (facts.zeros != "none" or facts.multiplier is not None, "zeros or second-level scales"),
        (facts.gather or facts.divisors, "columns in another order, or divisors of activations"),
        (request.activation_scales == "group", "activation scales of groups"),
        (request.quantize is not None, "activations are quantised first"),
    )
    return next((reason for holds, reason in reasons if holds), None)


def key(facts: WeightFacts, request: Request, arch: Arch) -> str:
    """The key of tuning's result."""
    model = choice(facts.N, facts.K, request.rows, speed_of(arch))
    return kept_under(f"{NAME} {VERSION}", facts, request, arch, model)


FEW = 64
"""Up to here the caller's bytes are multiplied faster than our own order; the kernels for that stay for many tiles,
which pays for more rows."""


def choice(N: int, K: int, M: int, speed: Speed) -> dict[str, int]:
    """The sizes that the kernel is called with for up to `M` rows of A, found on an H200."""
    sizes = byte_quant_candidates(N, K, FORM, False, speed=speed).choice(M)
    if sizes["tokens"] == 256:
        # Slots of both operands as deep; blocks that run at once share the weight, in the second-level cache.
        return {**sizes, "sharing": 1, "records": 1, "stages": 5, "weight_stages": 4, "by_tokens": True}
    blocks = -(-N // 128) * -(-M // sizes["tokens"])
    waves, wide = (math.ceil(count / speed.cores) for count in (blocks, math.ceil(blocks / 2)))
    # A second wave of a few blocks takes as long as blocks twice as large.
    tiles = 2 if 2 * wide <= waves else 1
    return {**fitted(FORM, {**sizes, "tiles": tiles}, FORM.shape(N, K)[1]), "by_tokens": sizes["tokens"] < M}


def candidates(facts: WeightFacts, request: Request, arch: Arch) -> list[Candidate]:
    """Sizes of the kernel: the model's choice, then what suits other numbers of rows and columns."""
    found: dict[str, Candidate] = {}
    for rows in (request.rows, 2 * request.rows, max(request.rows // 2, 1), 8, 16, 32, 64, 128, 256, 1024, 4096):
        for columns in (facts.N, 4 * facts.N, max(facts.N // 4, 1)):
            options = choice(columns, facts.K, rows, speed_of(arch))
            found.setdefault(repr(options), options)
    return list(found.values())


class LadderCall:
    """The kernel for one kind of call, with one element in the place of each tensor that it does not use."""

    def __init__(self, of: tuple[WeightFacts, Request], machine: Machine, example: Array, options: Candidate) -> None:
        facts, request = of
        of_weight = {} if facts.scale is None else {"by_channel": True, "scale_type": facts.scale.dtype}
        self.kernel = byte_kernel((facts.N, facts.K), FORM, request, machine.arch, **of_weight, **options)
        self.shape = FORM.shape(facts.N, facts.K)
        self._no_scales = placed_like(np.ones(1, np.float32), example)
        self._arguments = byte_arguments(request, example)

    def prepared(self, given: dict[str, Any]) -> Prepared:
        """The product with a weight's bytes and scales."""
        scales = given.get("scales")
        words = viewed(given["codes"].reshape(-1), UINT32).reshape(self.shape)
        held = [words, self._no_scales if scales is None else scales.reshape(-1)]
        return Prepared(NAME, self.kernel, held, self._arguments)


@functools.lru_cache(maxsize=1024)
def chosen(facts: WeightFacts, request: Request, arch: Arch) -> Candidate:
    """What tuning found for calls of a kind, else the model's choice."""
    return Database().get(key(facts, request, arch)) or candidates(facts, request, arch)[0]


def ladder_call(
    facts: WeightFacts, request: Request, machine: Machine, example: Array, options: Candidate | None = None
) -> LadderCall:
    """The call of a kind, with the options given, else with `chosen` ones; made once."""
    return made_once(LadderCall, (facts, request), machine, example, options or chosen(facts, request, machine.arch))
