"""What a tier of the library is: one way to compute products, what keeps it from serving a call, how it serves one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from tilewright.ir.dtypes import FLOAT32, DType, dtype
from tilewright.kernels.arranged_activations import arranged_activations
from tilewright.kernels.recipe import Request, WeightFacts
from tilewright.machine.arch import Arch
from tilewright.matmul.arrays import device_of, empty_like, placed_like
from tilewright.matmul.packed import PackedWeight
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.tensors import Array, as_float32, is_torch
from tilewright.specialization import JITFactory
from tilewright.targets.base import Target
from tilewright.tuning import Candidate

Made = TypeVar("Made")
Of = TypeVar("Of", bound=Hashable)


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


class Launching:
    """What launches kernels one after another, each with its arguments."""

    __slots__ = ()

    def launches(self, operands: Operands) -> Iterator[tuple[Kernel, Sequence[object]]]:
        """The kernels that a call launches, in order, and what they are given."""
        raise NotImplementedError

    def __call__(self, operands: Operands) -> None:
        for kernel, arguments in self.launches(operands):
            kernel(*arguments)

    def emulate(self, operands: Operands, **options: Any) -> None:
        """Run the device text on this machine; see `Kernel.emulate`."""
        for kernel, arguments in self.launches(operands):
            kernel.emulate(*arguments, **options)


@dataclass(frozen=True, slots=True)
class Prepared(Launching):
    """A product ready to run.

    Attributes
    ----------
    tier : its name.
    kernel : compiled.
    held : the weight in the kernel's form.
    arguments : from the operands of a call and what is held to the kernel's arguments.
    is_owned : whether all that it is given beside the operands of a call is memory that nobody else has, on a
        processor: it stays where it is.
    """

    tier: str
    kernel: Kernel
    held: Sequence[Any]
    arguments: Callable[[Operands, Sequence[Any]], Sequence[object]]
    is_owned: bool = False

    def launches(self, operands: Operands) -> Iterator[tuple[Kernel, Sequence[object]]]:
        """The kernel and its arguments."""
        yield self.kernel, self.arguments(operands, self.held)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels that a call launches."""
        return (self.kernel,)


@dataclass(frozen=True, slots=True)
class Preprocessed(Launching):
    """A product behind a kernel of its own that prepares its activations: quantises them, or arranges them in the order
    of the weight's columns.

    Attributes
    ----------
    does : what the kernel makes, in the tier's name.
    first : that kernel, of the activations, what is held for it, and what it makes.
    held : an order of columns (int32, negative for none), divisors, where it takes them.
    columns, dtype : of the activations that it makes.
    quantises : whether it makes a float32 scale for each row besides.
    then : the product with what it makes.
    """

    does: str
    first: Kernel
    held: tuple[object, ...]
    columns: int
    dtype: DType
    quantises: bool
    then: Ready
    is_owned = False

    def launches(self, operands: Operands) -> Iterator[tuple[Kernel, Sequence[object]]]:
        """The kernel with new arrays for what it makes, and those of the product."""
        x = operands.activations
        made = empty_like(x, (x.shape[0], self.columns), self.dtype)
        scales = [empty_like(x, (x.shape[0], 1), FLOAT32)] if self.quantises else []
        yield self.first, (x, *self.held, made, *scales)
        scale = scales[0] if scales else operands.activation_scales
        yield from self.then.launches(replace(operands, activations=made, activation_scales=scale))

    @property
    def tier(self) -> str:
        return f"{self.does}, {self.then.tier}"

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels that a call launches."""
        return (self.first, *self.then.kernels)


def with_all_operands(request: Request, example: Array) -> Callable[[Operands], Operands]:
    """What gives kernels that take every operand one element for each that a call does not have; scales of activations
    become float32, one after the other."""
    no_scales = placed_like(np.ones(1, np.float32), example)
    no_bias = placed_like(np.zeros(1, dtype(request.bias or "float32").numpy), example)
    no_residual = placed_like(np.zeros((1, 1), dtype(request.out).numpy), example)

    def completed(call: Operands) -> Operands:
        scales, bias, residual = call.activation_scales, call.bias, call.residual
        return Operands(
            call.activations,
            no_scales if scales is None else as_float32(scales.reshape(-1)),
            no_bias if bias is None else bias,
            no_residual if residual is None else residual,
            call.out,
        )

    return completed


@functools.lru_cache(maxsize=1024)
def kernel_of(factory: JITFactory, arch: Arch, *arguments: Hashable, **named: Hashable) -> Kernel:
    """A kernel for a machine, found sooner than by `JITFactory.for_target`: for calls that ask each time."""
    return factory.for_target(arch, *arguments, **named)


def activation_columns(weight: PackedWeight, columns: int) -> np.ndarray:
    """Which column of the activations each of so many columns of a weight in a kernel's form meets, -1 for none."""
    order = np.full(columns, -1, np.int32)
    order[: weight.facts.K] = np.arange(weight.facts.K) if weight.gathered is None else weight.gathered
    return order


