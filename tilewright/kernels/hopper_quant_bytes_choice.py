"""How `byte_quant_matmul` is divided: tiles, slots and clusters for a problem, found on an H200."""

from __future__ import annotations

from tilewright.kernels.hopper_quant_medium_choice import SHARED_BYTES
from tilewright.kernels.hopper_quant_small import RESIDENT
from tilewright.machine.fragment_records import COLUMNS, FragmentRecords


def byte_quant_choice(N: int, K: int, M: int, form: FragmentRecords, promoted: bool) -> dict[str, int]:
    """The sizes that `byte_quant_matmul` is called with for up to `M` rows of A, found on an H200.

    Where W has rows for a block on most multiprocessors, K stays whole; else clusters divide it, and blocks have half as many
    rows where all of them still run at once.
    """
    tokens = next((n for n in (8, 16, 32, 64, 128) if n >= M), 256)
    if tokens == 256 and -(-N // 128) * -(-M // 256) < 100:
        tokens = 128
    sizes = {"tokens": tokens, "part": tokens, "tiles": 1, "cluster": 1, "sharing": 1, "ahead": 1, "records": 2}
    sizes |= {"warpgroups": 2, "turns": False}
    # Sums of int8 are converted too before they are scaled; e4m3 is faster without turns.
    in_turns = promoted and form.operand.is_integer
    if tokens == 256:
        # Zeros of groups take registers, which sums of fewer rows of A leave.
        part = 256 if not promoted else 128 if form.zero is None else 64
        sizes |= {"sharing": 2, "part": part, "turns": in_turns}
    else:
        blocks = -(-N // 128) * -(-M // tokens)
        sizes["tiles"] = 2 if blocks >= 200 else 1
        # As many as divide K as run at once: a second wave of a few blocks takes as long as the first.
        sizes["cluster"] = max((c for c in (1, 2, 4) if blocks * c <= RESIDENT[c]), default=1)
        sizes["records"] = 2 if tokens == 128 else 4
        if 2 * blocks * sizes["cluster"] <= RESIDENT[sizes["cluster"]]:
            sizes["warpgroups"] = 1
        elif tokens == 128 and sizes["tiles"] == 1:
            sizes["turns"] = in_turns
    return fitted(form, sizes, form.shape(N, K)[1])


def fitted(form: FragmentRecords, sizes: dict[str, int], across: int) -> dict[str, int]:
    """Sizes with slots of both rings: eight of activations at most, and what is left for weights, of which copies take no part twice.

    Where not even two copies of weights fit, they are shorter, and blocks of fewer rows.
    """
    room, activations = SHARED_BYTES - 2048, sizes["tokens"] * COLUMNS
    for tiles in range(sizes["tiles"], 0, -1):
        for records in (n for n in (4, 2, 1) if n <= sizes["records"] and across % n == 0):
            weights = 4 * (64 * sizes["warpgroups"] * tiles // form.rows) * records * form.words
            stages = min(8, (room - 2 * weights) // activations)
            if stages >= 2:
                rest = min(5, (room - stages * activations) // weights)
                return {**sizes, "tiles": tiles, "records": records, "stages": stages, "weight_stages": rest}
    raise AssertionError("two records and two columns of activations fit every multiprocessor")
