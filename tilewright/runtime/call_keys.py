"""What tells calls apart: keys of their arguments, and guards, which compare them with those of an earlier call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.generated import made_function

MISSED = object()
"""What a plan answers where the call needs the full checks after all."""

CallPlan = Callable[..., Any]
"""Runs a call again, with its arguments, or answers `MISSED`."""


def kind_of(value: object) -> str | None:
    """What tells how an argument's key is read; None for arguments that have none."""
    kind = type(value)
    if kind is np.ndarray:
        return "numpy"
    if kind in torch_types():
        return "torch"
    return {int: "int", float: "float", bool: "bool", str: "str", type(None): "none"}.get(kind)


_TORCH_TYPES: list[frozenset[type]] = []


def torch_types() -> frozenset[type]:
    """Torch's tensor types, once torch is loaded: only a torch tensor can be of them."""
    if _TORCH_TYPES:
        return _TORCH_TYPES[0]
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return frozenset()
    _TORCH_TYPES.append(frozenset((torch.Tensor, torch.nn.Parameter)))
    return _TORCH_TYPES[0]


_PARTS = {
    "numpy": "{0}.shape, {0}.strides, {0}.dtype, {0}.flags.num",
    "torch": "{0}.shape, {0}.dtype, {0}.get_device(), {0}.is_contiguous() or {0}.stride(), {0}.is_neg()",
    "float": "{0}.hex()",
    "strided": "{0}.shape, {0}.dtype, {0}.get_device(), {0}.stride(), {0}.is_neg()",
}
"""What a plan depends on, by kind of argument; for others the value itself."""

_KIND_TESTS = {"numpy": "type({0}) is ndarray", "torch": "type({0}) in tensors", "none": "{0} is None"}


def key_function(
    kinds: Sequence[str | None],
    number: int,
    strided: Collection[int] = (),
    free: Collection[int] = (),
    in_modes: bool = False,
) -> Callable[..., Any]:  # gives keys, which nobody looks into
    """A function of arguments of these kinds that gives what a plan depends on; None for other arguments, and where
    torch has no sizes or strides of a tensor: who reads it says what is wrong with it.

    Parameters
    ----------
    kinds : of `kind_of`, one an argument.
    number : of these kinds, which tells their keys from those of others: True and 1 are equal.
    strided : positions of tensors whose strides count even where their order is row-major.
    free : positions of scalars whose value does not count.
    in_modes : whether it counts that torch's mode of inference is on, and was where a tensor was made.
    """
    names = [f"a{i}" for i in range(len(kinds))]
    tests, parts = [], [str(number)]
    for position, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        tests.append(_KIND_TESTS.get(kind or "", f"type({{0}}) is {kind}").format(name))
        way = "strided" if kind == "torch" and position in strided else kind
        if position not in free:
            parts.append(_PARTS.get(way or "", "{0}").format(name))
        if in_modes and kind == "torch":
            parts.append(f"{name}.is_inference()")
    known: dict[str, object] = {"ndarray": np.ndarray, "tensors": torch_types()}
    if in_modes and "torch" in kinds:
        known["in_inference"] = sys.modules["torch"].is_inference_mode_enabled
        parts.append("in_inference()")
    lines = [f"if {' and '.join(tests) or 'True'}:", f" try: return ({', '.join(parts)},)"]
    return made_function("key", names, [*lines, " except RuntimeError: return None", "return None"], known)


def no_key(*arguments: object) -> None:
    """The key function before any call was met."""
    return


def missed(*arguments: object, otherwise: object = None) -> object:
    """What runs where no plan is known."""
    return MISSED


