"""The tier of processors: low-bit weights in panels, unpacked in registers next to their dot products, or by a
table."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.formats import Format, number_format
from tilewright.ir.dtypes import DType, dtype, pack
from tilewright.kernels import Epilogue, Request, WeightFacts
from tilewright.kernels.quant_matmul import quant_matmul
from tilewright.machine.arch import Arch
from tilewright.matmul.arrays import placed_like
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.tiers import base
from tilewright.ops.rounding import round_float
from tilewright.quant import QuantizedWeight
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.tensors import Array, as_float32, as_numpy
from tilewright.tuning import Candidate

ACTIVATIONS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8")
"""Types whose numbers float32 or int8 holds."""
WIDEST = 32
"""Bits of the widest numbers that weights have."""


class Panels(base.Tier):
    """Low-bit weights in panels, unpacked in registers next to the dot products of a processor."""

    name = "panels"
    version = 5
    pairs = quantises = True
    machines = "processors"

    def runs_on(self, arch: Arch) -> bool:
        return not arch.has_threads

    def reasons(self, facts: WeightFacts, request: Request, arch: Arch) -> Iterator[tuple[bool, str]]:
        request = multiplied(facts, request)
        yield from (
            (request.activations not in ACTIVATIONS, f"activations of {request.activations}"),
            (request.quantize not in (None, "int8"), f"it rounds activations to int8, not to {request.quantize}"),
            (
                panel_codes(facts.format, request) is None,
                f"numbers of {facts.format} are no bytes times one factor, and rounded activations meet bytes alone"
                if request.quantize
                else f"no number of {WIDEST} bits holds those of {facts.format}",
            ),
            (bool(facts.slots or facts.tiles[1]), "raw bytes in an order of their own"),
            (
                is_whole(facts, request) and not is_exact(facts, request),
                f"{request.out} results of {facts.format} without a scale, which sums in float32 would round",
            ),
            (request.activation_scales == "group", "activation scales of groups"),
        )

    def candidates(self, weight: PackedWeight, request: Request, machine: base.Machine) -> Iterator[Candidate]:
        yield {}
        for columns in (48, 192, 64, 128, 32):
            yield {"block_N": columns}

    def prepare(
        self, weight: PackedWeight, request: Request, machine: base.Machine, example: Array, options: Candidate
    ) -> base.Ready:
        facts, given = weight.facts, request
        columns = facts.groups * facts.group  # all groups are as long as the longest
        request = multiplied(facts, request)
        codes = panel_codes(facts.format, request)
        assert codes is not None
        scaled = request.activations == "int8" or request.activation_scales != "none"
        mode = "" if facts.zeros == "none" else facts.zeros
        if mode == "one" and codes != panel_table(facts.format):
            mode = ""  # a number that products begin with, except beside a table of floats
        scale = scale_type(facts, codes.factor, machine.arch)
        whole = bool(mode) and codes.factor == 1 and codes.table is None and zeros_are_bytes(weight)
        kernel = quant_matmul.for_target(
            machine.arch,
            facts.N,
            columns,
            weights=codes.dtype.name,
            codebook=codes.table,
            group=facts.group,
            zero=None if mode else facts.zero * codes.factor,
            rescale=mode == "rescale",
            activations=request.activations,
            scaled=scaled,
            out=request.out,
            arithmetic="float32" if codes.dtype.is_float or not request.quantize else "int8",
            epilogue=Epilogue(bias=request.bias, function=request.function, residual=request.residual),
            scale_dtype=scale,
            zero_dtype="uint8" if whole else "float32",
            exact=is_exact(facts, request),
            **options,
        )
        order = dict(kernel.program.final.attribute("packed_layouts", ())).get("W")
        held = weight.derived(
            (self.name, str(order), str(codes), scale, whole, type(example)),
            lambda: [
                placed_like(array, example)
                for array in _panels(weight, codes, "bytes" if whole else mode, kernel, dtype(scale))
            ],
        )
        prepared = base.Prepared(
            self.name, kernel, held, _arguments(request, scaled, bool(mode), example), is_owned=True
        )
        return base.arranged(weight, given, columns, machine, example, prepared, request.activations)


def multiplied(facts: WeightFacts, request: Request) -> Request:
    """A request as the product meets it: activations that are divided first become float32."""
    if facts.divisors and not request.divided and request.activations in ACTIVATIONS:
        return replace(request, activations="float32")
    return request


def is_whole(facts: WeightFacts, request: Request) -> bool:
    """Whether a product of whole numbers without any scale is asked for, in whole numbers."""
    scaled = facts.scale is not None or facts.factor or facts.multiplier is not None
    of_bytes = request.activations == "int8" and request.activation_scales == "none"
    codes = panel_codes(facts.format, request)
    floats = codes is not None and codes.dtype.is_float
    return dtype(request.out).is_integer and of_bytes and not scaled and not floats


def is_exact(facts: WeightFacts, request: Request) -> bool:
    """Whether the kernel sums such a product in int32."""
    codes = panel_codes(facts.format, request)
    plain = codes is not None and codes.factor == 1 and codes.table is None
    return is_whole(facts, request) and plain and facts.zeros in ("none", "one") and facts.zero == int(facts.zero)


def scale_type(facts: WeightFacts, factor: float, arch: Arch) -> str:
    """The narrowest type that holds a weight's scales as they are multiplied: out of memory they come with the codes,
    and for groups of 32 of four bits a float32 is a fifth of what is read."""
    whole = facts.multiplier is None and not facts.factor and factor == 1
    held = number_format(facts.scale.dtype) if whole and facts.scale is not None else None
    for name in ("float16", "bfloat16"):
        quick = name == "bfloat16" or arch.has("f16c") or arch.has("neon")
        if held is not None and quick and _holds(dtype(name), held):
            return name
    return "float32"


def zeros_are_bytes(weight: PackedWeight) -> bool:
    """Whether all zero points are whole numbers of a byte: with the scales they are a quarter of what they would be as
    floats, scaled beforehand."""

    def found() -> bool:
        zeros = as_numpy(weight.held["zeros"]).astype(np.float32)
        return weight.zeros_mode != "rescale" and bool(
            ((zeros == np.rint(zeros)) & (zeros >= 0) & (zeros <= 255)).all()
        )

    return weight.derived("zeros are bytes", found)


def _holds(narrow: DType, wide: Format) -> bool:
    """Whether a type has every number of a format."""
    if wide.dtype == narrow or not wide.values:
        return wide.dtype == narrow
    return np.array_equal(round_float(wide.table, narrow).astype(np.float64), wide.table, equal_nan=True)


def _panels(weight: PackedWeight, codes: PanelCodes, zeros: str, kernel: Kernel, scale: DType) -> Iterator[np.ndarray]:
    """A weight as a kernel takes it: codes in panels, scales of groups, and zeros where they differ."""
    source, groups, factor = weight.unpack(), weight.facts.groups, np.float32(codes.factor)
    order = base.activation_columns(weight, groups * weight.facts.group)
    held = source
    if not np.array_equal(order, np.arange(source.shape[1])):
        filled = np.where(order >= 0, source.codes[:, np.maximum(order, 0)], source.codes.dtype.type(0))
        held = QuantizedWeight(filled, source.format)
    yield kernel.pack(W=codes.of(held))
    scales = source.grouped_scales
    if source.multipliers is not None:
        scales = scales * source.by_group(source.multipliers)
    yield (scales[:groups] / factor).astype(scale.numpy)
    if zeros:
        assert source.zeros is not None
        points = source.by_group(source.zeros)[:groups]
        if zeros == "bytes":
            yield points.astype(np.uint8)
            return
        yield points if zeros == "rescale" else points * factor


def _arguments(
    request: Request, scaled: bool, zeros: bool, example: Array
) -> Callable[[base.Operands, Sequence[object]], Sequence[object]]:
    """From the operands of a call, and the weight's arrays, to the kernel's arguments."""
    scales = _token_scales(request, example) if scaled else None
    if not (request.bias or request.function or request.residual):
        if scales is None:
            return lambda call, held: (call.activations, *held, call.out)
        return lambda call, held: (call.activations, scales(call), *held, call.out)
    no_zeros, completed = placed_like(np.zeros((1, 1), np.float32), example), base.with_all_operands(request, example)

    def arguments(call: base.Operands, held: Sequence[object]) -> Sequence[object]:
        all_of = completed(call)
        given = all_of.activation_scales if scales is None else scales(call)
        zeros_of = () if zeros else (no_zeros,)
        return (call.activations, given, *held, *zeros_of, all_of.bias, all_of.residual, call.out)

    return arguments


@dataclass(frozen=True, slots=True)
class PanelCodes:
    """How the codes of a format are held and multiplied.

    Attributes
    ----------
    dtype : of what is held.
    factor : what is multiplied is the format's value times this one, which the scales take off again.
    table : the number that each code of `dtype` stands for, or None where it stands for itself.
    floats : for each code of the format, the code of `dtype`, a float type; empty where that is none.
    """

    dtype: DType
    factor: float
    table: tuple[float, ...] | None = None
    floats: bytes = b""

    def of(self, weight: QuantizedWeight) -> np.ndarray:
        """A weight's codes as a kernel packs them."""
        if self.table is not None:
            return pack(weight.codes, self.dtype)
        if self.floats:
            return np.frombuffer(self.floats, f"u{self.dtype.storage_bytes}")[weight.codes].view(self.dtype.numpy)
        if weight.format.dtype == self.dtype:
            return weight.packed
        values = weight.format.decode(weight.codes) * self.factor
        return pack(values.astype(np.int16), self.dtype) if self.dtype.is_packed else values.astype(self.dtype.numpy)


