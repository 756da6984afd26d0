"""The shape of the house: which room may import which, how long files and functions are, what is documented."""

from __future__ import annotations

import ast
import graphlib
import importlib
import itertools
import re
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from syntax import tree

from tilewright.passes.pipeline import PIPELINE

PACKAGE = Path(__file__).resolve().parents[2] / "tilewright"

ROOMS = [
    "texts", "errors", "tracebacks", "options", "progress", "collection", "memory", "processes", "leftovers", "cache", "precompiled", "libraries", "generated", "ir", "arith", "layout", "formats", "checkpoints", "machine", "ops", "interpreter", "language",
    "passes", "targets", "compiler", "emulator", "runtime", "specialization", "tuning", "kernels", "quant", "matmul",
    "nn", "conversion", "hf", "compat", "cli",
]  # fmt: skip
"""Each room may import from those before it in this list, never from one behind it."""

FREE = {"tilewright", "__main__"}
"""The package's own front door may import anything."""

MODULES = sorted(path for path in PACKAGE.rglob("*.py"))


def room_of(module: str) -> str:
    """The room of a dotted module name: ``tilewright.ir.nodes`` is in ``ir``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def module_name(path: Path) -> str:
    relative = path.relative_to(PACKAGE.parent).with_suffix("")
    parts = relative.parts[:-1] if relative.name == "__init__" else relative.parts
    return ".".join(parts)


def imports(path: Path, syntax: ast.AST) -> Iterator[tuple[int, str]]:
    """Every tilewright module that a file imports, wherever in it: functions and TYPE_CHECKING blocks count."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(syntax):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            # ``from tilewright import language`` names the room in its list.
            yield from ((node.lineno, origin if origin != "tilewright" else f"{origin}.{a.name}") for a in node.names)
        elif isinstance(node, ast.Call) and "import_module" in (
            getattr(node.func, "attr", ""),
            getattr(node.func, "id", ""),
        ):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value


def wrong_imports(path: Path, syntax: ast.Module) -> list[str]:
    """Imports of `path` that reach down the list of rooms."""
    room = room_of(module_name(path))
    if room in FREE:
        return []
    found = []
    for line, target in imports(path, syntax):
        if target.split(".")[0] != "tilewright" or room_of(target) not in ROOMS:
            continue
        if ROOMS.index(room_of(target)) > ROOMS.index(room):
            found.append(f"{path.relative_to(PACKAGE.parent)}:{line} ({room}) imports {target}")
    return found


def test_every_module_is_in_a_room() -> None:
    unknown = {room_of(module_name(path)) for path in MODULES} - set(ROOMS) - FREE
    assert not unknown, f"rooms without a place in the order: {sorted(unknown)}"


def test_rooms_import_only_from_those_before_them() -> None:
    found = [wrong for path in MODULES for wrong in wrong_imports(path, tree(path))]
    assert not found, "\n".join(["imports down the order of rooms:", *found])


def test_the_page_of_the_house_has_every_room_in_its_place() -> None:
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE)
    assert [re.sub(r"(/|\.py)$", "", name) for row in rows for name in re.findall(r"`([^`]+)`", row)] == ROOMS


def test_the_page_of_passes_has_every_pass() -> None:
    page = (PACKAGE.parent / "docs" / "architecture" / "passes.md").read_text(encoding="utf-8")
    missing = {step.name for step in PIPELINE} - set(re.findall(r"`(\w+)`", page))
    assert not missing, f"docs/architecture/passes.md says nothing of {sorted(missing)}"


@pytest.mark.parametrize(
    "text",
    [
        "from tilewright.passes import manager",
        "import tilewright.compiler",
        "from tilewright import specialization",
        "from .. import compiler",
        "from ..language import builder",
        "def f():\n    from tilewright.cli import main",
        "if TYPE_CHECKING:\n    from tilewright.runtime.kernel import Kernel",
        "import importlib\nimportlib.import_module('tilewright.targets.cpu')",
    ],
)
def test_the_order_is_enforced_wherever_the_import_hides(text: str) -> None:
    assert wrong_imports(PACKAGE / "ir" / "imaginary.py", ast.parse(text))
    assert not wrong_imports(PACKAGE / "__init__.py", ast.parse(text))


@pytest.mark.parametrize("text", ["from tilewright.errors import Span", "from . import nodes", "import numpy"])
def test_imports_upwards_are_fine(text: str) -> None:
    assert not wrong_imports(PACKAGE / "ir" / "imaginary.py", ast.parse(text))


