"""Variables without a first value: found in a text, and followed so that a read before the first write is reported."""

from __future__ import annotations

import re

_DECLARATION = re.compile(
    r"^(?P<type>(?:tw::)?(?:u?int(?:8|16|32|64)_t|unsigned(?: int)?|int|float|double|bool|half|bfloat16|u?int[24]))\s+"
    r"(?P<names>\w+(?:\s*,\s*\w+)*)\s*;$"
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_MARKS = re.compile(
    r"//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/|\"(?:[^\"\\\n]|\\.)*\"|[{};\n]|\b(?:struct|union|class|enum)\b|[^{};\n\"/\s]+|/"
)


def follow_unset(source: str) -> str:
    """The text with each variable that is declared in a function without a value followed from there; lines stay where
    they are."""
    pieces: list[str] = []
    inside: list[bool] = []  # for each open brace: whether it is a function's
    statement, start, written, record = 0, 0, 0, False
    for mark in _MARKS.finditer(source):
        word = mark.group()
        if word == "{":
            inside.append(not record)
        elif word == "}" and inside:
            inside.pop()
        elif word == ";" and inside and all(inside):
            declaration = _DECLARATION.match(" ".join(_COMMENT.sub(" ", source[statement : mark.end()]).split()))
            if declaration:
                followed = "".join(
                    f" ::TwUnset tw_unset_{name}(&{name}, sizeof {name});"
                    for name in re.split(r"\s*,\s*", declaration["names"])
                )
                pieces += [source[written : mark.end()], followed]
                written = mark.end()
        if word in "{};":
            statement, record = mark.end(), False
        elif word in ("struct", "union", "class", "enum"):
            record = True
        elif word == "\n" and source[start : mark.start()].lstrip().startswith("#"):
            statement = mark.end()
        if word == "\n":
            start = mark.end()
    return "".join([*pieces, source[written:]])
