"""Weights as records in fragment order: how a format's codes stand in them, in what type its scales, and the conversion."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import CannotQuantize
from tilewright.formats import Format, unpack_plain
from tilewright.ir.dtypes import ALL, DType
from tilewright.machine.fragment_records import COLUMNS, SIGNS, FragmentRecords
from tilewright.matmul.arrays import as_numpy, placed_like
from tilewright.matmul.facts import WeightFacts
from tilewright.matmul.packed import PackedWeight
from tilewright.ops.rounding import round_float
from tilewright.runtime.tensors import is_torch

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
    if floating is not None and width - 1 - floating[0] <= (5 if operand == ALL["float16"] else 8):
        return Coding(width, floating=floating)
    if width > 4:
        return None
    values = np.resize(round_float(np.nan_to_num(of.table, posinf=0.0, neginf=0.0), operand).astype(np.float64), 16)
    return Coding(4, values=tuple(map(float, values)))


@functools.cache
def float_parts(of: Format) -> tuple[int, int] | None:
    """Bits of mantissa (behind which zeros fill 4 or 8 bits) and bias of the exponent of a float format; None for others."""
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


def recoded(codes: Any, of: Format) -> Any:
    """Codes (uint8, NumPy's or torch's) as records hold them: integers unsigned, floats at the upper end of 4 or 8 bits."""
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
    """The whole number that is subtracted from all codes; None where records hold what is subtracted from each group's."""
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

    words: Any
    factor: Any


def records_of(weight: PackedWeight, form: FragmentRecords, coding: Coding, example: Any) -> Records:
    """A weight in the order of a form, packed where the weight is.

    Raises
    ------
    CannotQuantize : codes that stand for no number.
    """
    facts = weight.facts
    codes = recoded(codes_of(weight), facts.format)
    parts, factor = _scales_and_zeros(weight, form)
    words = words_of(form, codes, parts, example)
    return Records(words, placed_like(np.array([factor], np.float32), example))


def words_of(form: FragmentRecords, codes: Any, parts: dict[str, np.ndarray], example: Any) -> Any:
    """Records of codes, where these are, and of scales and zeros ``[N, groups of the form]``."""
    if is_torch(codes):
        return _pack_on_device(form, codes, parts)
    return placed_like(form.pack({"codes": codes, **parts}), example)


def has_factor(weight: PackedWeight, form: FragmentRecords) -> bool:
    """Whether sums with these records need the factor."""
    return bool(_scales_and_zeros(weight, form)[1] != 1.0)


def _scales_and_zeros(weight: PackedWeight, form: FragmentRecords) -> tuple[dict[str, np.ndarray], float]:
    """Scales (and zeros) ``[N, groups of the form]``, and the factor that they were divided by.

    Scales that the operand's type has only rounded, or that would make weights too large for it, are divided by a power of two
    first, so that the largest weight is just below what the type has room for.
    """
    facts, of = weight.facts, weight.format
    scales = np.ones((1, 1)) if facts.scale is None else as_numpy(weight.arrays["scales"]).astype(np.float64)
    if facts.multiplier is not None:
        scales = scales * as_numpy(weight.arrays["multipliers"]).astype(np.float64)
    parts, power = {"scales": scales}, 0
    if form.zero is not None:
        parts["zeros"] = as_numpy(weight.arrays["zeros"]).astype(np.float64)
    assert form.scale is not None
    if form.scale == form.operand == ALL["float16"]:
        magnitudes = np.abs(scales[scales != 0])
        codes = max(abs(of.minimum), abs(of.maximum)) + (np.abs(parts["zeros"]).max() if "zeros" in parts else 0.0)
        exact = (round_float(magnitudes, form.scale).astype(np.float64) == magnitudes).all()
        largest = magnitudes.max(initial=0.0)
        if largest and not (exact and magnitudes.min() >= 2.0**-14 and largest * codes <= ROOM["float16"]):
            power = int(np.floor(np.log2(ROOM["float16"] / (largest * max(codes, 1.0)))))
            parts["scales"] = np.ldexp(scales, power)
            if facts.zeros == "rescale":
                parts["zeros"] = np.ldexp(parts["zeros"], power)
    return {name: by_row(weight, form, values) for name, values in parts.items()}, weight.tensor_scale * 2.0**-power


