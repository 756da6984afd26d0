"""Weights as records in fragment order: how a format's codes stand in them, in what type its scales, and the
conversion."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import CannotQuantize
from tilewright.formats import Format, unpack_plain
from tilewright.ir.dtypes import ALL, UINT8, DType
from tilewright.kernels.recipe import WeightFacts
from tilewright.kernels.record_packing import order_of, pack_records
from tilewright.libraries import torch
from tilewright.machine import COLUMNS, SIGNS, FragmentRecords
from tilewright.matmul.arrays import as_torch, contiguous, placed_like, torch_type, viewed, wait_for_copies
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.record_order import RecordOrder
from tilewright.ops.rounding import round_float
from tilewright.runtime.tensors import Array, as_numpy, is_torch
from tilewright.targets.registry import resolve

ROOM = {"float16": 2.0**15, "bfloat16": 2.0**126}
"""What a scaled weight may be at most in registers."""

EXACT_OFFSET = {"float16": 1024, "bfloat16": 128}
"""Whole offsets up to here are subtracted exactly from codes that stand in a number's last bits."""


@dataclass(frozen=True, slots=True)
class Coding:
    """How codes of a format stand in records: in 1, 2, 4 or 8 bits, unsigned.

    Attributes
    ----------
    offset : what they are too large by.
    values, floating : as in `FragmentRecords`.
    """

    bits: int
    offset: int = 0
    values: tuple[float, ...] | None = None
    floating: tuple[int, int] | None = None


def coding_of(of: Format, operand: DType) -> Coding | None:
    """The coding of a format's codes where they become numbers of `operand`; None where there is none."""
    if of.is_dense or of.bits > 8:
        return None
    width = next(bits for bits in (1, 2, 4, 8) if bits >= of.bits)
    if of.name == "int1":
        return Coding(1, values=SIGNS)
    if of.kind in ("int", "uint"):
        return Coding(width, 1 << of.bits - 1 if of.kind == "int" else 0)
    width = max(width, 4)
    floating = float_parts(of)
    exponent, bias = (5, 15) if operand == ALL["float16"] else (8, 127)
    if floating is not None and width - 1 - floating[0] <= exponent and floating[1] <= bias:
        return Coding(width, floating=floating)
    if width > 4:
        return None
    values = np.resize(round_float(np.nan_to_num(of.table, posinf=0.0, neginf=0.0), operand).astype(np.float64), 16)
    return Coding(4, values=tuple(map(float, values)))


@functools.cache
def float_parts(of: Format) -> tuple[int, int] | None:
    """Bits of mantissa (behind which zeros fill 4 or 8 bits) and bias of the exponent of a float format; None for
    others."""
    if of.kind != "float":
        return None
    width = 8 if of.bits > 4 else 4
    finite = np.isfinite(of.table)
    codes = recoded(np.arange(1 << of.bits, dtype=np.uint8), of)
    for mantissa in range(width):
        for bias in range(64):
            numbers = FragmentRecords(width, ALL["bfloat16"], floating=(mantissa, bias)).numbers
            assert numbers is not None
            if (numbers[codes] == of.table)[finite].all():
                return mantissa, bias
    return None


def recoded(codes: Array, of: Format) -> Array:
    """Codes (uint8, NumPy's or torch's) as records hold them: integers unsigned, floats at the upper end of 4 or 8
    bits."""
    if of.kind == "int" and of.name != "int1":
        return codes ^ (1 << of.bits - 1)
    if of.kind == "float" and of.bits not in (4, 8):
        return codes << (4 if of.bits < 4 else 8) - of.bits
    return codes


def form_of(facts: WeightFacts, activations: str) -> FragmentRecords | None:
    """The order of a weight's records for activations of a type; None where its codes have none."""
    operand = ALL[activations]
    coding = coding_of(facts.format, operand)
    if coding is None:
        return None
    powers = facts.scale is not None and facts.scale.dtype == "float8_e8m0fnu" and facts.multiplier is None
    scale = ALL["float8_e8m0fnu"] if powers and activations == "bfloat16" else operand
    zero = None if point_of(facts, coding, activations) is not None else operand
    return FragmentRecords(coding.bits, operand, scale, zero, record_group(facts), coding.values, coding.floating)


