"""A defect of the compiler in the process that runs: the functions that its patch changes get other code, and have their own back behind it.

Nothing is imported again, so that one process tries all defects on a program in the time of its passes.  What a function is known by stays:
tables that hold it, classes, closures and caches need not be looked for.
"""

from __future__ import annotations

import ast
import functools
import gc
import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from reached import Lines, Marked

from tilewright.targets.emulation import Vocabulary

COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>")
"""Code of a module's statements: where it differs these are run again."""


OfFile = dict[tuple[str, int], list[FunctionType]]
"""Functions by name and first line."""

Functions = dict[str, OfFile]
"""By file."""


class Unswappable(ValueError):
    """A patch that changes more than functions, imports and values of modules."""


class Swap:
    """What a patch changes of the modules that are loaded.

    Parameters
    ----------
    texts : by file, what it is to be.
    live : the functions of the process.
    """

    def __init__(self, texts: Mapping[Path, str], live: Functions) -> None:
        self.codes: list[tuple[FunctionType, CodeType]] = []
        self.names: list[tuple[dict[str, Any], str, Any]] = []
        modules = {str(getattr(module, "__file__", "")): module for module in list(sys.modules.values())}
        for file, text in texts.items():
            self._take(modules[str(file)], ast.parse(file.read_text()), ast.parse(text), live[str(file)])

    def _take(self, module: ModuleType, old: ast.Module, new: ast.Module, live: OfFile) -> None:
        file = str(module.__file__)
        _check(old, new, file)
        for one, other in _pairs(compile(old, file, "exec"), compile(new, file, "exec")):
            if not _alike(one, other):
                found = live.get((one.co_name, one.co_firstlineno), [])
                if not found and one.co_name not in COMPREHENSIONS:
                    raise Unswappable(f"{file}: there is no function {one.co_name} in this process")
                self.codes += [(function, other) for function in found]
        known = {ast.dump(statement) for statement in old.body}
        defined = {one.name for one in old.body if isinstance(one, (ast.FunctionDef, ast.ClassDef))}
        for statement in new.body:
            if ast.dump(statement) not in known and getattr(statement, "name", None) not in defined:
                self._run(module, statement, file)

    def _run(self, module: ModuleType, statement: ast.stmt, file: str) -> None:
        """A statement of a module, here and wherever other modules have taken what it named."""
        space = dict(vars(module))
        exec(compile(ast.Module([statement], []), file, "exec"), space)
        for name in space.keys() - {"__builtins__"}:
            before = vars(module).get(name)
            if name not in vars(module) or space[name] is not before:
                self.names.append((vars(module), name, space[name]))
                if name in vars(module):
                    self.names += [
                        (vars(other), key, space[name])
                        for other in list(sys.modules.values())
                        if other is not module and getattr(other, "__name__", "").startswith("tilewright")
                        for key, value in list(vars(other).items())
                        if value is before
                    ]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The package as the patch makes it."""
        codes = [(function, function.__code__) for function, _ in self.codes]
        names = [(space, name, space.get(name), name in space) for space, name, _ in self.names]
        try:
            self.put()
            yield
        finally:
            for function, code in codes:
                function.__code__ = code
            for space, name, value, was_there in names:
                if was_there:
                    space[name] = value
                else:
                    del space[name]

    def put(self) -> None:
        for function, code in self.codes:
            function.__code__ = code
        for space, name, value in self.names:
            space[name] = value


class Headers:
    """Folders of headers in place of the package's own, for the rest of the process.

    Parameters
    ----------
    room : where folders stand as they do in the package.
    package : the folder that the package's folder stands in.
    """

    def __init__(self, room: Path, package: Path) -> None:
        folders = {header.parent for header in room.rglob("*") if header.is_file()}
        self.moved = {package / folder.relative_to(room): folder for folder in folders}

    def put(self) -> None:
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").startswith("tilewright"):
                for name, value in list(vars(module).items()):
                    if isinstance(value, (Path, tuple)):
                        setattr(module, name, self._of(value))
        for one in all_objects():
            if isinstance(one, Vocabulary):
                for name in ("folder", "shared"):
                    object.__setattr__(one, name, self._of(getattr(one, name)))
            elif isinstance(one, functools._lru_cache_wrapper) and one.__module__.startswith("tilewright"):
                one.cache_clear()

    def _of(self, value: Any) -> Any:
        if isinstance(value, Path):
            return self.moved.get(value, value)
        changed = type(value) is tuple and any(one in self.moved for one in value if isinstance(one, Path))
        return tuple(map(self._of, value)) if changed else value


def mark(lines: Lines, live: Functions) -> list[tuple[FunctionType, CodeType]]:
    """Let the functions that defects touch say so from here on; what they were before."""
    before = []
    for file, at in lines.items():
        text = Path(file).read_text()
        marked = ast.fix_missing_locations(Marked(at).visit(ast.parse(text)))
        for one, other in _pairs(compile(text, file, "exec"), compile(marked, file, "exec")):
            if not _alike(one, other):
                for function in live[file][one.co_name, one.co_firstlineno]:
                    before.append((function, function.__code__))
                    function.__code__ = other
    return before


def all_objects() -> list[object]:
    """What there is in this process, with what `gc.freeze` set apart, as tests do with all that they collect."""
    gc.unfreeze()
    return gc.get_objects()


def functions_of(files: Iterable[Path], package: Path) -> Functions:
    """The functions of some files of a package that there are in this process, which loads them where it has not."""
    found: Functions = {str(file): {} for file in files}
    for file in found:
        importlib.import_module(".".join(Path(file).relative_to(package).with_suffix("").parts))
    for one in all_objects():
        if type(one) is FunctionType and one.__code__.co_filename in found:
            code = one.__code__
            found[code.co_filename].setdefault((code.co_name, code.co_firstlineno), []).append(one)
    return found


def _codes(code: CodeType, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], CodeType]]:
    """Functions of a module and of its classes; those in functions are part of these."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            is_class = "__module__" in one.co_names and "__qualname__" in one.co_names
            yield from _codes(one, (*path, one.co_name)) if is_class else [((*path, one.co_name), one)]