def panel_codes(format: Format, request: Request) -> PanelCodes | None:
    """How a product takes the codes of a format, or None where it cannot.

    What is multiplied by int8 activations may come out of a table: exactly where all values are multiples of one number
    (e2m1), else (nf4) as the nearest bytes, where activations are rounded to bytes too.
    """
    if format.is_dense:
        assert format.dtype is not None
        short = format.dtype.is_float and format.dtype.bits <= WIDEST
        return PanelCodes(format.dtype, 1.0) if short and not request.quantize else None
    plain, factor = panel_type(format), format.whole_factor
    int8 = request.activations == "int8" or request.quantize == "int8"
    short = plain is None or plain.bits == 8
    if int8 and short and format.bits <= 4 and np.isfinite(format.table).all() and (plain or request.quantize):
        steps = float(factor) if factor is not None else byte_factor(format)
        return PanelCodes(dtype("uint4"), steps, _padded(tuple(int(v) for v in np.rint(format.table * steps))))
    if plain is None or factor is None:
        return None if request.quantize else panel_floats(format) or panel_table(format)
    return PanelCodes(plain, float(factor))


def _padded(values: tuple[float, ...]) -> tuple[float, ...]:
    """A table for codes of four bits; codes beyond the format's are in no weight."""
    return values + values[:1] * (16 - len(values))


