"""The mutator reaches everything that orders, and the mutants of emitted texts are killed or equivalent."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from documented_faults import OPERATORS as DOCUMENTED
from documented_faults import documented
from emulator_kernels import KERNELS
from matmul_programs import HOPPER_KERNELS
from matmul_programs import KERNELS as OF_ANY_MACHINE
from mutator import OPERATORS, Mutant, mutants
from planted_faults import keep
from planted_kernels import LIBRARY, kernels_to_plant_in
from planted_texts import hunt, prepare
from repository_programs import target_of

from tilewright.errors import EmulationError, EmulationFailed
from tilewright.options import override
from tilewright.runtime.emulation import emulate_program

ORDERS = re.compile(r"\b(?:\w+_)?(?:fence|wait|arrive|sync|commit|init|expect_tx|release)\w*(?:<[^;(]*>)?\(")


def test_every_call_that_orders_is_left_out_once() -> None:
    for kernel in KERNELS:
        lines = kernel.text.split("\n")
        touched = {
            mutant.line for mutant in mutants(kernel.text) if mutant.operator in ("removed", "weakened", "parity")
        }
        for number, line in enumerate(lines, 1):
            code = line.split("//")[0]
            if ORDERS.search(code) and not code.startswith(("#", "using", "template", "TW_KERNEL")):
                assert number in touched, f"{kernel.name}:{number} {code}"


def test_a_mutant_differs_in_one_place_and_keeps_the_lines() -> None:
    seen = set()
    for kernel in KERNELS:
        lines = kernel.text.split("\n")
        for mutant in mutants(kernel.text):
            seen.add(mutant.operator)
            other = mutant.text.split("\n")
            assert len(other) == len(lines)
            changed = [i for i, (a, b) in enumerate(zip(lines, other, strict=True), 1) if a != b]
            assert changed and mutant.line in (changed[0], changed[-1])
            assert mutant.operator == "ahead" or changed[-1] - changed[0] <= 1
    assert seen >= {change.__name__ for change in OPERATORS} | {"moved", "restricted", "in_one_turn", "ahead"}


def test_the_library_takes_the_options_that_are_given_here() -> None:
    """Long proofs alone compile most of these kernels, and said too late that an option was gone."""
    others = [(name, one, "sm_90a") for name, one in {**HOPPER_KERNELS, **OF_ANY_MACHINE}.items()]
    for _, (kernel, _, options), architecture in (*LIBRARY, *others):
        with override(target=target_of(architecture)):
            kernel.trace(*options["sizes"], **{name: value for name, value in options.items() if name != "sizes"})


@pytest.mark.parametrize("number", (3, 10))
def test_faults_that_manuals_warn_of_find_their_places(number: int) -> None:
    one = prepare(*kernels_to_plant_in()[number], documented)
    text = one.compiled.source.text
    assert len({mutant.operator for mutant in one.mutants}) >= (8 if number == 3 else 30)
    for mutant in one.mutants:
        assert mutant.text != text and mutant.text.count("\n") == text.count("\n")
        assert mutant.operator in DOCUMENTED


def test_inputs_that_another_program_still_writes_are_read_behind_the_wait() -> None:
    """A dependent launch begins beside the kernel before it; only its caller knows which arguments that one writes."""
    small = next(i for i, (program, _) in enumerate(kernels_to_plant_in()) if program.name == "fragments, few rows")
    one = prepare(*kernels_to_plant_in()[small])
    activations, wait = one.arguments[1], "tw::griddepcontrol_wait();"
    source = one.compiled.source
    early = replace(one.compiled, source=replace(source, text=source.text.replace(wait, "{}", 1)))
    emulate_program(one.compiled, list(one.arguments), unsettled=[activations])
    emulate_program(early, list(one.arguments))
    with pytest.raises(EmulationError) as caught:
        emulate_program(early, list(one.arguments), unsettled=[activations])
    assert caught.value.reports[0].kind == "before-grid-wait"
    with pytest.raises(EmulationFailed, match="no array among the arguments"):
        emulate_program(early, list(one.arguments), unsettled=[activations.copy()])


MISSED = 0.03
"""Of the mutants that change a result, how many may change it within its bounds and be reported by nobody."""


@pytest.mark.proof
@pytest.mark.parametrize(
    "number", range(len(kernels_to_plant_in())), ids=lambda number: kernels_to_plant_in()[number][0].name
)
def test_mutants_of_emitted_texts_are_killed(number: int, record_property: Callable[[str, str], None]) -> None:
    verdicts = hunt(number, 60, seed=number)
    keep(record_property, ((f"{mutant.line} {mutant.operator}: {mutant.what}", said) for mutant, said, _ in verdicts))
    mostly_killed(verdicts)


@pytest.mark.proof
@pytest.mark.parametrize(
    "number", range(len(kernels_to_plant_in())), ids=lambda number: kernels_to_plant_in()[number][0].name
)
def test_faults_that_manuals_warn_of_are_caught(number: int, record_property: Callable[[str, str], None]) -> None:
    verdicts = hunt(number, 14, seed=18, write=documented)
    keep(record_property, ((f"{mutant.line} {mutant.operator}: {mutant.what}", said) for mutant, said, _ in verdicts))
    mostly_killed(verdicts)
    assert not [mutant for mutant, said, _ in verdicts if said == "crashed"]


def mostly_killed(verdicts: list[tuple[Mutant, str, str]]) -> None:
    """Of the mutants that change a result, all but a few are reported or change its value."""
    missed = [f"{mutant.line} {mutant.operator}: {mutant.what}" for mutant, said, _ in verdicts if said == "missed"]
    killed = sum(said in ("reported", "wrong", "hung", "crashed") for _, said, _ in verdicts)
    assert len(missed) <= MISSED * (killed + len(missed)), missed
