"""Programs of machines whose loops may have warps that only load, of which all else is drawn, too: what threads say for themselves in turns that
load, which turns multiply, how long a loop is, where its author lays tiles, whether blocks stay, how a block's threads are counted.

What compilers ask before they let warps part is asked about all of a loop at once.  In programs that are made of whatever the language has, few loops
are such as part at all: their products are too small for a warpgroup, their machine has no copy engine.  Here most are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from hand_writer import HandWriter
from mixed_tiles import Tile
from product_writer import OPERANDS, Looped, ProductWriter
from thread_writer import LARGEST, Number

ROUNDS = (1, 2, 3, 4, 5, 8, 13, 24)
"""Turns of a loop: fewer than a ring has slots, and many times as many."""

DIVIDING = ("warps_in_turn", "some_threads", "begun_ahead", "handed_on", "met")
"""Statements by which an author says what which warps do, or for which all threads of the grid meet."""


class PartingWriter(ProductWriter, HandWriter):
    """Writes the program of a seed."""

    lines_of_block = (0, 2, 4, 4)
    longest_branch = 6

    def start(self) -> None:
        self.divides = self.chance(0.4)
        if not self.divides:
            self.threads = self.pick((128, 128, 128, 256, 384))
        super().start()
        if not self.by_hand:
            self.machines = self.pick(
                (("cuda -arch=sm_90a",),) * 5 + (("cuda -arch=sm_90",), ("cuda -arch=sm_100a",), ())
            )
        self.specialized, self.masked = self.pick((0.3, 0.9)), self.chance(0.55)
        self.beside, self.talks, self.moves = self.chance(0.25), self.pick((0.0, 0.0, 0.3, 0.8)), self.chance(0.2)
        """Whether a fragment adds up what turns load, how often threads speak in them, and whether their operands go through a tile of the turn."""

    def ways(self) -> list[tuple[float, Callable[[], None]]]:
        """What divides a block's warps leaves nothing to the compiler."""
        ways = [(weight, way) for weight, way in super().ways() if self.divides or way.__name__ not in DIVIDING]
        often = 0.25 if self.divides and not self.context.pipelined and self.context.depth < 3 else 0.0
        return [*ways, (often * sum(weight for weight, _ in ways), self.parted)]

    def number(self, low: int = -LARGEST, high: int = LARGEST) -> Number:
        """Of a block of two dimensions often the place of a thread along one of them."""
        places = [one for one in self.numbers_of_threads[:3] if low <= one.low and one.high <= high]
        return self.pick(places) if self.rows and places and self.chance(0.4) else super().number(low, high)

    def work_over_tiles(self) -> list[tuple[float, Callable[[], None]]]:
        return super().work_over_tiles() if self.divides else []

    # A loop ------------------------------------------------------------------------------------------

    def drawn_loop(self, by_hand: bool) -> Looped:
        made = super().drawn_loop(by_hand)
        groups = self.threads // 128 if self.threads % 128 == 0 else 1
        rows = made.rows if by_hand or self.chance(0.3) else 64 * groups
        return replace(
            made, rows=rows, dtype=made.dtype if by_hand else self.pick(OPERANDS[:4]), turns=self.pick(ROUNDS)
        )

    def header(self, looped: Looped) -> str:
        """As often as not it is left to the compiler whether warps part."""
        more = self.pick((", specialize=True", ", specialize=True", ""))
        return f"for {looped.loop} in T.Pipelined({looped.turns}, num_stages={self.pick((1, 2, 2, 3))}{more}):"

    def of_turns(self, looped: Looped) -> dict[str, Any]:
        outer = self.context
        return {"turns": outer.turns * looped.turns, "pipelined": True, "loops": (*outer.loops, looped.loop)}

    def before_turns(self, looped: Looped, a: Tile) -> None:
        self.summed = self.fragment_of(a) if self.beside else None

    def within(self, looped: Looped, a: Tile) -> Tile:
        left = self.passed_on(a) if self.moves and self.chance(0.7) else a
        if self.summed is not None:
            indices = self.loop(a.shape)
            place = ", ".join(name for name, _ in indices)
            total = self.summed
            self.emit(
                f'    {total.name}[{place}] = {total.name}[{place}] + T.cast({left.name}[{place}], "{total.dtype}")'
            )
        self.spoken()
        return left

    def behind(self, looped: Looped) -> None:
        self.spoken()

    def met_by(self, total: Tile, looped: Looped) -> None:
        if self.summed is not None:
            self.summed.range = -3 * looped.turns, 3 * looped.turns
            self.tiles.append(self.summed)
        super().met_by(total, looped)

    def spoken(self) -> None:
        """What threads do in a turn beside the block's work."""
        if self.chance(self.talks):
            self.meet(0.4)
            self.pick(
                (self.parted, self.parted, self.changed, self.worked_out, self.given_back, self.own_told, self.of_tiles)
            )()

    # Tiles -------------------------------------------------------------------------------------------

    def fragment_of(self, a: Tile) -> Tile:
        """A fragment of an operand's shape with noughts, which lies where its author says or not."""
        made = Tile(self.name("f"), "fragment", a.shape, self.pick(("float32", "int32")))
        self.emit(f'{made.name} = T.alloc_fragment({made.shape}, "{made.dtype}")')
        if self.chance(0.5) and (said := self.places((a.shape[0], a.shape[1]))):
            self.emit(f"T.annotate_layout({{{made.name}: {said}}})")
        self.emit(f"T.clear({made.name})")
        return made

    def passed_on(self, a: Tile) -> Tile:
        """A tile of the turn that gets what an operand holds."""
        made = self.staged((a.shape[0], a.shape[1]), a.dtype, self.pick(("shared", "fragment")))
        self.emit(f"T.copy({a.name}, {made.name})")
        return made

    # Which turns multiply ----------------------------------------------------------------------------

    def mask(self, looped: Looped) -> str:
        """What decides is mostly a list of the caller's: of nothing, of all, of one turn, of some, or of all from one on or before it."""
        if self.chance(0.25):
            return super().mask(looped)
        turns, at = looped.turns, self.between(0, looped.turns - 1)
        order = np.arange(turns)
        some = self.random.random(turns)
        chosen = self.pick(
            (order < 0, order < 0, order >= 0, order == at, order >= at, order < at, some < 0.5, some < 0.1)
        )
        name = self.tensor((turns,), "int32", (0, 1)).name
        self.params[-1] = replace(self.params[-1], value=chosen.astype(np.int32))
        return f"{name}[{looped.loop}] {self.pick(('!= 0', '> 0', '== 1'))}"
