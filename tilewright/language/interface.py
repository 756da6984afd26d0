"""The decorators of every function that authors call: `T` has it, and wrong calls and other mistakes point at their
line."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar

from tilewright.errors import TilewrightError, near
from tilewright.language.mistakes import NumberExpected, WrongArguments
from tilewright.language.source import expression_here

P = ParamSpec("P")
R = TypeVar("R")
Named = TypeVar("Named")

WORDS: dict[str, object] = {}
"""Every word of the language, under each of its names: what `T` has."""


def called(*names: str) -> Callable[[Named], Named]:
    """Decorator: what authors find in `T` under these names."""

    def list_it(value: Named) -> Named:
        WORDS.update(dict.fromkeys(names, value))
        return value

    return list_it


def word(function: Callable[P, R], name: str = "") -> Callable[P, R]:
    """Decorator of a word of the language: authors find it in `T` under its own name, and call it (`author_facing`).

    A function that was made for one of a family of words is given its `name` here.
    """
    if name:
        function.__name__ = function.__qualname__ = name
    return called(function.__name__.rstrip("_"))(author_facing(function))


def author_facing(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: a call that does not fit the signature, or a mistake found inside, is shown at the author's line.

    ``annotations``, which TileLang's words take and most of ours leave alone, are a dictionary wherever there are any.
    """
    parameters = inspect.signature(function).parameters
    annotations = parameters.get("annotations")
    by_place = annotations is not None and annotations.kind is not inspect.Parameter.KEYWORD_ONLY
    place = slice(0, 0) if not by_place else slice(list(parameters).index("annotations"), None)

    @functools.wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        try:
            if annotations is not None:
                given = keywords.get("annotations", next(iter(arguments[place]), None))
                if not isinstance(given, Mapping | None):
                    what = f"annotations of T.{function.__name__.rstrip('_')}"
                    raise NumberExpected(what, "a dictionary, or None", getattr(given, "description", repr(given)))
            return function(*arguments, **keywords)
        except TypeError as error:
            problem = mismatch(function, arguments, keywords)
            if problem is None:
                raise
            raise problem.at(expression_here()) from error
        except TilewrightError as error:
            raise error.at(expression_here()) from None

    return call


def _by_names(function: Callable[..., R], names: Sequence[str], defaults: Mapping[str, object]) -> Callable[..., R]:
    """A function that takes its arguments by position, to be called by these names too.

    Words that one function makes have parameters of different names: ``T.shfl_up(value, delta)``,
    ``T.shfl_sync(value, srcLane)``.
    """
    kind, needed = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    signature = inspect.Signature([inspect.Parameter(name, kind, default=defaults.get(name, needed)) for name in names])

    def call(*arguments: object, **keywords: object) -> R:
        bound = signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        return function(*bound.args)

    call.__module__ = function.__module__
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def made_word(
    function: Callable[..., R],
    name: str,
    meaning: str,
    parameters: Mapping[str, str],
    *example: str,
    **defaults: object,
) -> Callable[..., R]:
    """A word that is made and not written out, as words of a family are: its docstring is put together here.

    Parameters
    ----------
    function : what it does; where its parameters have other names than the word's, they are given by position.
    parameters : what each means; several that mean one thing stand together, ``"x, y"``.
    example : its lines.
    defaults : of those parameters that may be left out, where `function` does not say so itself.
    """
    names = [one for together in parameters for one in together.split(", ")]
    if set(names) != set(inspect.signature(function).parameters):
        function = _by_names(function, names, defaults)
    sections = [meaning]
    if parameters:
        told = (f"{together} : {what}" for together, what in parameters.items())
        sections.append("\n".join(["Parameters", "----------", *told]))
    if example:
        goes_on = (line.startswith(" ") or before.startswith("@") for line, before in zip(example, ("", *example)))
        lines = (f"{'...' if more else '>>>'} {line}" for line, more in zip(example, goes_on))
        sections.append("\n".join(["Examples", "--------", *lines]))
    function.__doc__ = "\n\n".join(sections)
    return word(function, name)


def mismatch(
    function: Callable[..., object], arguments: Sequence[object], keywords: Mapping[str, object], name: str = ""
) -> WrongArguments | None:
    """What is wrong with the arguments of a call, None where they fit the signature."""
    signature = inspect.signature(function)
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        name = (
            name
            or f"T.{getattr(arguments[0], 'name', '') if function.__name__ == '__call__' else function.__name__.rstrip('_')}"  # noqa: E501
        )
        accepted = [p.name for p in signature.parameters.values() if p.name != "self"]
        unknown = [keyword for keyword in keywords if keyword not in accepted]
        takes = f"{name}{shown(signature)}"
        if unknown:
            hint = near(unknown[0], accepted)
            return WrongArguments(f"{name} has no argument {unknown[0]!r}", f"{hint} {takes}" if hint else takes)
        return WrongArguments(f"{name}: {error}", takes)
    return None


def shown(signature: inspect.Signature) -> str:
    """A signature without annotations, as an author would type the call."""
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values() if p.name != "self"]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))
