"""A GPU that nobody makes, as data: 64 lanes, one shape of products, no copy engine and nothing asynchronous.

Lanes lie in its products as in those of no other machine: bits of a row's number are bits of a lane's and of a register's in turn.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.dtypes import ALL
from tilewright.layout import REGISTER, THREAD, Layout
from tilewright.machine import (
    GLOBAL,
    REGISTERS,
    SHARED,
    Arch,
    AsyncCopy,
    CopyEngine,
    CopyInstruction,
    MatrixInstruction,
    Rates,
    Signals,
)

LANES = 64

LEFT = Layout.of([(4, THREAD, 1), (2, REGISTER, 2), (4, THREAD, 16)], [(2, REGISTER, 1), (4, THREAD, 4)])
"""32 x 8: row ``l % 4 + r / 2 * 4 + l / 16 * 8``, column ``r % 2 + l / 4 % 4 * 2``."""

RIGHT = Layout.of([(2, REGISTER, 1), (4, THREAD, 16)], [(4, THREAD, 4), (4, THREAD, 1), (2, REGISTER, 2)])
"""8 x 32: row ``r % 2 + l / 16 * 2``, column ``l / 4 % 4 + l % 4 * 4 + r / 2 * 16``."""

RESULT = Layout.of(
    [(2, REGISTER, 8), (4, THREAD, 16), (4, THREAD, 1)], [(2, REGISTER, 1), (4, THREAD, 4), (4, REGISTER, 2)]
)
"""32 x 32: row ``r / 8 + l / 16 * 2 + l % 4 * 8``, column ``r % 2 + l / 4 % 4 * 2 + r / 2 % 4 * 8``."""

TYPES = (
    ("float16", "float32", 4096),
    ("bfloat16", "float32", 4096),
    ("int8", "int32", 4096),
    ("float32", "float32", 1024),
)
"""Operands, what they are summed in, and products and sums a cycle."""

PRODUCTS = tuple(
    MatrixInstruction(
        "weave_32x32x8", LANES, 32, 32, 8, ALL[operand], ALL[operand], ALL[total], REGISTERS, REGISTERS, LEFT, RIGHT, RESULT, rate=rate
    )
    for operand, total, rate in TYPES
)  # fmt: skip

LOOM = Arch(
    "loom", "loom64", frozenset({"threads", "shuffle", "atomics", "atomics_64", "atomic_extremes", "dp4a", "block_votes"}), warp_size=LANES,
    vector_bytes=16, shared_bytes=64 << 10, spans=(128, 64, 32), max_threads=1024, registers=256, cores=20, l2_bytes=4 << 20, matrix_instructions=PRODUCTS,
    copy_instructions=tuple(CopyInstruction("load", memory, REGISTERS, (16, 8, 4, 2, 1)) for memory in (SHARED, GLOBAL)),
    rates=Rates(128, 64, 1e9, 1e12),
)  # fmt: skip

PAIRED = MatrixInstruction.of_registers(
    "braid_32x16x16", 64, (32, 16, 16), (ALL["float16"], ALL["float16"], ALL["float32"]),
    (Layout.of([(4, THREAD, 1), (2, REGISTER, 4), (4, THREAD, 16)], [(4, REGISTER, 1), (4, THREAD, 4)]),
     Layout.of([(2, REGISTER, 1), (4, THREAD, 16), (2, THREAD, 8)], [(8, THREAD, 1), (2, REGISTER, 2)]),
     Layout.of([(2, REGISTER, 4), (16, THREAD, 4)], [(2, REGISTER, 1), (4, THREAD, 1), (2, REGISTER, 2)])),
    rate=4096,
)  # fmt: skip
"""Of two warps of 32 together."""

SHUTTLE = replace(
    LOOM, name="loom32", warp_size=32, shared_bytes=96 << 10, spans=(64,), max_threads=512, registers=128, cores=4, named_barriers=True,
    matrix_instructions=tuple(replace(PAIRED, a=ALL[operand], b=ALL[operand], accumulator=ALL[total], rate=rate) for operand, total, rate in TYPES),
    async_copy=AsyncCopy((8, 4)), copy_engine=CopyEngine(rank=3, box=64, unit=32, place=256), signals=Signals(counts_bytes=True, follows_copies=True),
)  # fmt: skip
"""Another one: warps of 32, products of two warps, copies that threads or an engine of smaller boxes make meanwhile."""