LATER = {
    ("language.buffers", "language.external"),
    ("language.dtypes", "language.conversions"), ("language.dtypes", "language.tensors"),
    ("language.dtypes", "language.vectors"),
    ("language.vectors", "language.conversions"),
    ("matmul.packed", "matmul.product"), ("matmul.packed", "matmul.torch_operators"),
    ("matmul.fp8_operator", "matmul.fp8"),
}  # fmt: skip
"""What a function imports when it runs, because the other module is made of what this one has."""


def needed(syntax: ast.Module, files: Iterable[str]) -> dict[str, bool]:
    """The modules that a file needs to run, those for type checkers left out: whether it reads them as it is read."""
    found: dict[str, bool] = {}
    pending: list[tuple[ast.AST, bool]] = [(node, True) for node in syntax.body]
    while pending:
        node, at_once = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += [(child, at_once) for child in node.orelse]
            continue
        names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names]
        for name in names:
            target = name if name in files else name.rpartition(".")[0]
            if target in files and target != "tilewright":
                found[target] = found.get(target, False) or at_once
        inside = at_once and not isinstance(node, (ast.FunctionDef, ast.Lambda))
        pending += [(child, inside) for child in ast.iter_child_nodes(node)]
    return found


def test_no_modules_import_each_other() -> None:
    """In a circle, inside a room or between rooms, as files are read or as functions run."""
    files = {module_name(path): path for path in MODULES}
    needs = {name: needed(tree(path), files) for name, path in files.items() if name != "tilewright"}
    late = {(f"tilewright.{one}", f"tilewright.{other}") for one, other in LATER}
    wrong = sorted(f"{one}, {other}" for one, other in late if needs[one].get(other, True))
    assert not wrong, "\n".join(["no function imports these later, take them out of LATER:", *wrong])
    graph = {name: {other for other in found if (name, other) not in late} for name, found in needs.items()}
    assert sum(map(len, graph.values())) > 3 * len(MODULES)
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names them
    for one, other in late:
        with pytest.raises(graphlib.CycleError):
            graphlib.TopologicalSorter(graph | {one: graph[one] | {other}}).prepare()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from tilewright.ir import nodes", {"tilewright.ir.nodes": True}),
        ("import tilewright.cache", {"tilewright.cache": True}),
        ("def f():\n    from tilewright.ir.nodes import Var", {"tilewright.ir.nodes": False}),
        ("class C:\n    from tilewright.ir.nodes import Var", {"tilewright.ir.nodes": True}),
        ("if TYPE_CHECKING:\n    import tilewright.cache", {}),
    ],
)
def test_needs_are_found_wherever_they_stand(text: str, expected: dict[str, bool]) -> None:
    assert needed(ast.parse(text), {"tilewright", "tilewright.cache", "tilewright.ir.nodes"}) == expected


FACTS = {65536, 232448, 227, 132, 114}
"""Registers and bytes of a multiprocessor, and how many of them a GPU has."""

SHARES = {240, 232, 1024}
"""Registers of a consumer, and the bytes at a multiple of which swizzled tiles begin, which passes ask the record for;
programs may say them."""

SPANS = [128, 64, 32]
"""Bytes in which NVIDIA's copy engine swizzles."""

NAMES = re.compile(r"sm_\d+a?|gfx\w+|apple\d+|m\d-(pro|max|ultra)|(x86_64-)?avx\w+-\w+")
LINES = re.compile(r"line of the caches|request fetches|machine writes at once")
"""What a constant says that is a machine's line."""

COUNTED = re.compile(r"\b(BANKS|WARP|WARP_SIZE|WARPGROUP|LANES|PATTERN_ROWS)\b.* = \(?\d|banks: int=\d")
"""How a number of banks, or of threads that run together, is written that neither the machine nor the language has
said: warps of the language are `ir.WARP`, a swizzle is the layouts' own."""

TARGETS = re.compile(r"(target|target\.name) (==|!=|in|not in) [(\[{]?'(cpu|cuda|hip|metal)'")
"""How a target is asked for its name: its manifest says what it can."""

SAID = {"ir/statements.py", "layout/constructors.py"}
"""Where they are said."""


