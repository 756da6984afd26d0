"""The strict front end refuses one wrong argument of every function that its headers declare, and takes right ones.

What the headers declare is read out of them, so that a function that is added is tried, too.
"""

from __future__ import annotations

import functools
import re
import subprocess
from dataclasses import dataclass

from front_end import FLAGS, STRICT, clang, complaints

HEADERS = ("metal_stdlib", "metal_logging")
HEAD = "".join(f"#include <{name}>\n" for name in HEADERS) + "using namespace metal;\n"
SPACES = {"__global": "device", "__local": "threadgroup", "__constant": "constant", "__private": "thread"}
LOCALS = "threadgroup int shared[4]; int number = memory[0]; uint natural = memory[0];"


_DECLARATION = (
    r"namespace (\w+) \{|struct [^{;]*\{[^}]*\} *;|enum [^;]*;|(\w+(?:<[\w, ]+>)?)\(([^()]*)\)( = delete)?;|\}"
)


@dataclass(frozen=True)
class Declared:
    """A function of the headers."""

    name: str
    parameters: tuple[str, ...]
    deleted: bool

    def call(self, arguments: list[str]) -> str:
        """A kernel of one line that calls it."""
        used = "(void)shared; (void)number; (void)natural;"
        made = sorted({m for one in arguments for m in re.findall(r"\bm_\w+", one)})
        matrices = " ".join(f"simdgroup_matrix<{name[2:]}, 8, 8> {name};" for name in made)
        call = f"(void){self.name}({', '.join(arguments)});"
        return f"kernel void NAME(device int* memory) {{ {LOCALS} {matrices} {used} {call} }}"


@functools.cache
def declared() -> tuple[Declared, ...]:
    """Every function, operators left out, in the headers' order."""
    flags = [flag for flag in FLAGS if flag != "-fsyntax-only"]
    done = subprocess.run([*clang(), *flags, "-E", "-P", "-"], input=HEAD, capture_output=True, text=True, check=True)
    text, scopes = re.sub(r"\s+", " ", done.stdout), [""]
    found = []
    for piece in re.finditer(_DECLARATION, text):
        if piece[1]:
            scopes.append(f"{scopes[-1]}{piece[1]}::")
        elif piece[0] == "}":
            scopes = scopes[:-1] or [""]
        elif piece[2] and not piece[2].startswith(("__attribute__", "ext_vector_type")):
            given = re.split(r", (?![^<]*>)", piece[3].strip()) if piece[3].strip() else []
            name = re.sub(r"^(as_type<\w+), \w+>", r"\1>", piece[2])
            if "operator" not in text[piece.start() - 10 : piece.start()] and "To" not in given and "From" not in given:
                found.append(Declared(scopes[-1] + name, tuple(one.split(" = ")[0] for one in given), bool(piece[4])))
    return tuple(found)


def right(parameter: str) -> str:
    """An argument of the parameter's type."""
    words = parameter.replace("const ", "").strip()
    matrix = re.search(r"simdgroup_matrix<(\w+)", words)
    if matrix:
        return f"m_{matrix[1]}"
    if words.endswith("*"):
        space, kind = words[:-1].split()
        if space == "__private":
            return {"int": "&number", "uint": "&natural"}[kind]
        return f"reinterpret_cast<{SPACES[space]} {kind}*>({'shared' if space == '__local' else 'memory'})"
    if words == "mem_flags":
        return "mem_flags::mem_none"
    return "memory_order_relaxed" if words == "memory_order" else f"*reinterpret_cast<device {words}*>(memory)"


def wrong(parameter: str) -> str:
    """One of another type: another matrix, a pointer to another memory, a pointer for a number, a number for an enumeration."""
    words = parameter.replace("const ", "").strip()
    matrix = re.search(r"simdgroup_matrix<(\w+)", words)
    if matrix:
        return "m_bfloat" if matrix[1] != "bfloat" else "m_float"
    if words.endswith("*"):
        space, kind = words[:-1].split()
        other = "constant" if space != "__constant" else "device"
        return f"reinterpret_cast<{other} {kind}*>(ulong(memory[0]))"
    if words == "bool":  # a pointer is a bool, in Metal too
        return "mem_flags::mem_none"
    return "1" if words in ("mem_flags", "memory_order") else "memory"


def refused(lines: list[str]) -> set[int]:
    """Which of these kernels the front end complains of."""
    named = [line.replace("NAME", f"k{number}") for number, line in enumerate(lines)]
    first = HEAD.count("\n") + 1
    return {int(said.split(":")[0].removeprefix("line ")) - first for said in complaints(HEAD + "\n".join(named))}


def test_right_arguments_are_taken() -> None:
    lines = [one.call([right(parameter) for parameter in one.parameters]) for one in declared() if not one.deleted]
    assert len(lines) > 200
    assert [lines[number] for number in sorted(refused(lines))] == []


def test_a_wrong_argument_of_every_function_is_refused() -> None:
    lines = []
    for one in declared():
        given = [right(parameter) for parameter in one.parameters]
        if one.deleted:
            lines.append(one.call(given))
        for place, parameter in enumerate(one.parameters):
            lines.append(one.call([*given[:place], wrong(parameter), *given[place + 1 :]]))
        lines.append(one.call([*given, "1, 1, 1"]))
        lines += [one.call(given[:-1])] if len(given) == 1 else []
    taken = set(range(len(lines))) - refused(lines)
    assert len(lines) > 600 and [lines[number] for number in sorted(taken)] == []


def test_every_declaration_cites_its_section_and_none_takes_anything() -> None:
    text = "".join((STRICT / name).read_text() for name in HEADERS)
    for name in {one.name.split("::")[-1].split("<")[0] for one in declared()}:
        before = text[: re.search(rf"\b{name}\(|\b{name}<", text).start()]  # type: ignore[union-attr]
        assert re.search(r"//[^\n]*\b\d+\.\d+", before), name
    # A template over all types would take what Metal refuses: those here are deleted, say what a type is, or name one type each.
    for match in re.finditer(r"^ *template <(?!>)[^\n]*", text, re.M):
        assert re.search(r"= delete;|struct \w+;|using vec|\.\.\. T> void log\(", match[0]), match[0]