def by_row(weight: PackedWeight, form: FragmentRecords, values: np.ndarray) -> np.ndarray:
    """Scales or zeros of a weight's groups, one for each row and each group of the form."""
    facts, rows = weight.facts, weight.block[0]
    full = np.broadcast_to(values, (-(-facts.N // rows), facts.groups))
    by_row = np.repeat(full, rows, axis=0)[: facts.N]
    wanted = -(-facts.K // form.group)
    return np.repeat(by_row, wanted if facts.groups == 1 else facts.group // form.group, axis=1)[:, :wanted]


def codes_of(weight: PackedWeight) -> Any:
    """A weight's codes, one to a byte, where they are."""
    of, columns, plain = weight.format, weight.facts.K, weight.arrays["codes"]
    if is_torch(plain):
        codes = _unpacked(plain.view(_uint8()), columns, of.bits)
        wrong = [code for code, number in enumerate(of.values) if not np.isfinite(number) and code not in of.unused]
        found = any(bool((codes == code).any()) for code in wrong) if len(wrong) <= 8 else False
    else:
        codes = unpack_plain(plain.view(np.uint8), columns, of.bits)
        found = not np.isfinite(of.table[codes]).all()
    if found:
        raise CannotQuantize(
            f"the weight holds codes of {of} that are no finite numbers", hint="saturate before quantising"
        )
    return codes


def _unpacked(plain: Any, columns: int, bits: int) -> Any:
    """`unpack_plain` of a torch tensor on its device."""
    import torch

    if bits == 8:
        return plain
    if 8 % bits == 0:
        parts = [plain >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
        return torch.stack(parts, dim=-1).reshape(plain.shape[0], -1)[:, :columns]
    first = torch.arange(columns, device=plain.device) * bits
    wide = torch.nn.functional.pad(plain, (0, 1)).to(torch.int16)
    pairs = wide[:, first // 8] | wide[:, first // 8 + 1] << 8
    return (pairs >> (first % 8).to(torch.int16) & (1 << bits) - 1).to(torch.uint8)


def _uint8() -> Any:
    import torch

    return torch.uint8


def _pack_on_device(form: FragmentRecords, codes: Any, parts: dict[str, np.ndarray]) -> Any:
    """`FragmentRecords.pack` by torch, where the codes are."""
    import torch

    rows, columns = codes.shape
    down, across, words = form.shape(rows, columns)
    records = torch.zeros(down, across, words * 4, dtype=torch.uint8, device=codes.device)
    arrays = {"codes": codes}
    for name, values in parts.items():
        of = form.scale if name == "scales" else form.zero
        assert of is not None
        rounded = np.ascontiguousarray(round_float(values, of) if of.is_float else values.astype(of.numpy))
        bits = rounded.view({8: np.uint8, 16: np.int16, 32: np.int32}[of.bits])
        arrays[name] = torch.from_numpy(bits).to(codes.device)
    for name, array in arrays.items():
        layout, width = (form.codes(), COLUMNS) if name == "codes" else (form.lines(), form.sets)
        padded = torch.zeros(down * form.rows, across * width, dtype=array.dtype, device=codes.device)
        padded[:rows, : array.shape[1]] = array
        blocks = padded.reshape(down, form.rows, across, width).permute(0, 2, 1, 3).reshape(down, across, -1)
        order = torch.from_numpy(np.argsort(layout.permutation().reshape(-1))).to(codes.device)
        ordered = blocks[..., order].contiguous()
        if name == "codes" and form.bits < 8:
            fields = ordered.reshape(down, across, -1, 8 // form.bits)
            ordered = fields[..., 0].clone()
            for position in range(1, 8 // form.bits):
                ordered |= fields[..., position] << position * form.bits
        raw = ordered.contiguous().view(torch.uint8)
        start = form.offset(name)
        records[..., start : start + raw.shape[-1]] = raw
    return records.view(torch.uint32)