def point_of(facts: WeightFacts, coding: Coding, activations: str) -> int | None:
    """The whole number that is subtracted from all codes; None where records hold what is subtracted from each
    group's."""
    if facts.zeros == "none":
        return coding.offset
    if facts.zeros != "one" or coding.values is not None or coding.floating is not None:
        return None
    point = coding.offset + facts.zero
    return int(point) if point == int(point) and abs(point) <= EXACT_OFFSET[activations] else None


def record_group(facts: WeightFacts) -> int:
    """Columns that share a scale in records: all of one where groups are wider."""
    return COLUMNS if facts.groups == 1 else next(g for g in (COLUMNS, 64, 32, 16) if facts.group % g == 0)


@dataclass(frozen=True, slots=True)
class Records:
    """A weight's records, and the factor of all sums (float32, one element) that scales of the operand's type leave."""

    words: Array
    factor: object


def records_of(weight: PackedWeight, form: FragmentRecords, coding: Coding, example: Array) -> Records:
    """A weight in the order of a form, packed where the weight is. Raises CannotQuantize for codes that stand for no
    number."""
    parts, factor = scales_and_zeros(weight, form)
    table = as_numpy(recoded(np.arange(1 << weight.format.bits).astype(np.uint8), weight.format))
    words = words_of(weight, form, table, parts, example)
    return Records(words, placed_like(np.array([factor], np.float32), example))


def words_of(
    weight: PackedWeight, form: FragmentRecords, table: np.ndarray, parts: dict[str, Any], example: Array
) -> Array:
    """Records of a weight's codes, packed on its device. `table` has the record's code (uint8) for each of the
    format's, `parts` are scales and zeros ``[N, groups of the form]``. Raises CannotQuantize for codes that stand for
    no number."""
    plain, columns = weight.codes, weight.facts.K
    _check_numbers(weight)
    if is_torch(plain) and plain.is_cuda:
        words = _pack_on_device(form, plain, columns, weight.format.bits, table, parts)
        wait_for_copies(words)  # other streams may be the next to read them; and the codes may be gone from here on
        weight.become(RecordOrder(form, table.tobytes()), words)
        return words
    codes = table[unpack_plain(as_numpy(plain).view(np.uint8), columns, weight.format.bits)]
    lines = {name: as_numpy(part) for name, part in parts.items()}
    return placed_like(form.pack({"codes": codes, **lines}), example)


def has_factor(weight: PackedWeight, form: FragmentRecords) -> bool:
    """Whether sums with these records need the factor."""
    return weight.tensor_scale * 2.0 ** -_sizes(weight, form).power != 1.0


