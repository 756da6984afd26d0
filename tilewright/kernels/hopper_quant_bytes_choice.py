"""How `byte_quant_matmul` is divided: tiles and slots for a problem, found on an H200."""

from __future__ import annotations

from tilewright.kernels.hopper_quant_bytes import PADDING, PIECE
from tilewright.kernels.hopper_quant_medium_choice import BAND, SHARED_BYTES
from tilewright.machine.fragment_records import COLUMNS, FragmentRecords


def byte_quant_choice(N: int, K: int, M: int, form: FragmentRecords, promoted: bool) -> dict[str, int]:
    """The sizes that `byte_quant_matmul` is called with for up to `M` rows of A, found on an H200.

    Blocks share tiles evenly, so tiles are those that multiply fastest; small ones where there would be few steps for each.
    """
    tokens = next((n for n in (8, 16, 32, 64, 128) if n >= M), 256)
    sizes = {"tokens": tokens, "part": tokens, "tiles": 1, "sharing": 1, "ahead": 1, "records": 2}
    sizes["band"] = BAND if tokens >= 128 else 1
    if tokens == 256:
        sizes["sharing"] = 2
        if promoted:
            sizes["part"], sizes["ahead"] = (64, 2) if form.operand.is_integer else (128, 1)
    else:
        sizes["tiles"] = 2 if -(-N // 128) * -(-M // tokens) >= 200 else 1
        sizes["records"] = 4 if tokens < 128 and sizes["tiles"] == 2 else 2
        if promoted and tokens == 128 and sizes["tiles"] == 1:
            sizes["ahead"] = 2
    return fitted(form, sizes)


def fitted(form: FragmentRecords, sizes: dict[str, int]) -> dict[str, int]:
    """Sizes with slots of both rings: powers of two, so that little is reckoned to find one.

    Where not even two copies of weights fit, they are shorter, and blocks of fewer rows.
    """
    sums = 4 * min(sizes["part"], PIECE) * (128 + PADDING)
    room, activations = SHARED_BYTES - 2048 - sums, sizes["tokens"] * COLUMNS
    for tiles in range(sizes["tiles"], 0, -1):
        for records in (n for n in (4, 2, 1) if n <= sizes["records"]):
            weights = 4 * (128 * tiles // form.rows) * records * form.words
            for stages, copies in ((8, 4), (8, 2), (4, 2), (2, 2)):
                if stages * activations + copies * weights <= room:
                    return {**sizes, "tiles": tiles, "records": records, "stages": stages, "weight_stages": copies}
    raise AssertionError("two records and two columns of activations fit every multiprocessor")
