"""The values of a grid, of a loop over several extents or of several sizes, where the author gives them one name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

from tilewright.language.mistakes import SeveralValues


def _refusing(operation: str) -> Callable[[Several, object], NoReturn]:
    def refuse(self: Several, _: object) -> NoReturn:
        raise SeveralValues(operation, len(self), self.word, self.names)

    return refuse


class Several(tuple[object, ...]):
    """A tuple of indices or sizes: it is indexed, unpacked and passed on, and arithmetic on it is a mistake that names
    where it came from, where a tuple of Python's would be repeated by `*` without a word."""

    word: str
    names: str

    @classmethod
    def of(cls, word: str, names: str, values: Iterable[object]) -> Several:
        """The values, the word of the language that gave them, and how the author would name each."""
        made = cls(values)
        made.word, made.names = word, names
        return made

    @property
    def description(self) -> str:
        return f"the {len(self)} values of {self.word} together"

    def __add__(self, other: object) -> tuple[object, ...]:  # type: ignore[override]
        """Tuples are joined, as in Python."""
        return (*self, *other) if isinstance(other, tuple) else _refusing("`+`")(self, other)

    def __radd__(self, other: object) -> tuple[object, ...]:
        return (*other, *self) if isinstance(other, tuple) else _refusing("`+`")(self, other)


for _name, _operation in {"mul": "*", "floordiv": "//", "truediv": "/", "mod": "%", "sub": "-"}.items():
    setattr(Several, f"__{_name}__", _refusing(f"`{_operation}`"))
    setattr(Several, f"__r{_name}__", _refusing(f"`{_operation}`"))