def facts_of_machines(path: Path, syntax: ast.AST) -> list[str]:
    """Numbers and names of architectures that only records of machines say."""
    found = []
    facts = FACTS | SHARES if room_of(module_name(path)) == "passes" else FACTS
    for node in ast.walk(syntax):
        value = node.value if isinstance(node, ast.Constant) else None
        if (type(value) is int and value in facts) or (isinstance(value, str) and NAMES.fullmatch(value)):
            found.append(f"{where(path, node)} {value}")
        if isinstance(node, (ast.Tuple, ast.List)) and ast.unparse(node)[1:-1] == str(SPANS)[1:-1]:
            found.append(f"{where(path, node)} {SPANS}")
        said_here = path.relative_to(PACKAGE).as_posix() in SAID
        if isinstance(node, (ast.Assign, ast.arguments)) and not said_here and COUNTED.search(ast.unparse(node)):
            found.append(f"{where(path, node)} {ast.unparse(node)}")
        if isinstance(node, ast.Compare) and TARGETS.search(ast.unparse(node)):
            found.append(f"{where(path, node)} {ast.unparse(node)}")
        if isinstance(node, ast.Module):
            for constant, said in itertools.pairwise(node.body):
                if isinstance(constant, ast.Assign) and isinstance(said, ast.Expr) and LINES.search(ast.unparse(said)):
                    found.append(f"{where(path, constant)} {ast.unparse(constant)}")
    return found


ASK_BY_NAME = {"hopper.py", "roofline.py"}
"""Modules of kernels made for one architecture, which ask for its record by name."""


def test_facts_of_machines_stand_in_their_records() -> None:
    """A second maker's machine is then a folder.  `compat` has other libraries' names for machines."""
    found = [
        fact
        for path in MODULES
        if room_of(module_name(path)) not in ("machine", "compat") and path.name not in ASK_BY_NAME
        if room_of(module_name(path)) != "targets" or path.is_relative_to(PACKAGE / "targets" / "gpu")
        for fact in facts_of_machines(path, tree(path))
    ]
    assert not found, "\n".join(["ask the machine's record:", *found])


def test_families_of_gpus_make_no_statements() -> None:
    """What yields IR is in `targets/gpu`: a new maker's GPU, whatever it has, imports nothing of another's folder."""
    families = ("cuda", "hip", "metal")
    modules = [path for family in families for path in (PACKAGE / "targets" / family).glob("*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in modules}
    assert len(modules) > 30
    assert [
        path.name for path, text in texts.items() if re.search(r"passes\.lower|\bperform\b|ir\.[Ss]eq\(", text)
    ] == []
    shared = [path for path in MODULES if path.is_relative_to(PACKAGE / "targets" / "gpu")]
    named = re.compile(rf"tilewright\.targets\.({'|'.join(families)})\b")
    assert [path.name for path in shared if named.search(path.read_text(encoding="utf-8"))] == []


def test_the_emulator_asks_the_manifest() -> None:
    """What it knows of a family is the manifest's vocabulary; one is there where a text's family is not said."""
    modules = [path for path in MODULES if room_of(module_name(path)) in ("emulator", "runtime")]
    texts = [path.read_text(encoding="utf-8") for path in modules]
    found = {name for text in texts for name in re.findall(r"from (tilewright\.targets\.(?!gpu|base)\w+\.\w+)", text)}
    assert len(modules) > 20 and found == {"tilewright.targets.cuda.emulation"}


def test_a_fact_is_seen() -> None:
    path = PACKAGE / "passes" / "imaginary.py"
    assert facts_of_machines(path, ast.parse("ROOM = 227 << 10\nif arch.name == 'sm_90a':\n    pass")) == [
        "tilewright/passes/imaginary.py:1 227", "tilewright/passes/imaginary.py:2 sm_90a"
    ]  # fmt: skip
    assert facts_of_machines(path, ast.parse("hint = 'cuda -arch=sm_80'\nbits = 32")) == []
    text = "spans = [one for one in (128, 64, 32) if row % one == 0]\nBANKS, WIDTH = 32, 4\nmost = min(240, left)"
    assert sorted(fact.partition(":")[2] for fact in facts_of_machines(path, ast.parse(text))) == [
        "1 [128, 64, 32]", "2 BANKS, WIDTH = (32, 4)", "3 240"
    ]  # fmt: skip
    assert facts_of_machines(path, ast.parse("def f(rows: int, banks: int = 32) -> None: ..."))
    assert (
        facts_of_machines(path, ast.parse("def f(rows: int, banks: int) -> None:\n    sizes = (16, 128, 64, 32)")) == []
    )
    text = "WARP = 32\nlanes, WARP_SIZE = 8, 32\nif size % 1024 == 0:\n    pass"
    assert len(facts_of_machines(path, ast.parse(text))) == 3
    assert facts_of_machines(PACKAGE / "ir" / "statements.py", ast.parse("WARP, WARPGROUP = 32, 128")) == []
    assert len(facts_of_machines(path, ast.parse("a = kernel.target.name == 'cpu' or arch.target in ('hip',)"))) == 2
    text = 'LINE = 64\n"""Bytes of a line of the caches."""\nname = "gfx942"'
    assert facts_of_machines(path, ast.parse(text)) == [
        "tilewright/passes/imaginary.py:1 LINE = 64", "tilewright/passes/imaginary.py:3 gfx942"
    ]  # fmt: skip


def test_torch_is_only_imported_inside_functions() -> None:
    found = []
    for path in MODULES:
        for node in tree(path).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            theirs = any(name.split(".")[0] in ("torch", "jax", "cupy", "transformers") for name in names)
            if theirs and path.stem != "nn" and path.parent.name not in ("nn", "hf"):
                found.append(str(path))
    assert not found


def functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef, bool]]:
    """Every function of the package, and whether the public may call it."""
    for path in MODULES:
        hidden = any(part.startswith("_") and part != "__init__.py" for part in path.relative_to(PACKAGE).parts)
        stack: list[tuple[ast.AST, bool]] = [(tree(path), not hidden)]
        while stack:
            node, public = stack.pop()
            for child in ast.iter_child_nodes(node):
                if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    open_to_all = public and not child.name.startswith("_")
                    yield path, child, open_to_all
                    stack.append((child, False))
                elif isinstance(child, ast.ClassDef):
                    stack.append((child, public and not child.name.startswith("_")))
                elif isinstance(child, (ast.If, ast.Try)):
                    stack.append((child, public))


