"""Fact classes: what is known of sizes only at launch, and lets the compiler do better.

A size that steps from row to row decides whether rows start at addresses that vectors and copy engines can use.
Programs with such sizes are compiled a second time under the assumption that all of them are multiples of
`MULTIPLE`; the host program tests that, and takes the variant where it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.ir.dtypes import BOOL
from tilewright.ir.nodes import Assume, Binary, Buffer, Const, Expr, Function, Seq, Var
from tilewright.ir.signature import entry_parameters
from tilewright.ir.visitor import walk

MULTIPLE = 16
"""Elements: with one byte each this is what the widest accesses and tensor maps ask for."""


def stride_sizes(function: Function) -> tuple[Var, ...]:
    """Sizes known only at launch on which the place of a row depends, in order of appearance."""
    found: dict[Var, None] = {}
    for param in function.params:
        if isinstance(param, Buffer):
            for extent in param.shape[1:] if param.strides is None else param.strides:
                if isinstance(extent, Expr):
                    found.update((node, None) for node in walk(extent) if isinstance(node, Var))
    return tuple(var for var in found if var in entry_parameters(function))


def holds(function: Function, sizes: Sequence[Var], entry: Sequence[Any]) -> bool:
    """Whether all `sizes` are multiples in a call with these entry arguments."""
    values = dict(zip(entry_parameters(function), entry, strict=True))
    return all(values[var] % MULTIPLE == 0 for var in sizes)


def assuming(function: Function, sizes: Sequence[Var]) -> Function:
    """The same program, told that all `sizes` are multiples."""
    facts = []
    for var in sizes:
        rest = Binary(var.dtype, "floormod", var, Const(var.dtype, MULTIPLE))
        facts.append(Assume(Binary(BOOL, "eq", rest, Const(var.dtype, 0)), span=function.span))
    return replace(function, body=Seq((*facts, *function.body.statements), span=function.body.span))
