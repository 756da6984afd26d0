"""One name for one thing: no two public classes of the package share a name, and no function is without a caller."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

from syntax import tree

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "tilewright").rglob("*.py"))

TWICE = {
    "Attribute": "of a device of NVIDIA's, and a word that says something of threads",
    "Binary": "an expression, and machine code",
    "Call": "an expression, and a product that is under way",
    "Channel": "a statement, and what authors have of it",
    "Compiler": "the C compiler of a processor's kernels, the C++ compiler of the emulator",
    "Device": "a GPU as a record, and the one that a tensor lies on",
    "Facts": "what is known of variables, what passes know of a function",
    "Kernel": "what users call, and its statement in a program",
    "Lanes": "what lanes do with the steps of a product, and a loop whose iterations become lanes of vectors",
    "Launch": "what a kernel of the library is launched with, and the emulator's structure",
    "Layout": "of the compiler, and what authors write",
    "Linear": "a layer, and a sum of products of variables",
    "Names": "of a text's identifiers, of a program's, and of a scope's",
    "Operands": "of a product of the library, of one of a processor",
    "Product": "what operators that multiply tiles share, and a product of the library",
    "State": "of the interpreter, of the analyser",
    "Swizzle": "a layout's, and the copy engine's number for one",
    "TensorMap": "an expression, and what the emulator reads",
    "Text": "what is printed, and a text that was compiled",
    "ThreadLoop": "of the lowering, and of the author",
    "Vector": "of the lowering, and of the author",
    "Work": "of a launch by the roofline, and of a warp's product",
}  # fmt: skip
"""Names that two classes have, with what they are."""


def owner(file: Path) -> str:
    """Makers' targets say the same things of their own machines, and `compat` has other libraries' names."""
    parts = file.relative_to(ROOT / "tilewright").parts
    if parts[0] == "targets" and parts[1] in ("cuda", "hip", "metal", "cpu"):
        return "targets"
    return parts[0]


def test_public_classes_have_names_of_their_own() -> None:
    found: dict[str, set[Path]] = defaultdict(set)
    for file in FILES:
        for node in tree(file).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and owner(file) != "compat":
                found[node.name].add(file)
    shared = {
        name for name, files in found.items()
        if len(files) > 1 and not all(owner(file) == "targets" for file in files)
    }  # fmt: skip
    assert not shared - set(TWICE), "give the newer class another name, or say in TWICE what the two are"
    assert not set(TWICE) - shared, "these have names of their own now: take them out of TWICE"


CALLED_BY_NAME = ("visit_", "statement_", "expression_", "print_", "verify_", "render_", "read_", "__")
"""How functions begin that are found by the class of what they are given, or by Python."""

CALLED_BY_OTHERS = {"is_square": "TileLang", "is_full_row": "TileLang", "is_full_col": "TileLang",
                    "from_warp_partition": "TileLang"}  # fmt: skip
"""Methods that only other libraries' programs call."""


def test_every_function_has_a_caller() -> None:
    """A name that stands nowhere else is dead, unless a decorator takes the function or another library calls it."""
    words = re.compile(r"[A-Za-z_]\w*")
    texts = {file: file.read_text(encoding="utf-8") for file in FILES}
    counts = Counter(word for text in texts.values() for word in words.findall(text))
    others = [
        file.read_text(encoding="utf-8")
        for folder in ("tests", "benchmarks", "examples", "docs")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", ".md", ".tile") and file != Path(__file__)
    ]
    elsewhere = {word for text in others for word in words.findall(text)}
    dead = []
    for file in FILES:
        if owner(file) in ("compat", "hf"):  # other libraries' names, which their programs call
            continue
        for node in ast.walk(tree(file)):
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.decorator_list or counts[node.name] > 1:
                continue
            if node.name.startswith(CALLED_BY_NAME) or node.name in CALLED_BY_OTHERS:
                continue
            if node.name.startswith("_") or node.name not in elsewhere:
                dead.append(f"{file.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not dead, "\n".join(dead)


MOST_ANY = 1150
"""As many times `Any` may stand in the package: what a function looks at has a type, what it only hands on is an
`object`.  Make it less where you can."""


def test_any_does_not_come_back() -> None:
    count = sum(len(re.findall(r"\bAny\b", file.read_text(encoding="utf-8"))) for file in FILES)
    assert count <= MOST_ANY


MOST_UNEXPLAINED = 4
"""Signatures with `Any` that other rooms call and that say nothing of why: the tensors of products of float8 wait."""


def unexplained(called: set[str], text: str, syntax: ast.Module | None = None) -> list[str]:
    """Functions, and methods of classes, of those names whose signatures have an `Any` and no comment beside it."""
    lines, found = text.split("\n"), []
    for top in (syntax or ast.parse(text)).body:
        if not isinstance(top, (ast.FunctionDef, ast.ClassDef)) or top.name not in called:
            continue
        for one in [top] if isinstance(top, ast.FunctionDef) else top.body:
            if not isinstance(one, ast.FunctionDef) or (one is not top and one.name.startswith("_")):
                continue
            words = {
                node.id
                for part in (one.args, one.returns)
                if part
                for node in ast.walk(part)
                if isinstance(node, ast.Name)
            }
            if "Any" in words and not any(
                "#" in line for line in lines[one.lineno - 1 : max(one.lineno, one.body[0].lineno - 1)]
            ):
                found.append(one.name)
    return found


def test_any_in_what_other_rooms_call_has_a_reason() -> None:
    called: dict[str, set[str]] = defaultdict(set)
    for file in FILES:
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tilewright."):
                room = (node.module or "").split(".")[1]
                if room != room_of(file):
                    called[room].update(alias.name for alias in node.names)
    found = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in FILES
        for name in unexplained(called[room_of(file)], file.read_text(encoding="utf-8"), tree(file))
    ]
    assert len(found) <= MOST_UNEXPLAINED, "\n".join(["say why these cannot have a type:", *found])


def room_of(file: Path) -> str:
    """The folder of the package that a file is in, or its own name."""
    return file.relative_to(ROOT / "tilewright").parts[0].removesuffix(".py")


def test_a_reason_is_asked_for() -> None:
    text = "def f(a: Any) -> None:\n    pass\n\ndef g() -> Any:  # whatever JSON says\n    pass\n\nclass C:\n    def m(self) -> list[Any]:\n        pass\n"
    assert unexplained({"f", "g", "C"}, text) == ["f", "m"]
    assert unexplained({"g"}, text) == []
