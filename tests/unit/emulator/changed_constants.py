"""Constants of device headers, each with another number in its place: what a test of the headers must notice."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NUMBER = re.compile(
    r"(?<![\w.])(?:(0x[0-9A-Fa-f]+|\d+)(?=(?:u|ul|ull)?(?![\w.]))|(\d+\.\d*(?:e[-+]?\d+)?)(?=f?(?![\w.])))"
)
_FUNCTION = re.compile(r"TW_DEVICE [^;{}()\n]*?(\w+)\(")


@dataclass(frozen=True)
class Constant:
    """A number of a text: where it stands, what it becomes, and the last function that begins before it."""

    start: int
    end: int
    other: str
    function: str
    line: int

    def changed(self, text: str) -> str:
        """The text with the other number."""
        return text[: self.start] + self.other + text[self.end :]

    def words(self, text: str) -> str:
        """The line, with what the number becomes."""
        first, last = text.rfind("\n", 0, self.start) + 1, text.index("\n", self.end)
        return f"{text[first : self.start]}{text[self.start : self.end]} -> {self.other}{text[self.end : last]}"


def constants(text: str) -> list[Constant]:
    """The numbers of a text in its order; those of comments, directives and assertions of the compiler's left out."""
    found, at, function = [], 0, ""
    for line, words in enumerate(text.split("\n")):
        code = re.sub(r"/\*.*?\*/", lambda comment: " " * len(comment[0]), words.split("//")[0])
        named = _FUNCTION.findall(code)
        function = named[-1] if named else function
        if not code.lstrip().startswith(("#if", "#elif", "#endif", "#pragma", "#include", "#undef", "static_assert")):
            found += [
                Constant(at + match.start(), at + match.end(), other(match[0]), function, line)
                for match in _NUMBER.finditer(code)
            ]
        at += len(words) + 1
    return found


def other(number: str) -> str:
    """A number near another: a whole one beside it, a fraction that is a few thousandths larger, twice one that is hardly there."""
    if "." in number:
        value = float(number)
        return repr(value + 1.0 if value == int(value) and value < 2**20 else value * (2.0 if value < 1e-6 else 1.004))
    value = int(number, 0)
    return str(value ^ 1 if value < 32 else value + 1)