def arranged(
    weight: PackedWeight,
    request: Request,
    columns: int,
    machine: Machine,
    example: Array,
    then: Prepared,
    to: str | None = None,
) -> Ready:
    """A product with a weight of so many columns, behind a kernel that brings activations into their order, and to the
    type `to` where that is another one, where they are not in it as they are, or are divided first."""
    facts, divides = weight.facts, weight.facts.divisors and not request.divided
    if not (facts.gather or divides or columns != facts.K):
        return then
    kernel = kernel_of(arranged_activations, machine.arch, facts.columns, columns, request.activations, divides, to=to)
    divisors = placed_like(weight.held["divisors"] if divides else np.ones(1, np.float32), example)
    order = placed_like(activation_columns(weight, columns), example)
    made = dtype(to or request.activations)
    return Preprocessed("arranged activations", begun(kernel, example), (order, divisors), columns, made, False, then)


def begun(kernel: Kernel, example: Array) -> Kernel:
    """`kernel`, whose binary is being built already where a call with `example` will want it at once."""
    if is_torch(example) and example.is_cuda:
        kernel.begin()
    return kernel


def named(options: Candidate) -> str:
    """Options as a word, the same however they are ordered."""
    return repr(sorted(options.items()))


def kept_under(kernels: str, of: object, request: Request, arch: Arch, model: Candidate) -> str:
    """The key of tuning's result: calls of one kind (`Request.kind`) with a weight of such facts for which the
    machine's model chooses alike. The name of the kernels has a version, which changes when what was tuned says nothing
    of them any more."""
    return f"{kernels} {arch.target} {arch.name} {arch.cores} cores {of} {request.kind} {named(model)}"


def made_once(
    kind: Callable[[Of, Machine, Array, Candidate], Made], of: Of, machine: Machine, example: Array, options: Candidate
) -> Made:
    """A call of some kind with options of its kernel on the device of `example`, made when it is first asked for."""
    key = (kind, of, machine.arch, type(example) is np.ndarray, device_of(example), tuple(options.items()))
    found: Made | None = _CALLS.get(key)
    if found is None:
        found = _CALLS[key] = kind(of, machine, placed_like(np.zeros(1, np.float32), example), options)
    return found


_CALLS: dict[object, Any] = {}

Ready = Prepared | Preprocessed
"""A product ready to run, with what it launches before."""


class Tier:
    """One way to compute products.

    Attributes
    ----------
    version : changes when what was tuned says nothing of its kernels any more.
    pairs : whether its kernels may end with a function of pairs of columns.
    quantises : whether its kernels may quantise their activations themselves.
    machines : those that it runs on, in words.
    """

    name: str
    version = 1
    pairs = quantises = False
    machines: str

    def runs_on(self, arch: Arch) -> bool:
        """Whether a machine has what its kernels need."""
        raise NotImplementedError

    def reasons(self, facts: WeightFacts, request: Request, arch: Arch) -> Iterator[tuple[bool, str]]:
        """All that may keep it from serving a call on a machine that it runs on, and whether it does."""
        raise NotImplementedError

    def refuses(self, facts: WeightFacts, request: Request, arch: Arch) -> str | None:
        """The first reason that holds; None where it serves a call."""
        return next((reason for holds, reason in self.reasons(facts, request, arch) if holds), None)

    def candidates(self, weight: PackedWeight, request: Request, machine: Machine) -> Iterator[Candidate]:
        """Options of its kernels for a call: first what the machine's model chooses, then others, the most promising
        first."""
        raise NotImplementedError

    def prepare(
        self, weight: PackedWeight, request: Request, machine: Machine, example: Array, options: Candidate
    ) -> Ready:
        """Compile with options, and bring the weight into the kernel's form, on the device of `example`."""
        raise NotImplementedError
