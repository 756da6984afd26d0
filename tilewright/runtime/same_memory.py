"""Tensors that an author says may be the same memory: where a call passes one twice, the kernel is made for one.

Passes take tensors as distinct; a program that has one tensor where two were is right without their knowing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.ir.nodes import Buffer, Function
from tilewright.ir.signature import MAY_SHARE
from tilewright.ir.visitor import substitute
from tilewright.runtime.tensors import is_tensor, tensor_view


def shared_places(function: Function, values: Sequence[object]) -> tuple[int, ...]:
    """For each input the first whose memory it has, read in the same way: itself but for tensors that may be shared.

    Parameters
    ----------
    values : one an input.
    """
    named = function.attribute(MAY_SHARE, ())
    first: dict[object, int] = {}
    found = []
    for number, (param, value) in enumerate(zip(function.inputs, values, strict=True)):
        key: object = number
        if isinstance(param, Buffer) and param.name in named and is_tensor(value):
            view = tensor_view(value)
            key = (view.pointer, view.shape, view.strides, param.dtype, param.shape, param.strides)
        found.append(first.setdefault(key, number))
    return tuple(found)


def as_one(function: Function, found: Sequence[int]) -> Function:
    """The function with one tensor for those of one place."""
    inputs = function.inputs
    pairs = ((inputs[number], inputs[place]) for number, place in enumerate(found) if number != place)
    gone = {one: kept for one, kept in pairs if isinstance(one, Buffer) and isinstance(kept, Buffer)}
    params = tuple(param for param in function.params if param not in gone)
    return replace(function, params=params, body=substitute(function.body, buffers=gone))
