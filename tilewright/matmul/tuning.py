"""Tuning of products: a tier's ways to compute one kind of call are measured, the fastest is kept on disk and used from
then on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tilewright.errors import TilewrightError
from tilewright.matmul.arrays import agree, device_of, element_type
from tilewright.matmul.grouped_calls import GroupedCall
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.packed_experts import PackedExperts
from tilewright.matmul.product import Product
from tilewright.matmul.tiers.dispatch import candidates, tuning_key
from tilewright.runtime.tensors import Array
from tilewright.tuning import Candidate, Database, Outcome, search, time_call


class WrongCandidate(TilewrightError):
    """Options with which a kernel computes something else; a defect of tilewright's."""

    def __init__(self, chosen: Candidate) -> None:
        super().__init__(
            f"with {dict(chosen)} the result is another one",
            hint="these options are not used; please report the weight's size and format",
        )


class Call(Protocol):
    """A call that is ready, and its result."""

    @property
    def result(self) -> Any:  # of the call's library
        """What it gives, filled by `run`."""

    def run(self) -> Any:  # of the call's library
        """Launch."""


def measured(
    known: Call, candidates: Sequence[Candidate], made: Callable[[Candidate], Call], topk: int, parallel: bool
) -> list[Outcome]:
    """What ways to make a call cost, the fastest first. None is kept, however fast, with which the result is another.
    The call `known` has run: its weight is in the kernel's form before threads ask for it at once. `made` gives a call
    with such options, and a result of its own."""

    def build(chosen: Candidate) -> Call:
        call = made(chosen)
        call.run()
        if not agree(call.result, known.result):
            raise WrongCandidate(chosen)
        return call

    where = device_of(known.result)
    return search(candidates, build, lambda call: time_call(call.run, where), topk=topk, parallel=parallel)


def tune(
    x: Any, weight: PackedWeight, *, topk: int = 20, parallel: bool = True, **options: Any
) -> list[Outcome]:  # options of `quant_matmul`
    """Measure ways to compute ``quant_matmul(x, weight, **options)`` and keep the fastest for all calls of that kind.

    A kind is what the weight is (its size, format, groups, not its numbers), the types of the call, and the numbers of
    rows, up to the next power of two, for which the machine's model chooses the same kernel as for those of `x`. What
    is found is kept in the cache directory; later processes take it from there.

    Parameters
    ----------
    x, weight, options : of the call; its numbers should be like those of real ones, zeros are multiplied with less
        power.
    topk : candidates that are measured, the most promising first.
    parallel : whether they are compiled at the same time.

    Returns
    -------
    what was measured, the fastest first; ``options`` of each are its kernels'.

    Raises
    ------
    ArgumentError, Unsupported : as `quant_matmul`.
    """
    known = Product.of(x, weight, **options)
    known.run()
    request, machine = known.request, known.machine
    options = {**options, "out": None, "out_dtype": element_type(known.result).name}
    found = measured(
        known,
        candidates(weight, request, machine),
        lambda chosen: Product.of(x, weight, chosen=chosen, **options),
        topk,
        parallel,
    )
    Database().put(tuning_key(weight, request, machine)[0], found[0].options)
    weight.forget_kernels()
    return found


def tune_grouped(
    x: Array, weights: PackedExperts, sizes: object, *, topk: int = 20, parallel: bool = True, **options: Any
) -> list[Outcome]:  # options of `grouped_matmul`
    """As `tune`, for ``grouped_matmul(x, weights, sizes, **options)`` where one launch serves it; nothing otherwise."""
    known = GroupedCall.of(x, weights, sizes, **options)
    if isinstance(known, str):
        return []
    known.run()
    options = {**options, "out": None, "out_dtype": element_type(known.result).name}

    def made(chosen: Candidate) -> GroupedCall:
        call = GroupedCall.of(x, weights, sizes, chosen=chosen, **options)
        assert isinstance(call, GroupedCall)
        return call

    found = measured(known, known.candidates, made, topk, parallel)
    known.choose(found[0].options)
    return found
