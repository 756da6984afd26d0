"""How `medium_quant_matmul` is divided: tiles and slots for a problem, by cycles found on an H200."""

from __future__ import annotations

from tilewright.kernels.code_table import table_bytes
from tilewright.kernels.epilogue import PLAIN, Epilogue
from tilewright.kernels.hopper_quant_medium import HALF, PADDING, SLAB, staged_bytes
from tilewright.machine.fragment_records import COLUMNS, FragmentRecords

SHARED_BYTES = 227 << 10

CYCLES = {
    (16, 1): 230, (16, 2): 430, (32, 1): 290, (32, 2): 543, (64, 1): 400, (64, 2): 750, (128, 1): 620, (128, 2): 1180,
    (256, 1): 1130,
}  # fmt: skip
"""Of a multiprocessor for 64 columns, by rows of A and times 128 rows of W, as measured: 0.9 times what the products take, and one for
each instruction of a scheduler."""

START, RESIDENT = 8000, 132
"""Cycles until a block multiplies and after it has, and blocks that run at once."""

HANDED, READ = 3000, 1000
"""Cycles of the first sums that are handed over, and of the beginning of each that is read."""

BAND = 4
"""Tiles of 256 rows of A beside as many of 128 rows of W as run at once: about as many bytes of both."""


def medium_quant_choice(
    N: int, K: int, M: int, form: FragmentRecords, out: str = "float16", epilogue: Epilogue = PLAIN
) -> dict[str, int]:
    """The sizes that `medium_quant_matmul` is called with for a problem."""
    tokens, tiles, blocks = _tiles(N, K, M)
    return {**fitted(form, tokens, tiles, out, epilogue), "blocks": blocks}


def fitted(
    form: FragmentRecords, tokens: int, tiles: int, out: str = "float16", epilogue: Epilogue = PLAIN
) -> dict[str, int]:
    """Sizes with slots of both rings: powers of two, so that little is reckoned to find one."""
    promoted = tokens <= 32 and form.group == COLUMNS and form.zero is None
    halves = 1 if tokens >= 128 else 2
    kept = staged_bytes(out, epilogue)
    sums = 2 * min(tokens, SLAB) * (SLAB * kept + PADDING)
    room = SHARED_BYTES - 1024 - table_bytes(form) - sums
    activations = 2 * HALF * halves * tokens
    for records, stages, least in ((2, 4, 4), (2, 4, 2), (1, 4, 4), (1, 4, 2), (2, 2, 2), (1, 2, 2)):
        weights = 128 * tiles // form.rows * records * form.words * 4
        if stages * activations + least * weights <= room:
            break
    return {
        "tokens": tokens, "tiles": tiles, "records": records, "stages": stages, "halves": halves,
        "weight_stages": least, "sharing": 2 if tokens == 256 else 1, "band": BAND if tokens >= 128 else 1,
        "promoted": promoted,
    }  # fmt: skip


def _tiles(N: int, K: int, M: int) -> tuple[int, int, int]:
    """Rows of A of a tile, times 128 rows of W, and blocks: what takes the fewest cycles."""
    room = next((n for n in (16, 32, 64, 128) if n >= M), 0)
    sizes = [(tokens, tiles) for tokens, tiles in reversed(CYCLES) if tokens <= max(room, 256 - room)]
    choices = [
        (*size, blocks)
        for size in sizes
        if -(-M // size[0]) <= 2 or size[0] >= 128
        for blocks in _grids(-(-N // (128 * size[1])) * -(-M // size[0]))
    ]
    return min(choices, key=lambda choice: _cycles(N, K, M, *choice))


def _grids(count: int) -> list[int]:
    """How many blocks could share so many tiles: all that run, or a few for each."""
    return [RESIDENT, *(count * n for n in range(RESIDENT // count, 0, -1))]


def _cycles(N: int, K: int, M: int, tokens: int, tiles: int, blocks: int) -> float:
    """About how long a block works."""
    count, steps = -(-N // (128 * tiles)) * -(-M // tokens), -(-K // (2 * COLUMNS))
    shared = count % blocks
    share = -(-shared * steps // blocks)
    found = START + (count // blocks * steps + share) * (2 * COLUMNS // HALF) * CYCLES[tokens, tiles]
    if shared and share < steps:
        peers = -(-steps // share) - 1
        found += HANDED + peers * (READ + 128 * tiles * tokens * 4 / 40)
    return found
