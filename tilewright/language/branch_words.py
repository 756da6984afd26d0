"""``with T.If(condition):`` and what stands in it: branches as builders of programs say them."""

from __future__ import annotations

from tilewright.ir.nodes import If as Conditional
from tilewright.ir.nodes import Seq
from tilewright.language.branches import BlockContext
from tilewright.language.mistakes import AuthorError
from tilewright.language.proxies import condition
from tilewright.language.recording import Builder, Frame, current, in_kernel, made_word, statement_here, word


class MisplacedBranch(AuthorError):
    """`T.Then` or `T.Else` outside of `T.If`, twice there, or beside other statements."""


class Branching(BlockContext):
    """The ``with`` frame of `T.If`; its own statements are its two branches."""

    def __init__(self, test: object) -> None:
        in_kernel("T.If")
        self.condition, self.span = condition(test), statement_here()
        self.branches: dict[str, Seq] = {}

    def __enter__(self) -> None:
        builder = current("T.If")
        self.frame = builder.push("T.If", self.span)
        self.frame.indices = (self,)

    def __exit__(self, *exception: object) -> None:
        builder = current("T.If")
        beside = builder.pop(self.frame)
        if exception[0] is not None:
            return
        if beside.statements or "T.Then" not in self.branches:
            why = "something stands beside its branches" if beside.statements else "it has no T.Then"
            raise MisplacedBranch(
                f"of `with T.If`, {why}", hint="write all of it in `with T.Then():` and `with T.Else():`"
            )
        builder.append(
            Conditional(self.condition, self.branches["T.Then"], self.branches.get("T.Else"), span=self.span)
        )


class BranchFrame(BlockContext):
    """The ``with`` frame of one of the branches."""

    def __init__(self, word: str) -> None:
        self.word, self.span = word, statement_here()

    def __enter__(self) -> None:
        builder: Builder = current(self.word)
        around: Frame = builder.frame
        if around.kind != "T.If" or self.word in around.indices[0].branches:
            where = "does not stand in `with T.If`" if around.kind != "T.If" else "stands there twice"
            raise MisplacedBranch(
                f"{self.word} {where}", hint="with T.If(condition): with T.Then(): ... with T.Else(): ..."
            )
        self.branching: Branching = around.indices[0]
        self.frame = builder.push(self.word, self.span)

    def __exit__(self, *exception: object) -> None:
        self.branching.branches[self.word] = current(self.word).pop(self.frame)


@word
def If(condition: object) -> Branching:
    """`with T.If(condition):` contains `Then` and `Else`; equivalent to Python's `if`.

    Parameters
    ----------
    condition : a condition of the program.

    Examples
    --------
    >>> with T.If(n > 3):
    ...     with T.Then():
    ...         A[0, 0] = 1.0
    ...     with T.Else():
    ...         A[0, 0] = 2.0
    """
    return Branching(condition)


_BRANCHES = (
    "with T.If(n > 3):", "    with T.Then():", "        A[0, 0] = 1.0", "    with T.Else():", "        A[0, 0] = 2.0",
)  # fmt: skip
Then = made_word(
    lambda: BranchFrame("T.Then"),
    "Then",
    "`with T.Then():` in `with T.If(...):` is the branch of a true condition.",
    {},
    *_BRANCHES[:3],
)
Else = made_word(
    lambda: BranchFrame("T.Else"),
    "Else",
    "`with T.Else():` in `with T.If(...):` is the branch of a false condition.",
    {},
    *_BRANCHES,
)
