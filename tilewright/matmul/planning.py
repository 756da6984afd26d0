"""How a product is computed by the general kernel: what is multiplied in which type, and where scales enter.

Codes and zero points stay whole numbers as long as possible: they are subtracted before anything is rounded, integers
are multiplied as integers, scales enter sums.  Only where a zero point is no whole number, or is subtracted from the
scaled weight, does a scale enter the element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from tilewright.errors import Unsupported, WrongArgumentShape
from tilewright.formats import Format
from tilewright.ir.dtypes import DType, dtype
from tilewright.kernels import FUNCTIONS, PAIRED, UNUSED, Recipe, Request, WeightFacts
from tilewright.machine import Arch, MatrixInstruction
from tilewright.matmul.column_order import RUN
from tilewright.ops.rounding import round_float

ACTIVATIONS = (
    "float16", "bfloat16", "float32", "float64", "int8", "uint8", "int4", "uint4", "int2", "uint2", "float8_e4m3fn",
    "float8_e5m2",
)  # fmt: skip
"""Element types of activations."""

QUANTIZED = ("int8", "float8_e4m3fn", "float8_e5m2")
"""What activations may be quantised to in the same call."""


def recipe_for(facts: WeightFacts, numbers: np.ndarray | None, request: Request, arch: Arch) -> Recipe:
    """The general kernel's recipe for a weight and a call. `numbers` are all that ``(value - zero) * multiplier`` can
    be; None where that is not known. Raises Unsupported for types that no kernel takes, and says which there are."""
    check_request(request)
    source = dtype(request.activations)
    left, right, whole = operand_types(source, facts, numbers, arch)
    if facts.divisors and not request.divided and dtype(left).bits == 8:
        left, right, whole = _float_operand(arch, numbers), _float_operand(arch, numbers), 1
    weight_scaled = facts.zeros == "rescale"
    scaled = "none"
    if facts.scale is not None:
        along_k = facts.scale.varies_along_k
        scaled = "weight" if weight_scaled else "sums" if along_k else "result"
        # A word of interleaved codes belongs to one tile.
        if scaled == "sums" and facts.group % (facts.tiles[0] or (32 if facts.slots else RUN)):
            scaled = "weight"
    activation_scales = request.activation_scales
    if activation_scales == "group" and (request.activation_group % RUN or facts.gather):
        activation_scales = "element"
        left = right = _wider(left)
    if dtype(left).bits == 8 and (scaled == "weight" or weight_scaled):
        left, right, whole = _float_operand(arch, numbers), _float_operand(arch, numbers), 1
    integers = dtype(left).is_integer
    own = {field.name: getattr(facts, field.name) for field in fields(facts)} | {
        "zero": facts.zero * whole,
        "scale": facts.scale or UNUSED,
        "zero_point": facts.zero_point or UNUSED,
        "factor": facts.factor or whole > 1,
        "divisors": facts.divisors and not request.divided,
    }
    return Recipe(
        **own,
        activations=request.activations,
        left=left,
        right=right,
        accumulate="int32" if integers else "float64" if left == "float64" else "float32",
        scaled=scaled,
        whole=whole,
        activation_scales=activation_scales,
        activation_group=request.activation_group,
        activation_scale_dtype=request.activation_scale_dtype,
        bias=request.bias,
        residual=request.residual,
        function=request.function,
        out=request.out,
    )


def check_request(request: Request, functions: Sequence[str] = FUNCTIONS) -> None:
    """The types of a call are such as products have, its function one of these.  Raises Unsupported."""
    if request.activations not in ACTIVATIONS:
        raise Unsupported(f"activations of {request.activations}", ACTIVATIONS)
    if request.quantize is not None and request.quantize not in QUANTIZED:
        raise Unsupported(f"quantising activations to {request.quantize}", QUANTIZED)
    if request.quantize is not None and not dtype(request.activations).is_float:
        floats = [name for name in ACTIVATIONS if dtype(name).is_float]
        raise Unsupported(f"quantising activations of {request.activations}", floats)
    if request.function is not None and request.function not in functions:
        raise Unsupported(f"the activation function {request.function!r}", functions)
    out = dtype(request.out)
    if out.kind == "bool" or out.bits < 8:
        raise Unsupported(f"results of {request.out}", ("floats and integers of 8 bits and more",))


def result_columns(N: int, function: str | None) -> int:
    """Columns of the result of a weight of N rows. Raises WrongArgumentShape."""
    if function not in PAIRED:
        return N
    if N % 2:
        raise WrongArgumentShape(f"{function} takes pairs of columns, but the weights have {N} rows")
    return N // 2


def check_sums(name: object, activations: DType) -> None:
    """The type that sums are asked for in is one that says something of them; None leaves it to us. Raises
    Unsupported."""
    if name is None:
        return
    asked = name if isinstance(name, str) else dtype(name).name
    known = ("float32", "float64", "float16 (by float32)")
    if asked not in ("float16", "float32", "float64", "int32"):
        raise Unsupported(f"sums in {asked}", ("int32", *known))
    if asked == "int32" and activations.is_float:
        raise Unsupported(f"sums of {activations} activations in int32", known)


def operand_types(source: DType, facts: WeightFacts, numbers: np.ndarray | None, arch: Arch) -> tuple[str, str, int]:
    """Types that are multiplied, and the factor that makes the weight's numbers whole."""
    if facts.format.is_dense:
        operand = _dense_operand(source, facts, arch)
        return operand, operand, 1
    if source.is_integer:
        whole = facts.format.whole_factor
        if whole != 1 and facts.zeros in ("groups", "packed"):
            whole = None
        left = "uint8" if source.kind == "uint" else "int8"
        if whole and numbers is not None and _fits(numbers * whole, "int8"):
            return left, "int8", whole
        return _float_operand(arch, numbers), _float_operand(arch, numbers), 1
    if source.bits == 8:
        native = numbers is not None and _fits(numbers, source.name) and _multiplies(arch, source)
        other = _float_operand(arch, numbers)
        return (source.name, source.name, 1) if native else (other, other, 1)
    if not arch.has_threads and source.bits <= 16:
        return "float32", "float32", 1
    operand = source.name if source.name != "float16" or _in_range(numbers, "float16") else "float32"
    return operand, operand, 1


