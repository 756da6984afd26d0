"""Lines of execution: blocks, the blocks of a cluster and the roles of a block, which take turns.

Each runs until it waits for another; what belongs to it alone is kept aside meanwhile. Where all wait, nobody ever goes
on.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tilewright.errors import RolesDeadlocked
from tilewright.interpreter.arithmetic import convert
from tilewright.interpreter.clusters import cluster_of
from tilewright.interpreter.evaluate import Evaluator
from tilewright.interpreter.memory import Cell
from tilewright.interpreter.state import NOBODY
from tilewright.interpreter.varying import Varying, find_varying
from tilewright.ir import Statement, nodes, root

Steps: TypeAlias = "Generator[None, None, None]"

_LINE = (
    "lanes", "mask", "apart", "parallel", "returned", "broken", "threads", "span", "role", "values", "places",
    "memories",
    "channels", "rank", "barriers", "awaited",
)  # fmt: skip
"""What each line has for itself."""

_DONE = object()


class Lines(Evaluator):
    """An evaluator that runs kernels, given how one statement runs."""

    def run(self, statement: Statement) -> Steps:
        """Run one statement."""
        raise NotImplementedError

    def _roles(self, node: nodes.Roles) -> Steps:
        """Run all roles in turn, each until it waits for another."""
        outside, first, running = self._line(), 0, []
        for role in node.roles:
            for instance in range(role.instances):
                running.append((role, self.run(role.body), self._line_of(role, instance, first)))
                first += role.threads
        lines = [line for _, _, line in running]
        before = {var: self.values[var] for var in self.thread_vars}
        while running:
            waiting, woken = [], self.woken
            for role, steps, line in running:
                self._enter(line)
                self._bind_threads(role.threads)
                if next(steps, _DONE) is _DONE:
                    self.woken += 1
                else:
                    waiting.append((role, steps, self._line()))
            if len(waiting) == len(running) and woken == self.woken and len(self.peers) <= 1:  # no other block ends it
                names = ", ".join(dict.fromkeys(role.name for role, _, _ in waiting))
                awaited = {role.name: line["awaited"] for role, _, line in waiting if line["awaited"]}
                raise RolesDeadlocked(
                    f"the roles {names} wait for one another for ever"
                    if len(running) > 1
                    else f"the role {names} waits for ever",
                    span=waiting[0][2]["span"] or waiting[0][0].span,
                    hint="; ".join(f"{name} waits for {what}" for name, what in awaited.items()) or None,
                )
            running = waiting
            yield
        self._enter(outside)
        self.values.update(before)
        for buffer, place in self.places.items():
            if isinstance(place, Cell) and place.lanes == self.threads:
                place.join([line["places"][buffer] for line in lines])

    def _line(self) -> dict[str, Any]:
        """What belongs to one line of execution alone."""
        return {name: getattr(self, name) for name in _LINE}

    def _line_of(self, role: nodes.Role, instance: int, first: int) -> dict[str, Any]:
        """A role's own line, with names and tiles of its own where it has several instances; its threads, from `first`
        on, have what they had outside."""
        line = {**self._line(), "threads": (role.threads,), "role": (role.name, instance)}
        threads = slice(first, first + role.threads)
        values = {
            var: value[threads]
            for var, value in self.values.items()
            if var in self.varying.names and var not in self.thread_vars and np.shape(value) == self.threads
        }
        if self.lanes:  # below a condition of each thread
            line["lanes"] = (role.threads,)
        line |= {
            name: line[name][threads] for name in ("mask", "returned", "broken") if np.shape(line[name]) == self.threads
        }
        own = [buffer for buffer, place in self.places.items() if place.lanes == self.threads]
        if role.index is not None:
            values[role.index] = instance
        line["values"] = {**self.values, **values} if values else self.values
        if own or role.index is not None:
            line["places"], line["memories"] = dict(self.places), dict(self.memories)
        for buffer in own:
            if buffer.source is None and buffer in self.memories:
                line["memories"][buffer] = self.memories[buffer].of(threads)
            line["places"][buffer] = self.places[buffer].of(threads)
        return line

    def _enter(self, line: Mapping[str, object]) -> None:
        for name, value in line.items():
            setattr(self, name, value)

    def _bind_threads(self, count: int) -> None:
        """In a role, threads count from its own first one."""
        for position, var in enumerate(self.thread_vars):
            index = np.arange(count) if position == 0 else np.zeros(count)
            self.values[var] = index.astype(var.dtype.numpy)

    def _kernel(self, node: nodes.Kernel) -> Steps:
        grid = tuple(map(self.extent, node.grid))
        guarded = [(self.view(root(b)), b, value) for b, value in node.safe_values if root(b).scope == "global"]
        safe_before = [(view, view.safe) for view, _, _ in guarded]
        for view, buffer, value in guarded:
            view.safe = convert(self.value(value), value.dtype, buffer.dtype)
        self.varying = find_varying(node)
        self.thread_vars, self.block_vars = node.thread_vars, node.block_vars
        self.threads = (node.num_threads,)
        flat = np.arange(node.num_threads, dtype=np.int32)
        for var, extent in zip(node.thread_vars, node.threads, strict=True):
            self.values[var] = (flat % extent).astype(var.dtype.numpy)
            flat = flat // extent
        cluster = cluster_of(node, grid)
        for block in self.block_order(math.prod(grid)):
            ranks = cluster.ranks(block) if cluster is not None else (block,)
            if ranks and len(ranks) == 1:
                self._bind_block(node, grid, block)
                yield from self._to_its_end(node)
            elif ranks:
                yield from self._blocks_at_once(node, grid, ranks)
        self.mask, self.returned, self.threads, self.block_vars = None, NOBODY, (), ()
        self.varying = Varying()
        for view, safe in safe_before:
            view.safe = safe

    def _to_its_end(self, node: nodes.Kernel) -> Steps:
        """Run the one block there is, which nothing outside can wake."""
        steps = self.run(node.body)
        while True:
            before = self.woken
            if next(steps, _DONE) is _DONE:
                return
            if self.woken == before:
                raise RolesDeadlocked(f"the block waits for ever for {self.awaited or 'itself'}", span=self.span)
            yield

    def _bind_block(self, node: nodes.Kernel, grid: tuple[int, ...], block: int) -> None:
        for var, extent in zip(node.block_vars, grid, strict=True):
            self.values[var] = block % extent
            block //= extent
        self.mask, self.returned, self.lanes = None, NOBODY, ()
        self.barriers = {}

    def _blocks_at_once(self, node: nodes.Kernel, grid: tuple[int, ...], blocks: Sequence[int]) -> Steps:
        """Run the blocks of a cluster in turn, each until it waits for another."""
        outside = self._line()
        self.cluster_arrivals = {}
        running = []
        for rank, block in enumerate(blocks):
            self._enter({**outside, "values": dict(self.values), "places": dict(self.places),
                         "memories": dict(self.memories), "channels": {}, "rank": rank})  # fmt: skip
            self._bind_block(node, grid, block)
            running.append((self.run(node.body), self._line()))
        self.peers = [line["places"] for _, line in running]
        self.peer_barriers = [line["barriers"] for _, line in running]
        while running:
            before, waiting = self.woken, []
            for steps, line in running:
                self._enter(line)
                if next(steps, _DONE) is not _DONE:
                    waiting.append((steps, self._line()))
            if len(waiting) == len(running) and before == self.woken:
                awaited = dict.fromkeys(line["awaited"] for _, line in waiting if line["awaited"])
                raise RolesDeadlocked(
                    "the blocks of a cluster wait for one another for ever",
                    span=node.span,
                    hint=f"they wait for {'; '.join(awaited)}" if awaited else None,
                )
            running = waiting
            yield
        self._enter(outside)
        self.peers, self.peer_barriers = [self.places], [self.barriers]

    def others_in_block(self) -> list[tuple[str, int]]:
        """The lines of execution that make up a block: this one alone, or all roles."""
        if not self.role[0]:
            return [self.role]
        return [(name, i) for name, count in self.varying.instances.items() for i in range(count)]

    def block_order(self, count: int) -> Iterator[int]:
        """The order in which blocks run."""
        return iter(range(count))
