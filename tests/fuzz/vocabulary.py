"""Which words of the language, and which parameters of theirs, the programs of seeds are written with.

python tests/fuzz/vocabulary.py 400        # of each family's first 400 programs: which words and parameters none has
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import tile_fuzz  # noqa: E402

import tilewright.language as T  # noqa: E402
from docs import language_pages  # noqa: E402
from tilewright.ir.dtypes import ALL  # noqa: E402

FOREIGN = "calls a text of one machine's own language, which the interpreter cannot: tests/unit/cuda/programs/word_programs.py"
SCHEDULES = "of a schedule that is checked and then left: the compiler divides the warps by itself"
ANNOTATION = "annotates a macro's parameter, whose argument is what it is"
PYTHON = "is for Python around kernels: a test of a value's kind, or what tracing gives"

EXCEPTED = {
    **dict.fromkeys(("CUDASourceCodeKernel", "address_of", "call_extern", "call_pure_extern", "import_source", "type_annotation"), FOREIGN),
    **dict.fromkeys(("WSID", "WSInstr", "WSOpRef", "WSPipeline", "WSScope", "WSSync", "WSSyncKind", "annotate_ws_pipeline_depth"), SCHEDULES),
    **dict.fromkeys(("FragmentBuffer", "LocalBuffer", "Packed", "SharedBuffer", "TMEMBuffer"), ANNOTATION),
    **dict.fromkeys(("PrimExpr", "PrimFunc"), PYTHON),
    "float8_e3m4": "has a name, and nothing computes with it",
    "print": "writes to the terminal what no result tells",
}  # fmt: skip
"""Words that no family draws, and why."""

OF_CLASSES = "of classes that an author inherits from or works out tiles with: tests/unit/compat, tests/unit/cuda/programs/word_programs.py"
OF_BYTES = "of weights' codes, whose bytes only an arrangement of `formats` makes: tests/unit/ops/test_unpack.py, test_operators.py"
OF_THE_ENGINE = "asks for the copy engine, which adds up what the same word without it does: tests/unit/cuda/words/test_cuda_words.py"
OF_PLACES = "says a part of memory that indices of the same word say too: tests/unit/compat/test_tilelang_surface.py"
PROMISES = "promises what only a caller's memory keeps: tests/unit/runtime, tests/unit/compat/test_tilelang_decoders.py"
ADVICE = "is advice to the compiler, or one of TileLang's ways to say what the word beside it says"
IN_HAND = "is of programs of warps that divide themselves: tests/unit/passes/test_ping_pong.py, tests/unit/kernels/familiar_*.py"

NOT_GIVEN = {
    f"{line.partition(': ')[0].strip()} {name}": reason
    for reason, lines in {
        FOREIGN: "ClusterKernel: prelude; Kernel: prelude",
        SCHEDULES: "Pipelined: group; WSRole: max_nreg",
        PYTHON: "meta_class: cls",
        OF_CLASSES: """BaseTileScheduler: name stateful; PersistentTileScheduler: cluster_size num_workers stateful;
            PartialFragment: combine forward_index_fn forward_thread_fn; copy: loop_layout""",
        OF_BYTES: "decode: axis codebook group_size; unpack: lifted scale table zero zeros_mode; gemm_sp: order",
        OF_THE_ENGINE: "; ".join(f"atomic_{kind}: use_tma" for kind in ("and", "max", "min", "or", "xor")),
        OF_PLACES: """access_ptr: extent ignore_last_ndim offset; warpgroup_fence_operand: dtype num_regs offset;
            view: strides; match_buffer: strides; decl_buffer: data""",
        PROMISES: "make_tensor: alignment; make_tensor_from_addr: storage_scope; ptr: dtype is_size_var storage_scope",
        ADVICE: "wgmma_gemm: annotations; wgmma_gemm_sp: annotations",
        IN_HAND: "role: instances; wgmma_gemm: transpose_A; atomic_addx2: return_prev; atomic_addx4: return_prev",
    }.items()
    for line in lines.split(";")
    for name in line.partition(": ")[2].split()
}
"""Parameters that mean something and that no family gives, and why: there shall not be more of them."""


@cache
def own_name(name: str) -> str | None:
    """A word's own name, where it has several; None for what the language does not have."""
    names = {id(value): word for word, (value, _) in language_pages.words().items()}
    return names.get(id(getattr(T, name))) if hasattr(T, name) else None


@cache
def parameters(word: str) -> tuple[str, ...]:
    """What a word is called with."""
    value: Any = language_pages.words()[word][0]
    if not callable(value) or isinstance(value, enum.EnumMeta):
        return ()
    try:
        found = inspect.signature(value).parameters.values()
    except ValueError:
        return ()
    return tuple(one.name for one in found if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY))


def said(text: str) -> Iterator[str]:
    """The words of a program, as ``gemm``, and the parameters that calls give, as ``gemm policy``."""
    tree = list(ast.walk(ast.parse(text)))
    for node in tree:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in ALL:
            yield own_name(node.value) or node.value
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "T"):
            continue
        if (word := own_name(node.attr)) is not None:
            yield word
    for node in tree:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "T"):
            continue
        word = own_name(node.func.attr)
        if word is not None:
            named = [one.arg for one in node.keywords if one.arg]
            yield from (f"{word} {name}" for name in (*parameters(word)[: len(node.args)], *named))


@cache
def saying_nothing(word: str) -> frozenset[str]:
    """Parameters of a word that its description says are accepted and mean nothing, or can be one thing only."""
    value = language_pages.words()[word][0]
    section = (inspect.getdoc(value) or "").partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    found: set[str] = set()
    for entry in re.split(r"\n(?=\S)", section):
        names, _, meaning = entry.partition(" : ")
        if re.search(
            r"accepted|must be (None|False|left out|float32)|whose parameters are annotated|^a Python function", meaning
        ):
            found |= set(names.split(", "))
    return frozenset(found)


def drawn(seeds: Iterable[int]) -> set[str]:
    """Everything that the programs of seeds say."""
    return {one for seed in seeds for one in said(tile_fuzz.program_of(seed).text)}


def missing(found: set[str]) -> tuple[set[str], set[str]]:
    """The words that are not among those, and the parameters of the others that mean something and are not."""
    words = set(language_pages.words())
    given = {f"{word} {name}" for word in words & found for name in set(parameters(word)) - saying_nothing(word)}
    return words - found, given - found


def found_by(count: int) -> set[str]:
    """What the first programs of every family say, and eight times as many of the one that has a word for everything."""
    counts = {first: count * (8 if first == tile_fuzz.WORDS else 1) for first in tile_fuzz.FAMILIES.values()}
    return set().union(*(drawn(range(first, first + of)) for first, of in counts.items()))


def main() -> None:
    words, given = missing(found_by(int(sys.argv[1])))
    print("words:", *sorted(words - set(EXCEPTED)))
    print("excepted, and drawn:", *sorted(set(EXCEPTED) - words))
    print(*(f"{'known' if one in NOT_GIVEN else 'new'}: {one}" for one in sorted(given)), sep="\n")


if __name__ == "__main__":
    main()