def _dense_operand(source: DType, facts: WeightFacts, arch: Arch) -> str:
    """A type that holds activations and a weight of 16 bits and more exactly; float32 where one of them is wider,
    float64 for such activations."""
    own = facts.format.dtype
    assert own is not None
    if source.bits > 32 or not arch.has_threads:
        return "float64" if source.bits > 32 else "float32"
    narrow = source.bits <= 8 and (own.name == "float16" or not facts.divisors)  # divided ones are no small integers
    return own.name if own.bits == 16 and (narrow or source == own) else "float32"


def _float_operand(arch: Arch, numbers: np.ndarray | None) -> str:
    """A type that holds small integers and all 8-bit floats exactly, and that the machine multiplies fast; float32 for
    numbers out of its range."""
    return "float16" if arch.has_threads and _in_range(numbers, "float16") else "float32"


def _in_range(numbers: np.ndarray | None, name: str) -> bool:
    """Whether no number becomes infinite or 0 in a float type, nor loses more than a rounding does; None are moderate
    ones."""
    finite = np.zeros(1) if numbers is None else numbers[np.isfinite(numbers)]
    record = dtype(name)
    errors = np.abs(round_float(finite, record).astype(np.float64) - finite)
    return bool((errors <= np.abs(finite) * 0.5 ** (record.mantissa_bits + 1)).all())


def _wider(name: str) -> str:
    return "float64" if name == "float64" else "float32"


def _fits(numbers: np.ndarray, name: str) -> bool:
    """Whether a type has all the numbers, NaN apart."""
    record = dtype(name)
    real = numbers[~np.isnan(numbers)]
    if record.is_integer:
        return bool(((real == np.rint(real)) & (real >= record.minimum) & (real <= record.maximum)).all())
    return bool((round_float(real, record).astype(np.float64) == real).all())


def _multiplies(arch: Arch, of: DType) -> bool:
    """Whether the machine has an instruction for products of a type that any thread can feed."""
    return any(one.a == of == one.b and not one.asynchronous for one in arch.products(MatrixInstruction))


def table_of(of: Format, whole: int) -> np.ndarray:
    """Values of the codes as the kernel looks them up."""
    return np.ones(1, np.float32) if of.is_dense else np.where(np.isnan(of.table), 0.0, of.table) * whole