def where(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(PACKAGE.parent)}:{getattr(node, 'lineno', 1)}"


def test_every_function_has_types() -> None:
    found = []
    for path, function, _ in functions():
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        untyped = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls")]
        if untyped or (function.returns is None and function.name != "__init__"):
            found.append(f"{where(path, function)} {function.name}")
    found = [entry for entry in found if not is_kernel(entry)]
    assert not found, "\n".join(["functions without types:", *found])


def is_kernel(entry: str) -> bool:
    """Kernels written in the language annotate in their own way."""
    return entry.startswith("tilewright/kernels/")


def test_every_public_module_level_function_and_class_has_a_docstring() -> None:
    found = []
    for path in MODULES:
        module = tree(path)
        if module.body and ast.get_docstring(module) is None:
            found.append(where(path, module))
        for node in module.body:
            named = isinstance(node, (ast.FunctionDef, ast.ClassDef))
            if named and not node.name.startswith("_") and ast.get_docstring(node) is None and len(lines(node)) > 4:
                found.append(f"{where(path, node)} {node.name}")
    assert not found, "\n".join(["without a docstring:", *found])


def lines(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def percentile_90(values: list[int]) -> float:
    return statistics.quantiles(values, n=10)[-1] if len(values) > 1 else max(values, default=0)


def test_files_stay_short() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    longest = max(lengths, key=lambda path: lengths[path])
    assert lengths[longest] <= 700, f"{longest} has {lengths[longest]} lines"
    assert percentile_90([n for n in lengths.values() if n]) <= 400


def test_functions_stay_short() -> None:
    long = [f"{where(path, one)} {one.name}" for path, one, _ in functions() if len(lines(one)) > 120]
    assert not [entry for entry in long if not is_kernel(entry)]
    assert percentile_90([len(lines(function)) for _, function, _ in functions()]) <= 40


EXECUTES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "copyreg"}
"""Modules whose files may run code, or break the interpreter, when they are read."""


def test_nothing_is_read_that_may_run_code() -> None:
    """What the package keeps on disk is text, JSON, or what a compiler made; arrays are never NumPy's object arrays."""
    found = []
    for path in MODULES:
        for node in ast.walk(tree(path)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                value = node.value
                names = ["pickle"] if not isinstance(value, ast.Constant) or value.value is not False else []
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "__import__"):
                # torch's reader of tensors alone knows no function of a stranger's.
                tensors_alone = any(
                    one.arg == "weights_only" and ast.unparse(one.value) == "True" for one in node.keywords
                )
                names = [] if tensors_alone else ["pickle"]
            found += [f"{path.name}:{node.lineno} {name}" for name in names if name.split(".")[0] in EXECUTES]  # type: ignore[attr-defined]
    assert not found, "\n".join(found)


DOORS = sorted(path for path in MODULES if "import *" in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", DOORS, ids=module_name)
def test_a_door_gives_each_name_to_one_thing(path: Path) -> None:
    """What one file of a room publishes is not hidden by another file, nor by one that has the name itself."""
    door = importlib.import_module(module_name(path))
    files = [node.module for node in tree(path).body if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"]
    for name in files:
        for word, value in vars(importlib.import_module(str(name))).items():
            assert word.startswith("_") or getattr(door, word) is value, f"{name} has another {word}"
    modules = {one.stem for one in path.parent.glob("*.py") if path.stem == "__init__"} - {"__init__"}
    assert all(isinstance(getattr(door, one), ModuleType) for one in modules if hasattr(door, one))
