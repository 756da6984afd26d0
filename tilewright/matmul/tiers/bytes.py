"""The tier of Hopper for 8-bit activations: low-bit weights become int8 or 8-bit floats in registers."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.formats import Format
from tilewright.ir.dtypes import ALL, DType
from tilewright.kernels import Epilogue, Request, WeightFacts, speed_of
from tilewright.kernels.hopper_quant_bytes import LONGEST, byte_quant_matmul
from tilewright.kernels.hopper_quant_bytes_choice import byte_quant_candidates
from tilewright.kernels.running_sums import MODERATE, can_run
from tilewright.machine import COLUMNS, Arch, FragmentRecords
from tilewright.matmul.arrays import placed_like, torch_type
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.tiers.base import Machine, Operands, Prepared, Ready, Tier, arranged, begun, with_all_operands
from tilewright.matmul.tiers.records import by_row, float_parts, packing_begun, recoded, words_of
from tilewright.ops.rounding import round_float
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.tensors import Array, as_numpy, is_torch
from tilewright.tuning import Candidate

WHOLE = 16
"""Elements that the rows of activations are multiples of: 16 bytes, which the copy engine wants."""

LEAST_GROUP = 32
"""Columns of one matrix instruction, whose sum is the shortest there is."""

OPERANDS = {
    "int8": "int8", "uint8": "int8", "float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e4m3fn",
}  # fmt: skip
"""What small whole numbers become for activations of a type."""


@dataclass(frozen=True, slots=True)
class ByteCoding:
    """How codes of a format stand in records: `bits` wide, as numbers less by `centre` than the values, or as floats.

    Attributes
    ----------
    floating : of codes that are floats of four bits, as in `FragmentRecords`.
    """

    bits: int
    centre: int
    operand: DType
    floating: tuple[int, int] | None = None

    def table(self, of: Format) -> np.ndarray:
        """The code in a record for each code of the format."""
        if of.kind == "float":
            return np.asarray(recoded(np.arange(1 << of.bits, dtype=np.uint8), of))
        return FragmentRecords(self.bits, self.operand).encode(np.nan_to_num(of.table) - self.centre)


@functools.cache
def byte_coding_of(of: Format, activations: str) -> ByteCoding | None:
    """The coding of a format's codes for activations of a type; None where there is none."""
    if activations not in OPERANDS or of.is_dense:
        return None
    operand = ALL[OPERANDS[activations]]
    if of.kind == "float":
        return _coding_of_floats(of, operand)
    if not of.is_integer:
        return None
    used = np.array([value for code, value in enumerate(of.values) if code not in of.unused])
    span = int(used.max() - used.min())
    bits = next(bits for bits in (1, 2, 4, 8) if span < 1 << bits)
    half = 1 << bits - 1
    if operand.is_float and bits == 8:
        return None
    fits = -half <= used.min() and used.max() < half
    return ByteCoding(bits, 0 if fits else int(used.min()) + half, operand)


_FLOATS = (ALL["float8_e4m3fn"], ALL["float8_e5m2"])


def _coding_of_floats(of: Format, operand: DType) -> ByteCoding | None:
    """Floats of 8 bits as they are, and those of 4 bits or fewer whose parts fit into them."""
    if not operand.is_float:
        return None
    if of.dtype in _FLOATS:
        return ByteCoding(8, 0, of.dtype)
    parts = float_parts(of) if of.bits <= 4 else None
    fits = parts is not None and parts[1] <= 7
    return ByteCoding(4, 0, operand, parts) if fits else None


@dataclass(frozen=True, slots=True)
class HeldPlan:
    """How a weight is held and multiplied.

    Attributes
    ----------
    form : of the records.
    zeros, offset, by_channel : the kernel's.
    parts : scales and zeros of the records, ``[N, groups of the form]``; none once there are records.
    of_channels : float32 ``[N]``, or one element.
    moderate : whether scales of groups are such that sums may run on (`MODERATE`).
    """

    form: FragmentRecords
    zeros: str | None
    offset: int
    by_channel: bool
    parts: dict[str, Any]
    of_channels: np.ndarray
    moderate: bool

    @property
    def is_promoted(self) -> bool:
        """Whether sums of groups are scaled."""
        return self.form.scale is not None and not self.form.scale.is_integer


