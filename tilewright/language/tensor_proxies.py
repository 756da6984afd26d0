"""What tensors, tiles and slices of a program share: nothing that Python does with numbers and arrays works on them;
and how long a slice is: ``(i + 1) * 64 - i * 64`` is 64, whatever ``i``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from tilewright.ir import nodes as ir
from tilewright.ir.structure import key
from tilewright.language import mistakes


class TensorProxy:
    """Base of what has elements: whole buffers and parts of them."""

    __slots__ = ()

    @property
    def description(self) -> str:
        """What it is called in messages."""
        return "a tensor"

    if not TYPE_CHECKING:  # a type checker knows what there is

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            raise mistakes.UnknownAttribute(self.description, name, dir(type(self)))

    def __bool__(self) -> bool:
        raise mistakes.TensorCondition(self.description)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: object) -> NoReturn:
        raise mistakes.TensorOperand(f"np.{ufunc.__name__}", self.description)

    @classmethod
    def __torch_function__(cls, function: Callable[..., object], *_: object) -> NoReturn:
        raise mistakes.TensorOperand(f"torch.{getattr(function, '__name__', 'function')}", "a tensor of the program")

    def __iter__(self) -> NoReturn:
        raise mistakes.SymbolicIteration(self.description)

    if TYPE_CHECKING:  # the operators, which the lines below refuse one by one

        def _of_two(self, other: object, /) -> NoReturn: ...
        def __neg__(self) -> NoReturn: ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _of_two
        __matmul__ = __lt__ = __gt__ = __le__ = __ge__ = _of_two


def _refusing(sign: str) -> Callable[..., NoReturn]:
    def operate(self: TensorProxy, *other: object) -> NoReturn:
        raise mistakes.TensorOperand(f"`{sign}`", self.description)

    return operate


for _names, _sign in (
    ("add radd", "+"),
    ("sub rsub neg", "-"),
    ("mul rmul", "*"),
    ("truediv rtruediv", "/"),
    ("matmul", "@"),
    ("lt", "<"),
    ("gt", ">"),
    ("le", "<="),
    ("ge", ">="),
):
    for _name in _names.split():
        setattr(TensorProxy, f"__{_name}__", _refusing(_sign))


Polynomial = Mapping[tuple[int, ...], int]
"""Sums of products: the sorted numbers of a product's atoms, and its factor."""


def length(start: ir.Extent, stop: ir.Extent) -> ir.Extent:
    """``stop - start``: an int where it is provably the same for all values of the variables."""
    if isinstance(start, int) and isinstance(stop, int):
        return stop - start
    atoms: dict[object, int] = {}
    difference = _sum(_expand(ir.expr(stop), atoms), _expand(ir.expr(start), atoms), -1)
    if all(product == () for product in difference):
        return difference.get((), 0)
    return stop - start


def _expand(expr: ir.Expr, atoms: dict[object, int]) -> Polynomial:
    if isinstance(expr, ir.Const):
        return {(): int(expr.value)} if expr.value else {}
    if isinstance(expr, ir.Binary) and expr.op in ("add", "sub", "mul"):
        left, right = _expand(expr.left, atoms), _expand(expr.right, atoms)
        if expr.op == "mul":
            return _product(left, right)
        return _sum(left, right, 1 if expr.op == "add" else -1)
    if isinstance(expr, ir.Unary) and expr.op == "neg":
        return _sum({}, _expand(expr.value, atoms), -1)
    number = atoms.setdefault(key(expr), len(atoms))
    return {(number,): 1}


def _sum(left: Polynomial, right: Polynomial, sign: int) -> Polynomial:
    total = dict(left)
    for product, factor in right.items():
        total[product] = total.get(product, 0) + sign * factor
        if not total[product]:
            del total[product]
    return total


def _product(left: Polynomial, right: Polynomial) -> Polynomial:
    total: dict[tuple[int, ...], int] = {}
    for a, x in left.items():
        for b, y in right.items():
            product = tuple(sorted((*a, *b)))
            total[product] = total.get(product, 0) + x * y
    return {product: factor for product, factor in total.items() if factor}
