"""The tier of processors: low-bit weights in panels, unpacked in registers next to their dot products."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tilewright.formats import Format
from tilewright.ir.dtypes import DType, dtype, pack
from tilewright.kernels.quant_matmul import quant_matmul
from tilewright.machine.arch import Arch
from tilewright.matmul.arrays import placed_like
from tilewright.matmul.facts import Request, WeightFacts
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.tiers.base import Machine, Operands, Prepared
from tilewright.specialization import compile
from tilewright.tuning import Candidate


class Panels:
    """Low-bit weights in panels, unpacked in registers next to the dot products of a processor."""

    name = "panels"
    version = 2

    def refuses(self, facts: WeightFacts, request: Request, arch: Arch) -> str | None:
        """See `Tier`."""
        epilogue = request.bias or request.residual or request.function
        int8 = request.activations == "int8"
        reasons = (
            (arch.has_threads, f"it is for processors, not {arch.target}"),
            (
                panel_type(facts.format) is None,
                f"it unpacks whole numbers of at most 8 bits, which {facts.format}'s are no multiples of",
            ),
            (facts.gather or facts.K % facts.group != 0, "groups are not whole runs of columns"),
            (facts.zeros not in ("none", "one", "groups"), f"zeros of mode {facts.zeros}"),
            (facts.multiplier or facts.divisors or facts.slots or facts.tiles[1], "second-level scales or divisors"),
            (bool(epilogue), "the call has an epilogue"),
            (not dtype(request.out).is_float, f"results of {request.out}"),
            (request.activation_scales == "group", "activation scales of groups"),
            (not int8 and request.activation_scales != "none", "scales of float activations"),
            (request.quantize not in (None, "int8"), f"activations quantised to {request.quantize}"),
            (
                not int8 and request.activations not in ("float32", "float16", "bfloat16"),
                f"activations of {request.activations}",
            ),
        )  # fmt: skip
        return next((reason for holds, reason in reasons if holds), None)

    def candidates(self, weight: PackedWeight, request: Request, machine: Machine) -> Iterator[Candidate]:
        """See `Tier`."""
        yield {}
        for columns in (48, 192, 64, 128, 32):
            yield {"block_N": columns}

    def prepare(
        self, weight: PackedWeight, request: Request, machine: Machine, example: Any, options: Candidate
    ) -> Prepared:
        """See `Tier`."""
        facts, codes = weight.facts, panel_type(weight.facts.format)
        factor = weight.facts.format.whole_factor
        assert codes is not None and factor is not None
        zero = None if facts.zeros == "groups" else facts.zero * factor
        function = quant_matmul.trace(
            facts.N, facts.K, weights=codes.name, group=facts.group, zero=zero,
            activations=request.activations, out=request.out, arithmetic="int8" if request.quantize else "float32",
            **options,
        )  # fmt: skip
        kernel = compile(function, target=machine.arch)

        def panels() -> list[Any]:
            source = weight.unpack()
            wholes = source.packed
            if source.format.dtype != codes:
                values = source.format.decode(source.codes) * factor
                wholes = pack(values.astype(np.int16), codes) if codes.is_packed else values.astype(codes.numpy)
            arrays = [kernel.pack(W=wholes), source.grouped_scales / np.float32(factor)]
            if zero is None:
                assert source.grouped_zeros is not None
                arrays.append(source.grouped_zeros * np.float32(factor))
            return [placed_like(array, example) for array in arrays]

        order = dict(kernel.program.final.attribute("packed_layouts", ())).get("W")
        held = weight.derived((self.name, str(order), type(example)), panels)
        if request.activations != "int8":
            return Prepared(self.name, kernel, held, lambda call, held: (call.activations, *held, call.out))
        scales = _token_scales(request, example)
        return Prepared(self.name, kernel, held, lambda call, held: (call.activations, scales(call), *held, call.out))


@functools.cache
def panel_type(format: Format) -> DType | None:
    """The integer type whose codes stand for a format's values, times its `whole_factor`; None where there is none.

    Three bits lie in four, five to seven in eight, and so do small floats whose values are multiples of the least.
    """
    factor = format.whole_factor
    if factor is None:
        return None
    if format.dtype is not None and format.dtype.name in PANEL_TYPES:
        return format.dtype
    wholes = [value * factor for code, value in enumerate(format.values) if code not in format.unused]
    types = map(dtype, PANEL_TYPES)
    return next((t for t in types if t.minimum <= min(wholes) and max(wholes) <= t.maximum), None)


PANEL_TYPES = ("uint2", "int2", "uint4", "int4", "uint8", "int8")
"""Types that a kernel takes apart in registers, the narrowest first; unsigned ones need no correction."""


def _token_scales(request: Request, example: Any) -> Callable[[Operands], Any]:
    """One float32 scale a row, whatever the call gives."""

    def expanded(call: Operands) -> Any:
        rows = call.activations.shape[0]
        if call.activation_scales is None:
            return placed_like(np.ones(rows, np.float32), example)
        scales = call.activation_scales.reshape(-1)
        if request.activation_scales == "token" and request.activation_scale_dtype == "float32":
            return scales
        wide = scales.astype(np.float32) if isinstance(scales, np.ndarray) else scales.float()
        if len(wide) == rows:
            return wide
        return np.repeat(wide, rows) if isinstance(wide, np.ndarray) else wide.repeat(rows)

    return expanded
