"""Words that older programs use for what the language says otherwise: each stands for the newer one."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from tilewright.ir import nodes
from tilewright.ir.dtypes import INT32, UINT32
from tilewright.ir.nodes import Call, Let, Select, Var, binary, const
from tilewright.language.buffers import BufferProxy
from tilewright.language.builder import in_kernel
from tilewright.language.interface import author_facing
from tilewright.language.macro import Macro, SizeVariable
from tilewright.language.math import FUNCTIONS
from tilewright.language.memory import alloc_buffer, view
from tilewright.language.mistakes import NumberExpected
from tilewright.language.proxies import Scalar, as_expr, describe
from tilewright.language.roles import wgmma_gemm
from tilewright.language.source import statement_here
from tilewright.language.tensors import TensorAnnotation


@author_facing
def decl_buffer(
    shape: Any, dtype: Any = "float32", data: Any = None, strides: Any = None, elem_offset: Any = None, scope: str = "global"
) -> Any:  # fmt: skip
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


def meta_class(cls: type) -> type:
    """Decorator of a class whose methods speak of the program: each becomes a `T.macro`.

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


def _word(value: Any, what: str) -> nodes.Expr:
    """A 32-bit integer as an unsigned one, under a name."""
    expr = as_expr(value, what=f"the argument of {what}")
    if not expr.dtype.is_integer or expr.dtype.bits != 32:
        raise NumberExpected(f"the argument of {what}", "a 32-bit integer", describe(value))
    return _named(nodes.cast(expr, UINT32) if isinstance(expr, nodes.Const) else nodes.Reinterpret(UINT32, expr))


def _named(value: nodes.Expr) -> nodes.Expr:
    var = Var(value.dtype, "bits")
    in_kernel("a word for bits").append(Let(var, value, span=statement_here()))
    return var


def _count(bits: nodes.Expr) -> nodes.Expr:
    return nodes.cast(Call(UINT32, "popcount", (bits,)), INT32)


@author_facing
def clz(value: Any) -> Scalar:
    """How many of the highest bits of a 32-bit integer are zero; 32 of zero.

    Parameters
    ----------
    value : an integer of 32 bits.

    Examples
    --------
    >>> N[i] = T.clz(N[i])
    """
    bits = _word(value, "T.clz")
    for distance in (1, 2, 4, 8, 16):
        bits = _named(binary("or", bits, binary("shr", bits, const(distance, UINT32))))
    return Scalar(binary("sub", const(32), _count(bits)), in_kernel("T.clz").frame)


@author_facing
def ffs(value: Any) -> Scalar:
    """The place of the lowest bit that is set, from 1; 0 where none is.

    Parameters
    ----------
    value : an integer of 32 bits.

    Examples
    --------
    >>> N[i] = T.__ffs(N[i])
    """
    bits = _word(value, "T.__ffs")
    below = _count(binary("xor", bits, binary("sub", bits, const(1, UINT32))))
    empty = binary("eq", bits, const(0, UINT32))
    return Scalar(Select(INT32, empty, const(0), below), in_kernel("T.__ffs").frame)


# Numbers ------------------------------------------------------------------------------------------


@author_facing
def fast_rcp(value: Any) -> Any:
    """``1 / value``.

    Parameters
    ----------
    value : a float scalar.

    Examples
    --------
    >>> C[i, 0] = T.fast_rcp(A[i, 0])
    """
    return 1.0 / value


@author_facing
def ldg(value: Any) -> Any:
    """The value: what a kernel only reads goes through the read-only cache anyway.

    Parameters
    ----------
    value : an element of a tensor that the kernel only reads.

    Examples
    --------
    >>> C[i, 0] = T.__ldg(A[i, 0])
    """
    return value


FAST = {f"__{name}": FUNCTIONS[name] for name in ("exp", "exp10", "log", "log2", "log10", "sin", "cos", "tan")}
"""Names of faster and less exact functions: here they are as exact as the others."""

TILE_ANNOTATIONS = {
    name: TensorAnnotation(name) for name in ("SharedBuffer", "FragmentBuffer", "LocalBuffer", "TMEMBuffer")
}
"""Annotations of a macro's parameters, which say something to readers alone."""

OLDER_WORDS: dict[str, Any] = {
    "decl_buffer": decl_buffer, "meta_class": meta_class, "Var": SizeVariable, "clz": clz, "__ffs": ffs, "fast_rcp": fast_rcp,
    "__ldg": ldg, "wgmma_mma": wgmma_gemm,
    "nearbyint": FUNCTIONS["round"], "ieee_frsqrt": FUNCTIONS["rsqrt"], **FAST, **TILE_ANNOTATIONS,
}  # fmt: skip
"""Every word, under the names of the language."""
