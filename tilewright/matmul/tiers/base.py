"""What a tier of the library is: one way to compute products, what keeps it from serving a call, how it serves one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from tilewright.ir.dtypes import FLOAT32, DType
from tilewright.kernels.recipe import Recipe
from tilewright.machine.arch import Arch
from tilewright.matmul.arrays import empty_like
from tilewright.matmul.facts import Request, WeightFacts
from tilewright.matmul.packed import PackedWeight
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.tensors import Array, is_torch
from tilewright.targets.base import Target
from tilewright.tuning import Candidate


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a product runs."""

    target: Target
    arch: Arch


@dataclass(frozen=True, slots=True)
class Operands:
    """The arguments of a call, None for what it does not have; scales of groups may lie column by column."""

    activations: Any
    activation_scales: Array | None
    bias: Array | None
    residual: Array | None
    out: Any


@dataclass(frozen=True, slots=True)
class Prepared:
    """A product ready to run.

    Attributes
    ----------
    tier : its name.
    kernel : compiled.
    held : the weight in the kernel's form.
    arguments : from the operands of a call and what is held to the kernel's arguments.
    recipe : of the general kernel, None for others.
    is_owned : whether all that it is given beside the operands of a call is memory that nobody else has, on a
        processor: it stays where it is.
    """

    tier: str
    kernel: Kernel
    held: Sequence[Any]
    arguments: Callable[[Operands, Sequence[Any]], Sequence[object]]
    recipe: Recipe | None = None
    is_owned: bool = False

    def __call__(self, operands: Operands) -> None:
        self.kernel(*self.arguments(operands, self.held))

    def emulate(self, operands: Operands, **options: Any) -> None:
        """Run the device text on this machine; see `Kernel.emulate`."""
        self.kernel.emulate(*self.arguments(operands, self.held), **options)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels that a call launches."""
        return (self.kernel,)


class _Behind:
    """A product behind a kernel that prepares its activations: what is so of every one.

    Attributes
    ----------
    does : what the kernel makes, in the tier's name.
    first, then : the kernel, and the product with what it makes.
    """

    __slots__ = ()

    does: ClassVar[str]
    first: Kernel
    then: Ready

    @property
    def tier(self) -> str:
        return f"{self.does}, {self.then.tier}"

    @property
    def recipe(self) -> Recipe | None:
        return self.then.recipe

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels that a call launches."""
        return (self.first, *self.then.kernels)


@dataclass(frozen=True, slots=True)
class Quantizing(_Behind):
    """A product whose activations are quantised by a kernel of its own first.

    Attributes
    ----------
    first : that kernel, of activations, divisors, codes and scales.
    divisors : of the activations; empty where there are none.
    codes : type of the quantised activations.
    then : the product with these.
    """

    first: Kernel
    divisors: tuple[object, ...]
    codes: DType
    then: Ready

    does: ClassVar[str] = "quantised activations"

    def __call__(self, operands: Operands) -> None:
        following = self._following(operands)
        self.first(operands.activations, *self.divisors, following.activations, following.activation_scales)
        self.then(following)

    def emulate(self, operands: Operands, **options: Any) -> None:
        """Run the device text on this machine; see `Kernel.emulate`."""
        following = self._following(operands)
        self.first.emulate(
            operands.activations, *self.divisors, following.activations, following.activation_scales, **options
        )
        self.then.emulate(following, **options)

    def _following(self, operands: Operands) -> Operands:
        x = operands.activations
        rows, columns = x.shape
        codes, scales = empty_like(x, (rows, columns), self.codes), empty_like(x, (rows, 1), FLOAT32)
        return replace(operands, activations=codes, activation_scales=scales)


@dataclass(frozen=True, slots=True)
class Arranging(_Behind):
    """A product whose activations are brought into the order of the weight's columns by a kernel of its own first.

    Attributes
    ----------
    first : that kernel, of activations, order, divisors and arranged activations.
    order : int32, the column of the activations for each of the arranged ones, negative for none.
    divisors : one element where there are none.
    columns, dtype : of the arranged activations.
    then : the product with these.
    """

    first: Kernel
    order: object
    divisors: object
    columns: int
    dtype: DType
    then: Prepared

    does: ClassVar[str] = "arranged activations"

    def __call__(self, operands: Operands) -> None:
        following = self._following(operands)
        self.first(operands.activations, self.order, self.divisors, following.activations)
        self.then(following)

    def emulate(self, operands: Operands, **options: Any) -> None:
        """Run the device text on this machine; see `Kernel.emulate`."""
        following = self._following(operands)
        self.first.emulate(operands.activations, self.order, self.divisors, following.activations, **options)
        self.then.emulate(following, **options)

    def _following(self, operands: Operands) -> Operands:
        x = operands.activations
        return replace(operands, activations=empty_like(x, (x.shape[0], self.columns), self.dtype))


def begun(kernel: Kernel, example: Array) -> Kernel:
    """`kernel`, whose binary is being built already where a call with `example` will want it at once."""
    if is_torch(example) and example.is_cuda:
        kernel.begin()
    return kernel


Ready = Prepared | Arranging | Quantizing
"""A product ready to run, with what it launches before."""


class Tier(Protocol):
    """One way to compute products.

    Attributes
    ----------
    version : changes when what was tuned says nothing of its kernels any more.
    pairs : whether its kernels may end with a function of pairs of columns.
    quantises : whether its kernels may quantise their activations themselves.
    machines : those that it runs on, in words.
    """

    name: str
    version: int
    pairs: bool
    quantises: bool
    machines: str

    def runs_on(self, arch: Arch) -> bool:
        """Whether a machine has what its kernels need."""

    def refuses(self, facts: WeightFacts, request: Request, arch: Arch) -> str | None:
        """Why it does not serve a call on a machine that it runs on; None where it does."""

    def candidates(self, weight: PackedWeight, request: Request, machine: Machine) -> Iterator[Candidate]:
        """Options of its kernels for a call: first what the machine's model chooses, then others, the most promising
        first."""

    def prepare(
        self, weight: PackedWeight, request: Request, machine: Machine, example: Array, options: Candidate
    ) -> Ready:
        """Compile with options, and bring the weight into the kernel's form, on the device of `example`."""