def _pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The same functions of two texts of a module."""
    others: dict[tuple[str, ...], list[CodeType]] = {}
    for path, code in _codes(new):
        others.setdefault(path, []).append(code)
    for path, code in _codes(old):
        if others.get(path):
            yield code, others[path].pop(0)


def _alike(one: CodeType, other: CodeType) -> bool:
    """Whether two functions do the same, wherever they stand."""
    names = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags", "co_argcount")
    return (
        all(getattr(one, name) == getattr(other, name) for name in names)
        and len(one.co_consts) == len(other.co_consts)
        and all(
            _alike(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else type(a) is type(b) and a == b
            for a, b in zip(one.co_consts, other.co_consts, strict=True)
        )
    )


def _check(old: ast.Module, new: ast.Module, file: str) -> None:
    """Raises `Unswappable` where definitions differ in more than the bodies of functions."""
    heads = [{}, {}]  # type: list[dict[tuple[str, ...], list[str]]]
    for tree, found in zip((old, new), heads, strict=True):
        _heads(tree, (), found)
    for path in heads[0].keys() & heads[1].keys():
        if path and heads[0][path] != heads[1][path]:
            raise Unswappable(f"{file}: {'.'.join(path)} differs in more than the bodies of its functions")


def _heads(node: ast.AST, path: tuple[str, ...], found: dict[tuple[str, ...], list[str]]) -> None:
    """What there is of definitions besides the bodies of functions."""
    for child in getattr(node, "body", ()):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            said = [ast.dump(child.args), *map(ast.dump, child.decorator_list)]
            found.setdefault((*path, child.name), []).extend(said)
        elif isinstance(child, ast.ClassDef):
            found.setdefault((*path, child.name), []).extend(map(ast.dump, (*child.bases, *child.decorator_list)))
            _heads(child, (*path, child.name), found)
        elif path:
            found.setdefault(path, []).append(ast.dump(child))
