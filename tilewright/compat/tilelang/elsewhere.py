"""Names of TileLang's that mean nothing here: they import, and say what to write when a program uses them."""

from __future__ import annotations

from typing import NoReturn

from tilewright.language.foreign import INSTEAD
from tilewright.specialization import InvalidUse


class Elsewhere:
    """Stands for something that TileLang has: any use says what to write instead."""

    def __init__(self, name: str, advice: str) -> None:
        self.__name__, self.advice = name, advice

    def _refuse(self) -> NoReturn:
        raise InvalidUse(f"tilewright has no {self.__name__}", hint=self.advice)

    def __call__(self, *_: object, **__: object) -> NoReturn:
        self._refuse()

    def __getattr__(self, name: str) -> Elsewhere:
        """Private insides may be taken and replaced: programs that mend TileLang itself do so as they import it."""
        if name.startswith("__"):
            raise AttributeError(name)
        return Elsewhere(f"{self.__name__}.{name}", self.advice) if name.startswith("_") else self._refuse()

    def __mro_entries__(self, bases: tuple[object, ...]) -> NoReturn:
        self._refuse()

    def __instancecheck__(self, instance: object) -> bool:
        """Nothing is one of what is not here."""
        return False

    def __or__(self, other: object) -> object:
        """In an annotation: ``Thing | None``."""
        return self

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"<{self.__name__}, which tilewright has not: {self.advice}>"


_ADVICE: dict[str, tuple[str, ...]] = {
    "write T.gemm on tiles: the compiler chooses the matrix instruction": (
        "TensorCoreIntrinEmitterWithLadderTransform", "get_ldmatrix_offset",
        "INT4TensorCoreIntrinEmitterWithLadderTransform", "MatrixCoreIntrinEmitter",
        "MatrixCorePreshuffleIntrinEmitter",
        "SparseTensorCoreIntrinEmitter",
    ),
    "pass configs=[...] to autotune: templates give hints for their own work": (
        "get_roller_hints_from_func", "get_roller_hints_from_output_nodes", "DefaultPolicy", "TensorCorePolicy",
    ),
    "ask kernel.resources(), kernel.explain() or kernel.program.traces": ("LowerTrace", "visualize_ir"),
    "this machine is no GPU of AMD's: compile with target='hip -arch=gfx942'": ("CDNA",),
    "leave it out: tilewright's compiler is no pass of TVM's": (
        "get_pass_context", "transform_func", "PassContext", "PassManager", "Simplify",
    ),
}  # fmt: skip

ELSEWHERE: dict[str, Elsewhere] = {name: Elsewhere(name, advice) for name, advice in INSTEAD.items()}
ELSEWHERE |= {name: Elsewhere(name, advice) for advice, names in _ADVICE.items() for name in names}
"""What stands for each name, whatever module a program takes it from."""


def inside(module: str, name: str) -> Elsewhere:
    """What stands for a name of a module that is all insides of TileLang's compiler."""
    return Elsewhere(
        f"{module if module.partition('.')[0] == 'tvm' else f'tilelang.{module}'}.{name}",
        "write T.gemm on tiles: the compiler chooses the matrix instruction"
        if ".intrinsics" in module
        else "it is a part of TileLang's compiler: leave it out, tilewright decides for itself how a kernel is made",
    )