def can_be_lifted(weight: PackedWeight, form: FragmentRecords) -> bool:
    """Whether scales are so near one another that codes times scales in one operation (`Unpack.lifted`) lose
    nothing."""
    return _sizes(weight, form).are_near


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What the magnitudes of a weight's scales ask for.

    Attributes
    ----------
    power : of two, by which scales are multiplied in records; 0 where they stay as they are.
    are_near : whether the largest weight of each group is a normal number where codes are lifted, and no factor too
        large.
    """

    power: int = 0
    are_near: bool = False


def _sizes(weight: PackedWeight, form: FragmentRecords) -> _Sizes:
    """`_Sizes` of a weight, worked out once, where its scales are."""
    if form.scale != form.operand or not (form.operand == ALL["float16"] or form.is_liftable()):
        return _Sizes()
    return weight.derived(("sizes", str(form)), lambda: _sizes_of(weight, form))


def _sizes_of(weight: PackedWeight, form: FragmentRecords) -> _Sizes:
    of, operand = weight.format, form.operand
    scales, zeros = _wide(weight, form)
    largest, least, exact, zero = _magnitudes(scales, zeros, operand)
    codes = max(abs(of.minimum), abs(of.maximum)) + zero
    if not largest:
        return _Sizes()
    liftable = form.is_liftable() and form.zero is None
    if operand != ALL["float16"]:
        # Nothing is too large or too small for bfloat16 but what is near the ends of its range.
        return _Sizes(0, liftable and largest <= 2.0**10 and least >= 2.0**-100)
    most = 2.0 ** (form.bits - 1)
    lifted = _power(largest * max(codes, most))
    if liftable and least * 2.0**lifted * min(codes, most) * form.lifted_unit >= 2.0**-14:
        return _Sizes(lifted, True)
    suits = exact and least >= 2.0**-14 and largest * codes <= ROOM["float16"]
    return _Sizes(0 if suits else _power(largest * max(codes, 1.0)))


def _power(largest: float) -> int:
    """By which power of two a number becomes as large as float16 has room for."""
    return int(np.floor(np.log2(ROOM["float16"] / largest)))


def _wide(weight: PackedWeight, form: FragmentRecords) -> tuple[Any, Any]:
    """Scales, those of both levels multiplied, and zeros where records hold some: float32 tensors or float64 arrays."""
    scales: Any = weight.held.get("scales")
    zeros: Any = weight.held["zeros"] if form.zero is not None else None
    if _stays(weight, form):
        return scales.float(), None if zeros is None else zeros.float()
    wide = np.ones((1, 1)) if weight.facts.scale is None else as_numpy(scales).astype(np.float64)
    if weight.facts.multiplier is not None:
        wide = wide * as_numpy(weight.held["multipliers"]).astype(np.float64)
    return wide, None if zeros is None else as_numpy(zeros).astype(np.float64)


def _magnitudes(scales: Any, zeros: Any, operand: DType) -> tuple[float, float, bool, float]:
    """The largest scale, the least one but 0, whether the operand's type has all of them, and the largest zero."""
    sizes = abs(scales)
    if is_torch(scales):
        found = [sizes.max(), sizes.masked_fill(sizes == 0, np.inf).min()]
        found += [(sizes.to(torch_type(operand)).float() == sizes).all().float()]
        largest, least, exact, *most = _numbers(found + ([] if zeros is None else [zeros.abs().max()]))
        return largest, least, bool(exact), sum(most)
    exact = bool((round_float(sizes, operand) == sizes).all())
    least = sizes.min(where=sizes > 0, initial=np.inf)
    return float(sizes.max(initial=0.0)), float(least), exact, 0.0 if zeros is None else float(np.abs(zeros).max())


def scales_and_zeros(weight: PackedWeight, form: FragmentRecords) -> tuple[dict[str, Array], float]:
    """Scales (and zeros) ``[N, groups of the form]``, and the factor that they were divided by.

    Scales that the operand's type has only rounded, or that would make weights too large for it, are divided by a power
    of two first, so that the largest weight is just below what the type has room for. All is done where they are, and
    exact, until they are rounded, once, to the form's types.
    """
    scales, zeros = _wide(weight, form)
    power = _sizes(weight, form).power
    parts = {"scales": _rounded(scales * 2.0**power, form.scale)}
    if form.scale == ALL["float8_e8m0fnu"]:
        parts["scales"] = weight.held["scales"]
    if form.zero is not None:
        parts["zeros"] = _rounded(zeros * 2.0**power if weight.facts.zeros == "rescale" else zeros, form.zero)
    lines = {name: by_row(weight, form, values) for name, values in parts.items()}
    return lines, weight.tensor_scale * 2.0**-power


def _stays(weight: PackedWeight, form: FragmentRecords) -> bool:
    """Whether scales and zeros are tensors that float32 holds: they are then worked with where they are."""
    held: list[object] = [weight.held.get(name) for name in ("scales", *(() if form.zero is None else ("zeros",)))]
    return weight.facts.multiplier is None and all(is_torch(array) and array.dtype.itemsize <= 4 for array in held)


