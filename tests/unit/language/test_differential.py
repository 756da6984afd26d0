"""Random programs run twice from one text: by Python itself, and traced and interpreted.  They must agree.

The text imports names from ``T``: in the first run those of a stand-in for which ``T.alloc_var`` is an ordinary
variable and ``T.Kernel`` does nothing.
"""

import contextlib
import linecache
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilewright.language as T
from tilewright.interpreter import interpret

PYTHON = SimpleNamespace(
    alloc_var=lambda dtype, init: init,
    Kernel=lambda *_, **__: contextlib.nullcontext(0),
    prim_func=lambda function: function,
    macro=lambda function: function,
    serial=range,
    unroll=range,
    Tensor=lambda *_: None,
    int32=None,
)


class Writer:
    """Writes a random kernel over the variables x, y, z, the tensor A and the known numbers k, flag."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.values = 0

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def atom(self, names: list[str]) -> str:
        choice = self.random.random()
        if choice < 0.2:
            return str(self.random.randint(-9, 9))
        if choice < 0.35:
            return f"A[({self.random.choice(names)}) % 8]"
        return self.random.choice(names)

    def number(self, names: list[str], depth: int = 2) -> str:
        if depth == 0 or self.random.random() < 0.2:
            return self.atom(names)
        left, right = self.number(names, depth - 1), self.number(names, depth - 1)
        form = self.random.choice(["+", "-", "*", "//", "%", "min", "max", "if", "abs", "&", "^"])
        if form in ("//", "%"):
            return f"({left}) {form} {self.random.randint(2, 9)}"
        if form in ("min", "max"):
            return f"{form}({left}, {right})"
        if form == "if":
            return f"({left} if {self.truth(names, depth - 1)} else {right})"
        if form == "abs":
            return f"abs({left})"
        return f"({left} {form} {right})"

    def truth(self, names: list[str], depth: int = 2) -> str:
        form = self.random.choice(["<", "<=", "==", "!=", "chain", "and", "or", "not", "flag", "number"])
        if depth == 0 or form in ("<", "<=", "==", "!="):
            sign = form if form in ("<", "<=", "==", "!=") else ">"
            return f"{self.number(names, 1)} {sign} {self.number(names, 1)}"
        if form == "chain":
            return f"{self.atom(names)} < {self.number(names, 1)} <= {self.atom(names)} + 9"
        if form in ("and", "or"):
            return f"({self.truth(names, depth - 1)} {form} {self.truth(names, depth - 1)})"
        if form == "not":
            return f"not {self.truth(names, depth - 1)}"
        return "flag" if form == "flag" else f"({self.number(names, 1)}) % 3"

    def block(self, depth: int, names: list[str], loop: str | None, budget: int) -> None:
        names = list(names)
        for _ in range(self.random.randint(1, 4)):
            self.statement(depth, names, loop, budget)

    def statement(self, depth: int, names: list[str], loop: str | None, budget: int) -> None:
        kinds = ["assign", "augment", "store", "value", "swap", "call"]
        kinds += ["if", "for", "while", "list"] * 2 * (budget > 0) + ["leave"] * (loop is not None)
        getattr(self, self.random.choice(kinds))(depth, names, loop, budget)

    def assign(self, depth: int, names: list[str], *_: Any) -> None:
        self.line(depth, f"{self.random.choice('xyz')} = ({self.number(names)}) % 101 - 50")

    def augment(self, depth: int, names: list[str], *_: Any) -> None:
        target = self.random.choice(["x", "y", "z", f"A[({self.atom(names)}) % 8]"])
        self.line(depth, f"{target} {self.random.choice(['+=', '-=', '^='])} ({self.number(names)}) % 17")

    def store(self, depth: int, names: list[str], *_: Any) -> None:
        self.line(depth, f"A[({self.number(names, 1)}) % 8] = ({self.number(names)}) % 1009")

    def value(self, depth: int, names: list[str], *_: Any) -> None:
        self.values += 1
        self.line(depth, f"v{self.values} = ({self.number(names)}) % 1009")
        names.append(f"v{self.values}")

    def swap(self, depth: int, names: list[str], *_: Any) -> None:
        i, j = self.random.sample(range(8), 2)
        self.line(
            depth, self.random.choice(["x, y = y, x", f"A[{i}], A[{j}] = A[{j}], A[{i}]", f"z, A[{i}] = A[{i}], z"])
        )

    def call(self, depth: int, names: list[str], *_: Any) -> None:
        self.line(depth, f"x = mix({self.atom(names)}, {self.atom(names)}, A) % 101")

    def leave(self, depth: int, names: list[str], loop: str | None, *_: Any) -> None:
        # A Python loop is left on conditions that Python knows, a loop of the program on any.
        test = self.truth(names, 1) if loop == "program" else self.random.choice(["flag", "k > 3", f"{loop} == 2"])
        self.line(depth, f"if {test}:")
        self.line(depth + 1, self.random.choice(["break", "continue"]))

    def __getattr__(self, name: str) -> Any:
        return {"if": self.branch, "for": self.loop_over_range, "while": self.loop_while, "list": self.loop_over_list}[
            name
        ]

    def branch(self, depth: int, names: list[str], loop: str | None, budget: int) -> None:
        inner = loop if loop == "program" else None
        self.line(depth, f"if {self.truth(names)}:")
        self.block(depth + 1, names, inner, budget - 1)
        if self.random.random() < 0.4:
            self.line(depth, f"elif {self.truth(names)}:")
            self.block(depth + 1, names, inner, budget - 1)
        if self.random.random() < 0.6:
            self.line(depth, "else:")
            self.block(depth + 1, names, inner, budget - 1)

    def loop_over_range(self, depth: int, names: list[str], _: str | None, budget: int) -> None:
        self.values += 1
        name = f"i{self.values}"
        bounds = self.random.choice(
            ["3", "1, 4", f"({self.atom(names)}) % 4", f"0, ({self.atom(names)}) % 7, 2", "5, 0, -2"]
        )
        self.line(depth, f"for {name} in {self.random.choice(['range', 'T.serial'])}({bounds}):")
        self.block(depth + 1, [*names, name], "program", budget - 1)

    def loop_while(self, depth: int, names: list[str], _: str | None, budget: int) -> None:
        self.values += 1
        name = f"n{self.values}"
        self.line(depth, f'{name} = T.alloc_var("int32", {self.random.randint(0, 3)})')
        self.line(depth, f"while {name} < 5 and {self.truth(names, 1)}:")
        self.line(depth + 1, f"{name} += 1")
        self.block(depth + 1, [*names, name], "program", budget - 1)

    def loop_over_list(self, depth: int, names: list[str], _: str | None, budget: int) -> None:
        self.values += 1
        name = f"item{self.values}"
        self.line(depth, f"for {name} in {self.random.sample(range(-3, 5), self.random.randint(1, 3))}:")
        self.block(depth + 1, [*names, name], name, budget - 1)

    def text(self) -> str:
        self.block(2, ["x", "y", "z", "k"], None, 3)
        return "\n".join([
            "@T.macro",
            "def mix(a, b, A):",
            '    best = T.alloc_var("int32", a)',
            "    if a < b:",
            "        best = b",
            "        A[0] += 1",
            "    return best",
            "",
            "@T.prim_func",
            'def kernel(A: T.Tensor((8,), "int32"), out: T.Tensor((3,), "int32")):',
            "    with T.Kernel(1, threads=1):",
            '        x = T.alloc_var("int32", 3)',
            '        y = T.alloc_var("int32", -4)',
            '        z = T.alloc_var("int32", 11)',
            *self.lines,
            "        out[0] = x",
            "        out[1] = y",
            "        out[2] = z",
            "",
        ])  # fmt: skip


def run(text: str, path: Path, language: Any) -> Any:
    path.write_text(text, encoding="utf-8")
    linecache.checkcache(str(path))
    names: dict[str, Any] = {"T": language, "flag": False, "k": 4}
    exec(compile(text, str(path), "exec"), names)
    return names["kernel"]


@pytest.mark.parametrize("seed", range(60))
def test_traced_and_interpreted_as_python_runs_it(seed: int, tmp_path: Path) -> None:
    text = Writer(seed).text()
    start = np.arange(8, dtype=np.int32) * 37 % 19
    expected, result = [int(v) for v in start], start.copy()
    expected_out, out = [0, 0, 0], np.zeros(3, np.int32)
    run(text, tmp_path / "kernel.py", PYTHON)(expected, expected_out)
    kernel = run(text, tmp_path / "kernel.py", T)
    interpret(kernel.function, [result, out])
    assert (result.tolist(), out.tolist()) == (expected, expected_out), text
