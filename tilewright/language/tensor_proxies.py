"""What tensors, tiles and slices of a program share: nothing that Python does with numbers and arrays works on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import numpy as np

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