def guarded(
    values: Sequence[Any],
    passed: Sequence[int],
    plan: CallPlan,
    free: Collection[int],
    otherwise: Callable[..., Any],
    also: str = "",
    compares: bool = False,
    **names: object,
) -> Callable[..., Any] | None:  # as the kernel is called
    """A function that runs a plan for values like these, `otherwise` for others; None where there can be none.

    Who calls it may name another `otherwise`.

    Torch compares tensors with what it remembers of others in one step, for its own compiled programs: in a third of
    the time that a key takes.  Arrays of NumPy are compared attribute by attribute, in half of it.

    Parameters
    ----------
    values : of a call.
    passed : positions of those that the plan takes.
    free : positions of scalars whose value does not count.
    also : a condition to be tested first, in terms of `names`.
    compares : whether the plan compares the arrays of NumPy itself, and answers `MISSED` for others.
    """
    kinds = [kind_of(value) for value in values]
    tensors = [i for i, kind in enumerate(kinds) if kind == "torch"]
    remembered = tensor_guard([values[i] for i in tensors])
    if None in kinds or (tensors and remembered is None):
        return None
    tests = [also] if also else []
    names.update(plan=plan, otherwise=otherwise, MISSED=MISSED, ndarray=np.ndarray)
    if tensors:
        names["check"] = remembered.check
        tests.append(f"not nested and check({', '.join(f'a{i}' for i in tensors)})")
    for i, (value, kind) in enumerate(zip(values, kinds, strict=True)):
        if i in free:
            tests.append(f"type(a{i}) is {kind}")
        elif kind == "none":
            tests.append(f"a{i} is None")
        elif kind == "numpy" and compares:
            continue
        elif kind == "numpy":
            names |= {f"dtype{i}": value.dtype, f"shape{i}": value.shape, f"strides{i}": value.strides}
            tests.append(f"type(a{i}) is ndarray and a{i}.dtype is dtype{i} and a{i}.shape == shape{i}")
            tests.append(f"a{i}.strides == strides{i} and a{i}.flags.num == {value.flags.num}")
        elif kind != "torch":
            names |= {f"type{i}": type(value), f"value{i}": value}
            # 0.0 and -0.0 are equal, and so are True and 1
            same = f"a{i}.hex() == value{i}.hex()" if kind == "float" else f"a{i} == value{i}"
            tests.append(f"type(a{i}) is type{i} and {same}")
    given, taken = ", ".join(f"a{i}" for i in range(len(values))), ", ".join(f"a{i}" for i in passed)
    lines = []
    if tensors:  # torch's check ends the process where it meets a nested tensor, of which it asks the strides
        nested = " or ".join(f"a{i}.is_nested" for i in tensors)
        lines = [f"try: nested = {nested}", f"except AttributeError: return otherwise({given})"]
    lines.append(f"if {' and '.join(tests) or 'True'}:")
    if compares:
        lines += [f" found = plan({taken})", " if found is not MISSED: return found"]
    else:
        lines.append(f" return plan({taken})")
    parameters = [*(f"a{i}" for i in range(len(values))), "*", "otherwise=otherwise"]
    return made_function("call", parameters, [*lines, f"return otherwise({given})"], names)


def tensor_guard(tensors: Sequence[Any]) -> Any:
    """Torch's memory of tensors' types, devices, shapes and strides; None for torches that have none."""
    try:
        make = sys.modules["torch"]._C._dynamo.guards.TensorGuards
        shapes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
        guard = make(*tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides)
        return guard if tensors and guard.check(*tensors) else None
    except (KeyError, AttributeError, TypeError, SystemError, RuntimeError):
        return None


def key_of(arguments: Sequence[object], named: Mapping[str, object]) -> object:
    """A hashable key of compile-time arguments, None where one cannot be a key.

    The type is part of it, since ``1`` and ``1.0`` and ``True`` are equal and make different programs.
    """
    key = tuple((name, type(value), _frozen(value)) for name, value in (*enumerate(arguments), *named.items()))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _frozen(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return tuple((type(item), _frozen(item)) for item in value)
    if isinstance(value, float):
        return value.hex()  # 0.0 and -0.0 are equal
    if isinstance(value, dict):
        return tuple((name, _frozen(item)) for name, item in value.items())
    return value
