"""Words that older programs use for what the language says otherwise: each stands for the newer one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import INT32, UINT32, UINT64
from tilewright.language.buffers import BufferProxy
from tilewright.language.conversions import cast
from tilewright.language.macro import Macro, SizeVariable
from tilewright.language.math import FUNCTIONS, abs_, if_then_else
from tilewright.language.memory import alloc_buffer, view
from tilewright.language.mistakes import NumberExpected
from tilewright.language.proxies import Scalar, Value, as_expr, describe
from tilewright.language.recording import author_facing, called, in_kernel, made_word, named, word
from tilewright.language.tensors import TensorAnnotation


@word
def decl_buffer(
    shape: object,
    dtype: object = "float32",
    data: object = None,
    strides: object = None,
    elem_offset: object = None,
    scope: str = "global",
) -> Any:
    """A buffer in the memory that `scope` names; with `data`, a buffer that is there already, in another shape.

    `strides` and `elem_offset` must be left out: a tile is row-major and begins where its memory does.

    Parameters
    ----------
    shape, dtype, scope : as those of `alloc_buffer`.
    data : a buffer.
    strides, elem_offset : must be left out.

    Examples
    --------
    >>> scratch = T.decl_buffer((64, 64), "float32", scope="shared")
    >>> T.copy(A, scratch)
    """
    if strides not in (None, []) or elem_offset not in (None, 0):
        raise NumberExpected("T.decl_buffer", "no strides and no elem_offset", describe(strides or elem_offset))
    if data is None:
        return alloc_buffer(shape, dtype, scope)
    if not isinstance(data, BufferProxy):
        raise NumberExpected("data of T.decl_buffer", "a buffer", describe(data))
    return view(data, shape, dtype)


@called("sblock")
@contextmanager
def sblock(name: str = "", no_realize: bool = False) -> Iterator[None]:
    """A named part of a program, without further meaning.

    Parameters
    ----------
    name, no_realize : accepted for TVM's sake.

    Examples
    --------
    >>> with T.sblock("first"):
    ...     C[0, 0] = 1.0
    """
    yield


@called("reads", "writes")
def reads(*regions: object) -> None:
    """What a part of a program reads, or writes: accepted, since the compiler sees it.

    Parameters
    ----------
    regions : slices of buffers.

    Examples
    --------
    >>> T.reads(A[0:16, 0:16])
    """


@called("meta_class")
def meta_class(cls: type) -> type:
    """Decorator of a class whose methods are traced: each becomes a `T.macro`.

    Parameters
    ----------
    cls : the class.
    cls : the class.
    """
    for name, member in list(vars(cls).items()):
        if isinstance(member, FunctionType) and name != "__init__":
            setattr(cls, name, Macro(member))
        elif isinstance(member, property) and isinstance(member.fget, FunctionType):
            setattr(cls, name, property(Macro(member.fget)))
    return cls


# Bits ---------------------------------------------------------------------------------------------


def _word(value: object, what: str) -> ir.Expr:
    """An integer of 32 or 64 bits as an unsigned one, under a name."""
    expr = as_expr(value, what=f"the argument of {what}")
    if not expr.dtype.is_integer or expr.dtype.bits not in (32, 64):
        raise NumberExpected(f"the argument of {what}", "an integer of 32 or 64 bits", describe(value))
    plain = UINT32 if expr.dtype.bits == 32 else UINT64
    return _named(ir.cast(expr, plain) if isinstance(expr, ir.Const) else ir.Reinterpret(plain, expr))


def _named(value: ir.Expr) -> ir.Expr:
    return named(value, "bits", "a word for bits")


def _count(bits: ir.Expr) -> ir.Expr:
    return ir.cast(ir.Call(bits.dtype, "popcount", (bits,)), INT32)


@word
def clz(x: object) -> Scalar:
    """How many of the highest bits of an integer are zero; all of them of zero.

    Parameters
    ----------
    x : an integer of 32 or 64 bits.

    Examples
    --------
    >>> N[i] = T.clz(N[i])
    """
    bits = _word(x, "T.clz")
    width = bits.dtype.bits
    for distance in (1, 2, 4, 8, 16, 32)[: width.bit_length() - 1]:
        bits = _named(ir.binary("or", bits, ir.binary("shr", bits, ir.const(distance, bits.dtype))))
    return Scalar(ir.binary("sub", ir.const(width), _count(bits)), in_kernel("T.clz").frame)


@called("__ffs")
@author_facing
def ffs(value: object) -> Scalar:
    """The place of the lowest bit that is set, from 1; 0 where none is.

    Parameters
    ----------
    value : an integer of 32 or 64 bits.

    Examples
    --------
    >>> N[i] = T.__ffs(N[i])
    """
    bits = _word(value, "T.__ffs")
    below = _count(ir.binary("xor", bits, ir.binary("sub", bits, ir.const(1, bits.dtype))))
    empty = ir.binary("eq", bits, ir.const(0, bits.dtype))
    return Scalar(ir.Select(INT32, empty, ir.const(0), below), in_kernel("T.__ffs").frame)


@called("__fns")
@author_facing
def fns(mask: object, base: object, offset: object) -> Scalar:
    """The place of bit number `offset` of those that are set, from place `base` on; 0xFFFFFFFF where there is none.

    Parameters
    ----------
    mask : an integer of 32 bits.
    base : a place from 0 to 31.
    offset : 1 for the first that is set at `base` or above, -1 for the first at `base` or below; of 0 `base` itself,
        where it is set.

    Examples
    --------
    >>> N[i] = T.__fns(N[i], 0, 2)
    """
    what = "T.__fns"
    bits, start, number = _word(mask, what), _word(base, what), as_expr(offset, INT32, f"the offset of {what}")
    if bits.dtype != UINT32 or start.dtype != UINT32:
        raise NumberExpected(
            f"the mask and the base of {what}", "integers of 32 bits", f"{bits.dtype} and {start.dtype}"
        )
    down = _named(ir.binary("lt", number, ir.const(0)))
    last, one = ir.const(31, UINT32), ir.const(1, UINT32)
    bits = _named(ir.Select(UINT32, down, _reversed(bits), bits))
    start = _named(ir.binary("and", ir.Select(UINT32, down, ir.binary("sub", last, start), start), last))
    counted = _named(ir.binary("shl", ir.binary("shr", bits, start), start))
    left = _named(ir.cast(ir.Select(INT32, down, ir.Unary(INT32, "neg", number), number), UINT32))
    place: ir.Expr = ir.const(0, UINT32)
    for width in (16, 8, 4, 2, 1):  # the wanted one is among the next `width` places, or behind them
        part = ir.binary("and", ir.binary("shr", counted, place), ir.const(2**width - 1, UINT32))
        there = _named(ir.Call(UINT32, "popcount", (part,)))
        behind = _named(ir.binary("lt", there, left))
        left = _named(ir.Select(UINT32, behind, ir.binary("sub", left, there), left))
        place = _named(ir.Select(UINT32, behind, ir.binary("add", place, ir.const(width, UINT32)), place))
    is_zero = _named(ir.binary("eq", number, ir.const(0)))
    place = _named(ir.Select(UINT32, is_zero, start, place))
    set_there = ir.binary("eq", ir.binary("and", ir.binary("shr", bits, place), one), one)
    found = ir.binary("all", set_there, ir.binary("any", is_zero, ir.binary("eq", left, one)))
    answer = ir.Select(UINT32, down, ir.binary("sub", last, place), place)
    return Scalar(_named(ir.Select(UINT32, found, answer, ir.const(2**32 - 1, UINT32))), in_kernel(what).frame)


def _reversed(bits: ir.Expr) -> ir.Expr:
    """A word with its highest bit first."""
    for distance, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF)):
        low, by = ir.const(mask, UINT32), ir.const(distance, UINT32)
        even, odd = ir.binary("and", bits, low), ir.binary("and", ir.binary("shr", bits, by), low)
        bits = _named(ir.binary("or", ir.binary("shl", even, by), odd))
    return bits


# Numbers ------------------------------------------------------------------------------------------


fast_rcp = made_word(
    lambda x: 1.0 / x, "fast_rcp", "``1 / x``.", {"x": "a float scalar."}, "C[i, 0] = T.fast_rcp(A[i, 0])"
)


made_word(
    lambda load_or_buf, index=None: load_or_buf if index is None else load_or_buf[index],
    "__ldg",
    "The value: memory that a kernel only reads is loaded through the read-only cache anyway.",
    {
        "load_or_buf": "an element of a tensor that the kernel only reads, or the tensor.",
        "index": "of the element, where a tensor is given.",
    },
    "C[i, 0] = T.__ldg(A[i, 0])",
)


def _of_floats(function: Callable[..., object], what: str, doc: str) -> Callable[..., object]:
    """A word made of others, of floats; integers are taken as float32."""

    def call(*values: object) -> object:
        return function(*(value if _is_float(value) else cast(value, "float32") for value in values))

    first = "a float; integers are taken as float32."
    both = {"x1": first, "x2": "a number of the same type."}
    return made_word(call, what, doc, {"x": first} if function.__code__.co_argcount == 1 else both)


def _is_float(value: object) -> bool:
    return isinstance(value, Scalar) and value.expr.dtype.is_float


def _asinh(x: Scalar) -> Value:
    size = F["abs"](x)
    near = F["log1p"](size + size * size / (F["sqrt"](size * size + 1.0) + 1.0))
    return _with_sign(if_then_else(size > 1e8, F["log"](size) + math.log(2), near), x)


def _with_sign(size: Value, x: Value) -> Value:
    """A number's size with the sign of another, which -0 has, too."""
    size = F["abs"](size)
    return if_then_else(x < 0, -size, if_then_else(x > 0, size, if_then_else(1.0 / x < 0, -size, size)))


