"""The kinds of file tests: what may be done to a program, one function each.

A kind takes the program (as a function that reads it, so that a kind may expect that to fail), the words of
the case's first line, and gives the text that the file must hold.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import tilewright.ops  # noqa: F401  (registers the tile operators)
from tilewright.errors import TilewrightError
from tilewright.ir.nodes import Function
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.ir.verifier import verify, violations
from tilewright.machine.arch import Arch
from tilewright.passes.context import Context, Pass
from tilewright.targets.base import find_target

Read: TypeAlias = Callable[[], Function]
Kind: TypeAlias = Callable[[Read, Sequence[str], Mapping[str, str]], str]

KINDS: dict[str, Kind] = {}
"""Every kind by the word that its cases begin with."""

ROOMS_OF_PASSES = ("tile", "lower", "thread")


class UnknownPass(TilewrightError):
    """A pass that does not exist."""


def kind(word: str) -> Callable[[Kind], Kind]:
    """Function decorator: make a kind of file test."""

    def register(function: Kind) -> Kind:
        KINDS[word] = function
        return function

    return register


def find_pass(name: str) -> Pass:
    """The pass called `name`: the function of that name in the module of that name.

    Raises
    ------
    UnknownPass : no room of passes has it.
    """
    for room in ROOMS_OF_PASSES:
        module = f"tilewright.passes.{room}.{name}"
        if importlib.util.find_spec(module) is not None:
            found: Pass = getattr(importlib.import_module(module), name)
            return found
    raise UnknownPass(f"no pass {name!r} in tilewright/passes/{{{','.join(ROOMS_OF_PASSES)}}}")


def machine(options: Mapping[str, str]) -> Arch:
    """The machine that a case asks for.

    ``target=cpu arch=avx2`` is that target's own description; other options set fields of `Arch`, whose
    defaults are a plain machine with vectors of 16 bytes.
    """
    rest = dict(options)
    arch = Arch(target="test", name="plain")
    if "target" in rest:
        target = find_target(rest.pop("target"))
        arch = target.arch({"arch": rest.pop("arch")} if "arch" in rest else {})
    return with_fields(arch, rest)


def with_fields(arch: Arch, options: Mapping[str, str]) -> Arch:
    """`arch` with other values of its fields, by their names."""
    fields = {field.name: field.type for field in dataclasses.fields(Arch)}
    changes: dict[str, object] = {}
    for name, text in options.items():
        if name not in fields:
            raise TilewrightError(f"a machine has no {name!r}", hint=f"known: {', '.join(fields)}")
        changes[name] = int(text) if fields[name] == "int" else frozenset(text.split(",")) if text else frozenset()
    return dataclasses.replace(arch, **changes)  # type: ignore[arg-type]


def run_named_passes(function: Function, names: Sequence[str], options: Mapping[str, str]) -> Function:
    """`function` after the passes named, verified before the first and after each."""
    context = Context(machine(options))
    verify(function)
    for name in names:
        function = find_pass(name)(function, context)
        verify(function)
    return function


@kind("print")
def _print(read: Read, arguments: Sequence[str], options: Mapping[str, str]) -> str:
    """The program as it prints; what prints must read back as itself."""
    text = print_program(read())
    again = print_program(parse(text))
    return text if again == text else f"printed:\n{text}\nread back and printed:\n{again}"


@kind("verify")
def _verify(read: Read, arguments: Sequence[str], options: Mapping[str, str]) -> str:
    """``valid``, or the program with every violation beside its statement."""
    function = read()
    marks: dict[object, list[str]] = {}
    for where, problem in violations(function):
        marks.setdefault(where, []).append(problem)
    return print_program(function, marks=marks) if marks else "valid"


@kind("pass")
def _pass(read: Read, arguments: Sequence[str], options: Mapping[str, str]) -> str:
    """The program after the passes named."""
    return print_program(run_named_passes(read(), arguments, options))


@kind("error")
def _error(read: Read, arguments: Sequence[str], options: Mapping[str, str]) -> str:
    """The error that the passes named raise (without one: reading or verifying the program)."""
    try:
        result = run_named_passes(read(), arguments, options)
    except TilewrightError as error:
        return f"{type(error).__name__}: {error}"
    return f"no error from {shlex.join(arguments) or 'verify'}:\n{print_program(result)}"
