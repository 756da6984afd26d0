"""``C = A W^T`` on Hopper with W in low-bit records: which kernel serves how many rows of A."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.kernels import HOPPER, PLAIN, Epilogue, Speed
from tilewright.kernels.hopper_quant_skinny import FEW, skinny_candidates, skinny_quant_matmul
from tilewright.kernels.hopper_quant_slices import sliced_candidates, sliced_quant_matmul
from tilewright.kernels.hopper_quant_wgmma import wgmma_quant_matmul
from tilewright.kernels.hopper_quant_wgmma_choice import wgmma_quant_candidates
from tilewright.kernels.skinny_tiles import SkinnyCandidates
from tilewright.machine.fragment_records import FragmentRecords

FACTORIES = {"slices": sliced_quant_matmul, "skinny": skinny_quant_matmul, "wgmma": wgmma_quant_matmul}
"""The kernels by the name that options call them: `Fragments.version` goes up where one changes."""


def small_candidates(
    N: int, K: int, M: int, form: FragmentRecords, speed: Speed = HOPPER
) -> Iterator[tuple[str, SkinnyCandidates, int]]:
    """Names and candidates of the kernels for small M, and the most rows of A that these serve: the choice is made for
    so many, so that one kernel serves several numbers of rows."""
    made = {"slices": sliced_candidates, "skinny": skinny_candidates}
    found = ((name, listed(N, K, M, form, speed)) for name, listed in made.items())
    yield from ((name, some, some.of[0]["tokens"]) for name, some in found if some is not None)


def candidates(
    N: int,
    K: int,
    M: int,
    form: FragmentRecords,
    out: str = "float16",
    epilogue: Epilogue = PLAIN,
    speed: Speed = HOPPER,
) -> Iterator[dict[str, int | str | bool | tuple[int, ...]]]:  # arguments of kernels
    """Candidates for the product: sizes, and the ``kernel`` that takes them. The first is the fastest of a few that
    serve all numbers of rows of a weight."""
    small = list(small_candidates(N, K, M, form, speed))
    found: list[tuple[float, dict[str, int | str | bool | tuple[int, ...]]]] = []
    for name, listed, rows in small:
        times = listed.cycles(rows)
        found.append((times.min(), {"kernel": name, **listed.of[times.argmin()]}))
    if M > FEW or form.scales_codes or not found:
        of = wgmma_quant_candidates(N, K, form, out, epilogue, speed, few=8)
        sizes = of.choice(M)
        found.append((of.cycles(M)[of.of.index(sizes)], {"kernel": "wgmma", **sizes}))
    yield min(found, key=lambda one: one[0])[1]
    for name, listed, rows in small:
        for sizes in listed.ranked(rows):
            yield {"kernel": name, **sizes}
    if M > FEW or form.scales_codes:
        for sizes in wgmma_quant_candidates(N, K, form, out, epilogue, speed).ranked(M):
            yield {"kernel": "wgmma", **sizes}
