"""Tuning of products: a tier's ways to compute one kind of call are measured, the fastest is kept on disk and used from
then on."""

from __future__ import annotations

from typing import Any

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


def check(found: object, expected: object, chosen: Candidate) -> None:
    """No options are kept, however fast, with which a call gives another result."""
    if not agree(found, expected):
        raise WrongCandidate(chosen)


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
    known.run()  # the weight is brought into the kernel's form before threads ask for it at once
    request, machine = known.request, known.machine
    # Each candidate has a result of its own, to be compared.
    options = {**options, "out": None, "out_dtype": element_type(known.result).name}

    def build(chosen: Candidate) -> Product:
        made = Product.of(x, weight, chosen=chosen, **options)
        made.run()
        check(made.result, known.result, chosen)
        return made

    found = search(
        candidates(weight, request, machine), build, lambda made: time_call(made.run, device_of(known.result)),
        topk=topk, parallel=parallel,
    )  # fmt: skip
    Database().put(tuning_key(weight, request, machine), found[0].options)
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
    options = {**options, "out": None, "out_dtype": element_type(known.out).name}

    def build(chosen: Candidate) -> GroupedCall:
        made = GroupedCall.of(x, weights, sizes, chosen=chosen, **options)
        assert isinstance(made, GroupedCall)
        made.run()
        check(made.out, known.out, chosen)
        return made

    found = search(
        known.candidates, build, lambda made: time_call(made.run, device_of(known.out)), topk=topk, parallel=parallel
    )
    known.choose(found[0].options)
    return found
