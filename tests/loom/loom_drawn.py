"""Machines like the one that nobody makes, drawn by a seed: fewer or more lanes, registers, shared memory and instructions.

The lanes of a product are a warp's or two warps', its tile is any, and bits of rows and columns are bits of lanes and
registers in any order; where lanes are more than elements, or one bit more is drawn, lanes hold copies.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
from loom_machine import LOOM, TYPES

from tilewright.ir.dtypes import ALL
from tilewright.layout import REGISTER, THREAD, Layout, replicate
from tilewright.machine import Arch, AsyncCopy, CopyEngine, MatrixInstruction, Signals
from tilewright.targets.gpu.spellings import TYPES as SPELLED

KINDS = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "int8": "S8", "int32": "S32"}


def drawn_machine(random: random.Random) -> Arch:
    """What any maker could build."""
    pick = random.choice
    lanes = pick((64, 64, 32, 16))
    products = tuple(product for _ in range(pick((0, 1, 1, 2, 3))) for product in drawn_products(random, lanes))
    unit = pick((16, 16, 32, 64))
    engine = CopyEngine(pick((2, 3, 5)), pick((32, 64, 256)), unit, unit * pick((2, 8, 16)))
    pieces = pick(((16, 8, 4), (8, 4), (16,), (4,)))
    signals = Signals(random.random() < 0.8, random.random() < 0.8)
    return replace(
        LOOM,
        async_copy=pick((None, AsyncCopy(pieces))),
        copy_engine=pick((None, engine)),
        signals=pick((None, signals)),
        named_barriers=pick((False, True)),
        warp_size=lanes,
        matrix_instructions=products,
        copy_instructions=LOOM.copy_instructions if products else pick((LOOM.copy_instructions, ())),
        features=frozenset(one for one in LOOM.features if one == "threads" or random.random() < 0.7),
        registers=pick((32, 64, 96, 128, 255, 256, 512)),
        shared_bytes=pick((8, 16, 32, 48, 64)) << 10,
        spans=pick(((), (128, 64, 32), (64, 32), (32,))),
        vector_bytes=pick((4, 8, 16, 16)),
        max_threads=pick((128, 256, 512, 1024)),
        cores=pick((1, 3, 20, 200)),
        l2_bytes=pick((0, 1 << 20, 5 << 20)),
        rates=pick((None, LOOM.rates)),
    )


def drawn_products(random: random.Random, lanes: int) -> list[MatrixInstruction]:
    """One shape of products, of some types; no other machine's has the name."""
    name = f"weave_{random.getrandbits(64):016x}"
    threads = lanes * random.choice((1, 1, 2))
    m, n, k = (random.choice(sizes) for sizes in ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32)))
    fragments = tuple(_fragment(random, shape, threads) for shape in ((m, k), (k, n), (m, n)))
    return [
        MatrixInstruction.of_registers(
            name, threads, (m, n, k), (ALL[operand], ALL[operand], ALL[total]), fragments, rate
        )
        for operand, total, rate in random.sample(TYPES, random.randint(1, len(TYPES)))
    ]


def _fragment(random: random.Random, shape: tuple[int, int], threads: int) -> Layout:
    bits = [(axis, bit) for axis, extent in enumerate(shape) for bit in range(extent.bit_length() - 1)]
    places = [1 << bit for bit in range(threads.bit_length() - 1)]
    random.shuffle(bits)
    random.shuffle(places)
    of_lanes = min(len(bits), len(places) - random.choice((0, 0, 1)))
    digits: list[dict[int, tuple[int, str, int]]] = [{}, {}]
    for number, (axis, bit) in enumerate(bits):
        in_lane = number < of_lanes
        digits[axis][bit] = (2, THREAD, places[number]) if in_lane else (2, REGISTER, 1 << number - of_lanes)
    layout = Layout.of(*([one[bit] for bit in sorted(one)] for one in digits))
    for stride in places[of_lanes:]:
        layout = replicate(layout, 2, stride=stride)
    return layout


def header_of(arch: Arch) -> str:
    """The machine's words for the emulator: those of LOOM, and its own products, whose places are tables."""
    lines = [f"#define LOOM_LANES {arch.warp_size}", '#include "loom_engine.h"', "namespace tw {"]
    names: dict[Layout, str] = {}
    for one in arch.matrix_instructions:
        for layout in (one.a_fragment, one.b_fragment, one.d_fragment):
            if layout not in names:
                names[layout] = f"places_{one.function}_{len(names)}"
                lines.append(_places(names[layout], layout))
        fragments = (one.a_fragment, one.b_fragment, one.d_fragment)
        counts = [layout.extent(REGISTER) for layout in fragments]
        kinds = [f"TW_{KINDS[dtype.name]}" for dtype in (one.a, one.b, one.accumulator)]
        form = [one.threads, one.m, one.n, one.k, *kinds, *counts, *(names[layout] for layout in fragments)]
        a, b, d = (
            f"Fragment<{SPELLED[dtype.name]}, {count}>"
            for dtype, count in zip((one.a, one.b, one.accumulator), counts, strict=True)
        )
        lines += [
            f"TW_DEVICE void {one.function}({d}& d, const {a}& a, const {b}& b, TW_SITE) {{",
            f"  static constexpr TwWaveForm form = {{{', '.join(map(str, form))}}};",
            "  loom::multiply(form, d, a, b, site);",
            "}",
        ]
    return "\n".join([*lines, "}", ""])


def _places(name: str, layout: Layout) -> str:
    """A function of lane and register."""
    threads, registers = np.indices((layout.extent(THREAD), layout.extent(REGISTER)))
    held = {THREAD: threads, REGISTER: registers}
    found = layout.coordinates(**{place: held[place] for place in layout.places})
    rows, columns = (np.broadcast_to(one, threads.shape).ravel() for one in found)
    table = ", ".join(f"{{{row}, {column}}}" for row, column in zip(rows, columns, strict=True))
    read = f"table[lane * {registers.shape[1]} + index]"
    return f"TW_DEVICE TwPlace {name}(tw_u32 lane, tw_u32 index) {{ static const TwPlace table[] = {{{table}}}; return {read}; }}"