@functools.cache
def byte_factor(format: Format) -> float:
    """The multiple of a format's values whose nearest bytes are nearest to it, by the greatest error."""
    largest = float(np.abs(format.table).max())
    factors = np.arange(64.0, 127.0 + 1 / 64, 1 / 64)[:, None] / largest
    errors = np.abs(np.rint(format.table * factors) / factors - format.table).max(axis=1)
    return float(factors[errors.argmin(), 0])


@functools.cache
def panel_floats(format: Format) -> PanelCodes | None:
    """The float type that holds a format's values, or their doubles, exactly: of 8 bits, else of 16; None where there
    is none."""
    if not format.values or format.unused:
        return None
    for name in FLOAT_TYPES:
        of = number_format(name)
        assert of.dtype is not None
        known = {_bits(value): code for code, value in reversed(list(enumerate(of.values)))}
        for factor in (1.0, 2.0):
            found = [known.get(_bits(value * factor)) for value in format.values]
            if None not in found:
                return PanelCodes(of.dtype, factor, floats=bytes(code for code in found if code is not None))
    for wide in map(dtype, WIDE_FLOATS):
        if format.bits > 4 and _holds(wide, format):  # a table has fewer
            return PanelCodes(wide, 1.0, floats=round_float(format.table, wide).astype(wide.numpy).tobytes())
    return None


@functools.cache
def panel_table(format: Format) -> PanelCodes | None:
    """A table of the floats that codes of at most four bits stand for; None where there are more, or some are not
    finite."""
    if format.bits > 4 or not format.values or not np.isfinite(format.table).all():
        return None
    return PanelCodes(dtype("uint4"), 1.0, _padded(tuple(float(value) for value in format.table)))


def _bits(value: float) -> bytes:
    """What tells numbers apart, the zeros too; NaN is one."""
    return np.float64(np.nan if np.isnan(value) else value).tobytes()


FLOAT_TYPES = ("e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0")
"""Formats whose codes a kernel makes floats of in registers, those first that take the fewest operations."""
WIDE_FLOATS = ("float16", "bfloat16")
"""Types for values of at most 8 bits that none of those has."""


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


def _token_scales(request: Request, example: Array) -> Callable[[base.Operands], object]:
    """One float32 scale a row, whatever the call gives."""

    def expanded(call: base.Operands) -> Array:
        rows = call.activations.shape[0]
        if call.activation_scales is None:
            return placed_like(np.ones(rows, np.float32), example)
        scales = call.activation_scales.reshape(-1)
        if request.activation_scales == "token" and request.activation_scale_dtype == "float32":
            return scales
        wide = as_float32(scales)
        if len(wide) == rows:
            return wide
        return np.repeat(wide, rows) if isinstance(wide, np.ndarray) else wide.repeat(rows)

    return expanded