class Bytes(Tier):
    """Matrix instructions of 8 bits; scales and zeros of groups enter codes that stay whole, or sums of groups."""

    name = "bytes"
    machines = "Hopper"

    def runs_on(self, arch: Arch) -> bool:
        return arch.starts_products

    def reasons(self, facts: WeightFacts, request: Request, arch: Arch) -> Iterator[tuple[bool, str]]:
        coding = byte_coding_of(facts.format, request.activations)
        groups = facts.groups > 1
        yield from (
            (request.activations not in OPERANDS, f"activations of {request.activations}"),
            (coding is None, f"it makes no {request.activations} of {facts.format}"),
            (groups and facts.group % LEAST_GROUP != 0, f"groups of {facts.group}"),
            (bool(facts.slots or facts.tiles[1]), "codes in another order"),
            (request.activation_scales == "group", "activation scales of groups"),
            (facts.divisors and not request.divided, "divisors of activations"),
            (facts.K > LONGEST, f"sums of {facts.K} products"),
        )

    def candidates(self, weight: PackedWeight, request: Request, machine: Machine) -> Iterator[Candidate]:
        facts, plan = weight.facts, self._plan(weight, request)[0]
        rows = request.rows or 1 << 30
        # What sums that run on lose is less than rounding to 16 bits does.
        running = plan.moderate and plan.is_promoted and request.out in ("float16", "bfloat16")
        running = running and can_run(plan.form, plan.offset, request.activations)
        columns = -(-facts.K // WHOLE) * WHOLE
        found = byte_quant_candidates(facts.N, columns, plan.form, plan.is_promoted, running, speed_of(machine.arch))
        yield found.choice(rows)
        yield from found.ranked(rows)

    def _plan(self, weight: PackedWeight, request: Request) -> tuple[HeldPlan, ByteCoding]:
        coding = byte_coding_of(weight.facts.format, request.activations)
        assert coding is not None
        plan = weight.derived((self.name, coding), lambda: replace(plan_of(weight, coding), parts={}))
        return plan, coding

    def prepare(
        self, weight: PackedWeight, request: Request, machine: Machine, example: Array, options: Candidate
    ) -> Ready:
        facts = weight.facts
        plan, coding = self._plan(weight, request)
        columns = -(-facts.K // WHOLE) * WHOLE
        of_weight = {"zeros": plan.zeros, "offset": plan.offset, "by_channel": plan.by_channel}
        kernel = byte_kernel((facts.N, columns), plan.form, request, machine.arch, **of_weight, **options)
        begun(kernel, example)
        packing_begun(weight, plan.form)
        records = weight.derived(
            (self.name, coding, type(example)), lambda: words(weight, plan_of(weight, coding), coding, example)
        )
        held = [records, placed_like(plan.of_channels, example)]
        prepared = Prepared(self.name, kernel, held, byte_arguments(request, example))
        return arranged(weight, request, columns, machine, example, prepared)


def byte_kernel(
    size: tuple[int, int], form: FragmentRecords, request: Request, arch: Arch, **options: object
) -> Kernel:
    """The kernel of a weight's records for a call; options say what else there is of the weight, and its sizes."""
    of_rows = None if request.activation_scales == "none" else request.activation_scales
    epilogue = Epilogue(False, request.bias, request.function, request.residual)
    of_call = {"activations": request.activations, "out": request.out, "of_rows": of_rows, "epilogue": epilogue}
    return byte_quant_matmul.for_target(arch, *size, form, **of_call, **options)


def byte_arguments(request: Request, example: Array) -> Callable[[Operands, Sequence[object]], Sequence[object]]:
    """From the operands of a call, and a weight's records and channel scales, to the arguments of
    `byte_quant_matmul`."""
    completed = with_all_operands(request, example)

    def arguments(call: Operands, held: Sequence[object]) -> Sequence[object]:
        call = completed(call)
        return (
            held[0], call.activations, call.activation_scales, held[1], call.bias, call.residual, call.out,
        )  # fmt: skip

    return arguments


def plan_of(weight: PackedWeight, coding: ByteCoding) -> HeldPlan:
    """Where a weight's scales and zeros enter: codes where they stay whole numbers of 8 bits, else sums."""
    facts, integer = weight.facts, coding.operand.is_integer
    scales = _groups(weight, "scales", 1.0) * weight.tensor_scale
    multipliers = _groups(weight, "multipliers", 1.0)
    both = scales * multipliers
    zeros = _groups(weight, "zeros" if facts.zeros != "none" else "", 0.0)
    if facts.zeros == "rescale":
        return _plan(weight, coding, both, "rescale", zeros - coding.centre * both)
    less = zeros - coding.centre
    one = scales * 0.0 + 1.0
    if facts.multiplier is not None and scales.shape[1] == 1 and integer and _fit(weight, coding, less, multipliers):
        return _plan(weight, coding, scales, "codes", less, multipliers)
    if (integer and _fit(weight, coding, less, one)) or not less.any():
        return _plan(weight, coding, both, "codes", less)
    return _plan(weight, coding, both, "original", less)


def _groups(weight: PackedWeight, name: str, absent: float) -> Array:
    """Numbers of a weight's groups, float64, two dimensions: tensors where the weight's are."""
    values: Any = weight.held.get(name)
    codes: Array | None = weight.held["codes"]
    if is_torch(codes):
        values = codes.new_full((1, 1), absent, dtype=sys.modules["torch"].float64) if values is None else values
        return (values.float() if values.dtype.itemsize == 1 else values).double()
    return np.full((1, 1), absent) if values is None else as_numpy(values).astype(np.float64)


def _fit(weight: PackedWeight, coding: ByteCoding, less: Any, multipliers: Any) -> bool:
    """Whether zeros are int8, and all ``(number - less) * multiplier``."""
    of = weight.format
    used = np.array([value for code, value in enumerate(of.values) if code not in of.unused]) - coding.centre
    ends = [(float(end) - less) * multipliers for end in (used.min(), used.max())]
    return all(
        bool((array == array.round()).all()) and array.min() >= -128 and array.max() <= 127 for array in (less, *ends)
    )


def _plan(
    weight: PackedWeight, coding: ByteCoding, scales: Any, zeros: str, less: Array, multipliers: object = None
) -> HeldPlan:
    """The plan with zeros that enter codes or sums, and scales that follow from there."""
    facts = weight.facts
    group = COLUMNS if facts.groups == 1 else math.gcd(facts.group, COLUMNS)
    in_sums = zeros != "codes"
    first = float(less.reshape(-1)[0])
    constant = not in_sums and bool((less == first).all())
    grouped = in_sums or scales.shape[1] > 1
    arrays: dict[str, Any] = {}
    if multipliers is not None:
        arrays["scales"] = multipliers
    elif grouped:
        arrays["scales"] = scales
    if not constant:
        arrays["zeros"] = less
    int8, wide = ALL["int8"], ALL["float32"]
    of_scales = int8 if multipliers is not None else _narrowest(scales) if grouped else None
    of_zeros = None if constant else wide if in_sums else int8
    form = FragmentRecords(coding.bits, coding.operand, of_scales, of_zeros, group, floating=coding.floating)
    by_channel = not grouped and (facts.scale is not None or facts.factor or facts.multiplier is not None)
    of_channels: Any = np.ones(1, np.float32)
    if by_channel:
        rows = (
            np.zeros((facts.N, 1))
            + np.repeat(as_numpy(scales), weight.block[0] if len(scales) > 1 else 1, axis=0)[: facts.N]
        )
        of_channels = rows[:, 0].astype(np.float32)
    parts = {name: by_row(weight, form, array) for name, array in arrays.items()}
    offset = int(first) if constant else 0
    least, most = MODERATE
    moderate = grouped and bool((((abs(scales) >= least) & (abs(scales) < most)) | (scales == 0)).all())
    return HeldPlan(form, None if constant else zeros, offset, by_channel, parts, of_channels, moderate)


def _narrowest(scales: Array) -> DType:
    """The smallest float that has all the scales; float32 rounds them."""
    for name in ("float16", "bfloat16"):
        if is_torch(scales):
            if (scales.to(torch_type(ALL[name])).double() == scales).all():
                return ALL[name]
        elif (round_float(scales, ALL[name]).astype(np.float64) == scales).all():
            return ALL[name]
    return ALL["float32"]


def words(weight: PackedWeight, plan: HeldPlan, coding: ByteCoding, example: Array) -> Array | None:
    """A weight's records, packed where the weight is."""
    return words_of(weight, plan.form, coding.table(weight.format), plan.parts, example)