def _hypot(x: object, y: object) -> Value:
    a, b = F["abs"](x), F["abs"](y)
    large, small = if_then_else(a > b, a, b), if_then_else(a > b, b, a)
    ratio = if_then_else(large > 0, small / large, large)
    return large * F["sqrt"](1.0 + ratio * ratio)


F: dict[str, Callable[..., Value]] = {**FUNCTIONS, "abs": abs_}

for _name, _formula, _doc in (
    ("asin", lambda x: F["atan2"](x, F["sqrt"]((1.0 - x) * (1.0 + x))), "Inverse of the sine."),
    ("acos", lambda x: F["atan2"](F["sqrt"]((1.0 - x) * (1.0 + x)), x), "Inverse of the cosine."),
    ("asinh", _asinh, "Inverse of the hyperbolic sine."),
    ("acosh", lambda x: F["log1p"]((x - 1.0) + F["sqrt"]((x - 1.0) * (x + 1.0))), "Inverse of the hyperbolic cosine."),
    ("atanh", lambda x: 0.5 * F["log1p"](2.0 * x / (1.0 - x)), "Inverse of the hyperbolic tangent."),
    ("hypot", _hypot, "Length of a vector of two components."),
    ("copysign", _with_sign, "The size of `x1` with the sign of `x2`."),
):
    _of_floats(_formula, _name, _doc)  # functions of TVM's that are no machine's: of others that are
for _name in ("exp", "exp10", "log", "log2", "log10", "sin", "cos", "tan"):
    called(f"__{_name}")(FUNCTIONS[_name])  # names of faster and less exact functions: here they are as exact
called("nearbyint")(FUNCTIONS["round"])
called("ieee_frsqrt")(FUNCTIONS["rsqrt"])
called("power")(FUNCTIONS["pow"])
called("Var")(SizeVariable)
for _name in ("SharedBuffer", "FragmentBuffer", "LocalBuffer", "TMEMBuffer"):
    called(_name)(TensorAnnotation(_name))  # annotations of a macro's parameters, which say something to readers alone
