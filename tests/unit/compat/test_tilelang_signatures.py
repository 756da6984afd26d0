"""Every name of ``tilelang.language`` 0.1.15 is a word here that takes its parameters, or is refused with what to write.

The table holds names and parameters' names, ``=`` behind those that may be left out; of words that nobody calls the name alone.
"""

import inspect
import re
from pathlib import Path

import pytest
import tilewright.compat.tilelang.language as T

from tilewright.language.foreign import INSTEAD
from tilewright.language.mistakes import UnknownName

TABLE = (Path(__file__).parent / "tilelang_words.txt").read_text().split("\n")[:-1]
PARAMETERS = {line.partition("(")[0]: line.partition("(")[2].rstrip(")") for line in TABLE}

OURS_OTHERWISE = {
    "Ref": "an annotation", "PrimFunc": "made by T.prim_func",
    "tvm_access_ptr": "takes what access_ptr takes", "tvm_thread_allreduce": "its arguments have names",
    "ptx_arrive_barrier": "of a barrier, not of its number", "ptx_wait_barrier": "of a barrier and its parity, not of its number",
}  # fmt: skip
"""Words whose parameters differ, and how."""

KEPT_PLACES = {
    "Pipelined", "atomic_max", "atomic_min", "gemm_sp", "reduce_abssum", "reduce_sum", "reduce_bitand", "reduce_bitor", "reduce_bitxor",
    "atomic_addx2", "atomic_addx4",
}  # fmt: skip
"""Words in which ``annotations`` and its like, which are always given by name, stand behind words of older versions."""


def word(name):
    """The word, None where it is refused."""
    try:
        return getattr(T, name)
    except UnknownName:
        return None


REFUSED = {name for name in PARAMETERS if word(name) is None}
CALLED = [
    name
    for name, line in PARAMETERS.items()
    if f"{name}({line})" in TABLE and name not in REFUSED and name not in OURS_OTHERWISE
]


def test_what_is_refused_says_what_to_write():
    types = re.compile(r"float8_e3m4x\d+")  # a name alone in the language: nothing computes with it
    assert not {name for name in REFUSED if name not in INSTEAD and not types.fullmatch(name)}


def test_few_are_refused():
    assert len(CALLED) > 250 and len(REFUSED) < 150


@pytest.mark.parametrize("name", CALLED)
def test_parameters_have_their_names_and_places(name):
    ours = inspect.signature(word(name)).parameters
    places = [p.name for p in ours.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    variable = any(p.kind is p.VAR_POSITIONAL for p in ours.values())
    by_name = False
    given = [part for part in PARAMETERS[name].split(", ") if part]
    for number, part in enumerate(given):
        if part.startswith("*"):
            by_name = True
            assert part in ("*", "**kwargs") or variable, part
            continue
        parameter, optional = part.rstrip("="), part.endswith("=")
        assert parameter in ours or variable, f"{name} has no {parameter}"
        if parameter in ours and optional and name not in ("assume", "macro"):
            found = ours[parameter]
            assert found.default is not inspect.Parameter.empty or found.kind is found.VAR_POSITIONAL, parameter
        if parameter in places and not by_name and name not in KEPT_PLACES:
            assert places.index(parameter) == number, f"{name}: {parameter} is number {places.index(parameter)}"
    wanted = {part.strip("*=") for part in given}
    needed = {
        p.name for p in ours.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }  # fmt: skip
    assert needed <= wanted, f"{name} needs {needed - wanted}"
