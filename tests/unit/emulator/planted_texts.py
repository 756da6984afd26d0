"""Mutants of the texts that the compiler emits, kernel by kernel: `mutator`'s operators on what a GPU would be given, or the mistakes
that manuals warn of (`documented_faults`).

Run as a program, it judges a seeded sample of each kernel's mutants and prints those that were missed or are equivalent.
"""

from __future__ import annotations

import argparse
import collections
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from documented_faults import documented
from mutator import Mutant, mutants
from planted_faults import in_child
from planted_kernels import kernels_to_plant_in
from planted_programs import _run, awaited, verdict
from repository_programs import Program

from tilewright import compiler


@dataclass
class Prepared:
    """A kernel's program, its right result, and the mutants of its text."""

    program: Program
    architecture: str
    compiled: compiler.Program = field(repr=False)
    arguments: tuple[Any, ...] = field(repr=False)
    expected: list[np.ndarray] = field(repr=False)
    mutants: list[Mutant] = field(repr=False)
    awaited: tuple[int, ...] = ()


Writer = Callable[[str], list[Mutant]]
"""What makes the mutants of a text."""


def prepare(program: Program, architecture: str, write: Writer = mutants) -> Prepared:
    """Compile a kernel, run it without a fault, and list the mutants of its text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel, arguments = program.make(architecture)
        compiled = kernel.variant(*arguments).program
    expected = _run(compiled, arguments, None)
    made = write(compiled.source.text)
    return Prepared(program, architecture, compiled, arguments, expected, made, awaited(compiled, arguments))


def judge(one: Prepared, mutant: Mutant) -> tuple[str, str]:
    """What becomes of a mutant."""
    altered = replace(one.compiled, source=replace(one.compiled.source, text=mutant.text))
    return verdict(altered, one.arguments, None, one.expected, one.program.bound, waited=one.awaited)


def sample(found: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """A seeded choice that takes operators in turn, so that fences are not lost among numbers."""
    by_operator: dict[str, list[Mutant]] = {}
    for mutant in random.Random(seed).sample(found, len(found)):
        by_operator.setdefault(mutant.operator, []).append(mutant)
    chosen: list[Mutant] = []
    while len(chosen) < min(count, len(found)):
        chosen += [of_one.pop() for of_one in by_operator.values() if of_one]
    return chosen[:count]


def hunt(number: int, count: int, seed: int, write: Writer = mutants) -> list[tuple[Mutant, str, str]]:
    """Verdicts on a sample of the mutants of one kernel of the list."""
    one = prepare(*kernels_to_plant_in()[number], write)
    return [(mutant, *in_child(judge, one, mutant)) for mutant in sample(one.mutants, count, seed)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40, help="mutants of each kernel")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kernels", type=int, nargs="*", help="numbers in the list; all where left out")
    parser.add_argument("--documented", action="store_true", help="the faults that manuals warn of")
    options = parser.parse_args()
    write = documented if options.documented else mutants
    total: collections.Counter[str] = collections.Counter()
    operators: collections.defaultdict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    numbers = range(len(kernels_to_plant_in())) if options.kernels is None else options.kernels
    for number in numbers:
        for mutant, said, detail in hunt(number, options.count, options.seed, write):
            total[said] += 1
            operators[mutant.operator][said] += 1
            if said in ("missed", "harmless", "hung", "crashed"):
                line = mutant.text.split("\n")[mutant.line - 1].strip()
                print(f"{said} {number} {mutant.operator}: {mutant.what} | {line[:120]} | {detail}", flush=True)
    for name, counts in operators.items():
        print(f"{name}: {dict(counts)}")
    print(dict(total))


if __name__ == "__main__":
    main()
