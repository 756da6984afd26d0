"""``C = A W^T`` on Hopper with W in low-bit records: which kernel serves how many rows of A."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.kernels.epilogue import PLAIN, Epilogue
from tilewright.kernels.hopper_quant_skinny import (
    most_warps,
    skinny_quant_choice,
    skinny_quant_matmul,
    skinny_quant_sizes,
    skinny_quant_streams,
)
from tilewright.kernels.hopper_quant_slices import sliced_quant_candidates, sliced_quant_choice, sliced_quant_matmul
from tilewright.kernels.hopper_quant_wgmma import wgmma_quant_matmul
from tilewright.kernels.hopper_quant_wgmma_choice import wgmma_quant_ways
from tilewright.kernels.roofline import HOPPER, Speed
from tilewright.kernels.tiles import CLUSTERS
from tilewright.machine.fragment_records import FragmentRecords
from tilewright.specialization import JITFactory

FEW = 16
"""Rows that the kernel for skinny products serves."""


def chosen(
    N: int,
    K: int,
    M: int,
    form: FragmentRecords,
    out: str = "float16",
    epilogue: Epilogue = PLAIN,
    speed: Speed = HOPPER,
) -> tuple[dict[str, int], JITFactory]:
    """Sizes, and the kernel that takes them; a few kernels serve all numbers of rows of a weight."""
    slices = sliced_quant_choice(N, K, M, form, speed)
    if slices is not None:
        return slices, sliced_quant_matmul
    skinny = skinny_quant_choice(N, K, M, form, speed) if M <= FEW else {}
    covers = M <= FEW and skinny["stages"] > 0 and skinny["cluster"] < max(CLUSTERS)
    many = form.rows > 16 or (form.sets > 1 and form.zero is not None)  # sums, for a worker's registers
    if M > 8:
        covers = covers and not many and skinny_quant_streams(N, K, form, skinny, speed)
    if covers or (M <= FEW and not form.scales_codes):
        return skinny, skinny_quant_matmul
    ways = wgmma_quant_ways(N, K, form, out, epilogue, speed, 0 if many else FEW)
    return ways.choice(M), wgmma_quant_matmul


FACTORIES = {"slices": sliced_quant_matmul, "skinny": skinny_quant_matmul, "wgmma": wgmma_quant_matmul}
"""The kernels by the name that options call them: `Fragments.version` goes up where one changes."""


def candidates(
    N: int,
    K: int,
    M: int,
    form: FragmentRecords,
    out: str = "float16",
    epilogue: Epilogue = PLAIN,
    speed: Speed = HOPPER,
) -> Iterator[dict[str, int | str | bool | tuple[int, ...]]]:  # arguments of kernels
    """Ways to compute the product, `chosen`'s first: sizes, and the ``kernel`` that takes them."""
    names = {factory: name for name, factory in FACTORIES.items()}
    sizes, factory = chosen(N, K, M, form, out, epilogue, speed)
    yield {"kernel": names[factory], **sizes}
    for sizes in sliced_quant_candidates(N, K, M, form, speed):
        yield {"kernel": "slices", **sizes}
    if M <= FEW:
        for records in (r for r in (4, 2, 8) if form.shape(N, K)[1] % r == 0):
            for cluster in CLUSTERS:
                sizes = skinny_quant_sizes(N, K, M, form, records, cluster, speed)
                if 1 <= sizes["warps"] <= most_warps(M, form) and sizes["stages"] >= 2:
                    yield {"kernel": "skinny", **sizes}
    if M > FEW or form.scales_codes:
        for sizes in wgmma_quant_ways(N, K, form, out, epilogue, speed).ranked(M):
            yield {"kernel": "wgmma", **sizes}