def _numbers(found: Sequence[torch.Tensor]) -> list[float]:
    """Tensors of one element as numbers, waited for once."""
    return torch.stack(list(found)).tolist()


def _rounded(values: Any, of: DType | None) -> Any:
    """Values, in memory of NumPy's or torch's, in a type, rounded once."""
    assert of is not None
    if is_torch(values):
        return values.to(torch_type(of))
    if values.dtype == of.numpy or not of.is_float:
        return values.astype(of.numpy, copy=False)
    return round_float(values.astype(np.float64), of).astype(of.numpy, copy=False)


def by_row(weight: PackedWeight, form: FragmentRecords, values: Array) -> Array:
    """Scales or zeros of a weight's groups (NumPy's or torch's), one for each row and each group of the form."""
    facts, rows = weight.facts, weight.block[0]
    wanted = -(-facts.K // form.group)
    each = wanted if facts.groups == 1 else facts.group // form.group
    shape = (-(-facts.N // rows), facts.groups)
    if is_torch(values):
        bits = viewed(values, UINT8) if values.dtype.itemsize == 1 else values
        down = bits.expand(shape).repeat_interleave(rows, 0)[: facts.N] if rows > 1 else bits.expand(shape)
        return down.repeat_interleave(each, 1)[:, :wanted].contiguous().view(values.dtype)
    return np.repeat(np.repeat(np.broadcast_to(values, shape), rows, axis=0)[: facts.N], each, axis=1)[:, :wanted]


def _check_numbers(weight: PackedWeight) -> None:
    """All codes stand for numbers; in few formats some do not.  Raises CannotQuantize."""
    of = weight.format
    wrong = [code for code, number in enumerate(of.values) if not np.isfinite(number) and code not in of.unused]
    if not wrong:
        return
    plain = weight.codes
    codes = plain if of.bits == 8 else unpack_plain(as_numpy(plain).view(np.uint8), weight.facts.K, of.bits)
    found = (bool((viewed(codes, UINT8) == code).any()) if is_torch(codes) else code in codes for code in wrong)
    if any(found):
        raise CannotQuantize(
            f"the weight holds codes of {of} that are no finite numbers", hint="saturate before quantising"
        )


def _pack_on_device(
    form: FragmentRecords, plain: Any, columns: int, bits: int, table: np.ndarray, parts: dict[str, Array]
) -> torch.Tensor:
    """`FragmentRecords.pack` by a kernel, where the codes are."""
    held = [(name, of) for name, of in (("scales", form.scale), ("zeros", form.zero)) if of is not None]
    kernel = pack_records.for_target(resolve(plain.device.type)[1], form, bits)
    words = torch.empty(form.shape(plain.shape[0], columns), dtype=torch.uint32, device=plain.device)
    constants = [placed_like(array, plain) for array in (table, order_of(form))]
    lines = [_as_bits(parts[name], of, plain) for name, of in held]
    kernel(contiguous(plain.view(torch.uint8)), columns, *constants, *lines, words)
    return words


def _as_bits(part: Array, of: DType, plain: torch.Tensor) -> torch.Tensor:
    """Scales or zeros as unsigned integers with the bits of their type, where the codes are."""
    rounded = _rounded(part, of)
    if is_torch(rounded):
        return viewed(rounded.to(plain.device), ALL[f"uint{of.bits}"])
    return as_torch(np.ascontiguousarray(rounded).view(f"u{rounded.itemsize}"), plain.device)


def packing_begun(weight: PackedWeight, form: FragmentRecords) -> None:
    """Have the kernel that packs a weight on its device built: behind the product's own, whose text takes longer to
    compile."""
    plain = weight.held["codes"]
    if is_torch(plain) and plain.is_cuda:
        pack_records.for_target(resolve(plain.device.type)[1], form, weight.format.bits).begin()
