"""Faults that NVIDIA's manuals warn of, planted in emitted texts.

`mutator` alters whatever orders, moves or counts in a text, one word at a time. The operators here come from the other side: each is a
sentence of the CUDA C++ Programming Guide or of the PTX ISA manual (the sections are named) about what must not be done, written as
the mistake that somebody makes who has not read it. They know nothing of what the emulator looks at. Several move statements, put
single ones under conditions, or shift what lies in shared memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from mutator import Mutant

Lines = Sequence[str]
Planting = tuple[int, str, dict[int, str]]
"""The line (from 0), what was done, and the lines that are others then."""


def replaced(pattern: str, *others: str, only: str = "") -> Callable[[Lines], Iterator[Planting]]:
    """An operator that writes something else for each place of a pattern, in lines that hold `only`."""

    def plant(lines: Lines) -> Iterator[Planting]:
        for i, line in enumerate(lines):
            if not line.lstrip().startswith(("//", "#")) and (not only or re.search(only, line)):
                for found in re.finditer(pattern, line):
                    for other in others:
                        new = line[: found.start()] + found.expand(other) + line[found.end() :]
                        if new != line:
                            yield i, f"{found.group()[:50]} becomes {found.expand(other)[:60]}", {i: new}

    return plant


def only_some(pattern: str, condition: str) -> Callable[[Lines], Iterator[Planting]]:
    """An operator that leaves statements to some threads."""

    def plant(lines: Lines) -> Iterator[Planting]:
        for i, line in enumerate(lines):
            if re.match(rf"\s*tw::{pattern}", line) and line.rstrip().endswith(";"):
                indent = line[: len(line) - len(line.lstrip())]
                yield i, f"only if {condition}", {i: f"{indent}if ({condition}) {{ {line.strip()} }}"}

    return plant


def behind_next(pattern: str, next_one: str, within: int = 12) -> Callable[[Lines], Iterator[Planting]]:
    """An operator that moves a statement behind the next one of another kind, with all blocks that open between closed."""

    def plant(lines: Lines) -> Iterator[Planting]:
        for i, line in enumerate(lines):
            if not re.match(rf"\s*tw::{pattern}", line):
                continue
            depth = 0
            for j in range(i + 1, min(i + within, len(lines))):
                depth += lines[j].count("{") - lines[j].count("}")
                if depth < 0:
                    break
                if depth == 0 and re.search(next_one, "\n".join(lines[i + 1 : j + 1])):
                    yield i, f"behind line {j + 1}", {i: "", j: f"{lines[j]} {line.strip()}"}
                    break

    return plant


def inserted(pattern: str, statement: str) -> Callable[[Lines], Iterator[Planting]]:
    """An operator that puts a statement in front of others."""

    def plant(lines: Lines) -> Iterator[Planting]:
        for i, line in enumerate(lines):
            if re.match(rf"\s*{pattern}", line):
                yield i, f"{statement} before it", {i: f"{statement} {line.lstrip()}"}

    return plant


def left_out_behind(before: str, pattern: str) -> Callable[[Lines], Iterator[Planting]]:
    """An operator that leaves out the first statement of a kind behind another one."""

    def plant(lines: Lines) -> Iterator[Planting]:
        for i, line in enumerate(lines):
            if re.search(before, line):
                at = next((j for j in range(i, len(lines)) if re.search(pattern, lines[j])), None)
                if at is not None:
                    yield at, "left out", {at: re.sub(pattern, "{}", lines[at])}

    return plant


ADDRESS = r"tw::shared_address\((&?\w+(?:\[[^\]]*\])?)\)"

OPERATORS: dict[str, Callable[[Lines], Iterator[Planting]]] = {
    # Programming Guide, Synchronization Functions; PTX, bar.
    "a barrier in a branch that not all threads take": only_some(r"(?:sync_threads|named_barrier_sync)\(", "threadIdx.x % 64 < 32"),
    "threads that leave before a barrier": inserted(r"tw::(?:sync_threads|named_barrier_sync)\(", "if (threadIdx.x % 128 == 31) return;"),
    "a barrier of a warp where the block's is needed": replaced(r"tw::sync_threads\(\)", "tw::sync_warp()"),
    "a named barrier with the number of another one": replaced(r"named_barrier_sync\((\d+),", r"named_barrier_sync((\1) == 1 ? 2 : 1,", r"named_barrier_sync(0,"),
    "a named barrier for another number of threads": replaced(r"named_barrier_(sync|arrive)\((.*), (\d+)\)", r"named_barrier_\1(\2, \3 - 32)", r"named_barrier_\1(\2, \3 + 32)", r"named_barrier_\1(\2, \3 - 28)"),
    # PTX, cp.async: only the thread that waits sees its copies; a group must be closed; sizes and alignment.
    "a barrier before the wait for copies": behind_next(r"cp_async_wait<", r"sync_threads\(\)"),
    "copies that are committed after the wait": behind_next(r"cp_async_commit\(", r"cp_async_wait<", 30),
    "a copy of half its bytes": replaced(r"cp_async(_zfill)?<16>", r"cp_async\1<8>"),
    "a copy that reads beyond the end": replaced(r"16u : 0u", "16u", only="cp_async"),
    "an address that is not a multiple of its access": replaced(ADDRESS, r"tw::shared_address(\1) + 8", only=r"cp_async|ldmatrix|stmatrix|tma_|bulk_"),
    # PTX, mbarrier: counts, bytes, phases, life.
    "one thread more that initialises or starts copies": replaced(r"if \((\w+) == 0\)", r"if (\1 < 2)"),
    "fewer bytes expected": replaced(r"(expect_tx\w*\(.*), (\d+)\)", r"\1, \2 - 16)"),
    "more bytes expected": replaced(r"(expect_tx\w*\(.*), (\d+)\)", r"\1, \2 + 16)"),
    "arrivals that come to another number": replaced(r"(mbarrier_init\(.*), (\d+)\);", r"\1, \2 + 1);", r"\1, \2 > 1 ? \2 - 1 : 2);"),
    "a parity that is never turned": replaced(r"(mbarrier_wait\(.*), (\(.*\)(?: \^ 1u)?|\w+)\);", r"\1, 0u);"),
    "the barrier of the other direction": replaced(r"(mbarrier_\w+\()(\w+)_full", r"\1\2_empty"),
    "a slot's barrier that is the next one's": replaced(r"(mbarrier_(?:wait|arrive)\w*\()(.*\* 8)", r"\1\2 + 8"),
    "a barrier that is initialised again": inserted(r"tw::mbarrier_arrive_expect_tx\(", "tw::mbarrier_init({0}, 1);"),
    "an initialisation that nobody waits for": left_out_behind(r"fence_mbarrier_init\(", r"tw::(?:sync_threads|cluster_wait)\(\);"),
    "a slot that is given back before it was read": behind_next(r"wgmma_wait<[^0]>\(", r"mbarrier_arrive", 8),
    # PTX, async proxy; bulk copies and tensor copies.
    "a fence of the proxies behind the barrier": behind_next(r"fence_proxy_async_shared\(", r"sync_threads\(\)|named_barrier_sync\("),
    "a fence of the proxies by one thread only": only_some(r"fence_proxy_async_shared\(", "threadIdx.x % 128 == 0"),
    "a store of a box that is not committed": replaced(r"tw::bulk_commit\(\);", "{}"),
    "shared memory written again while a store reads it": replaced(r"tw::bulk_wait(_read)?<0>\(\);", r"tw::bulk_wait\1<1>();", "{}"),
    "coordinates in the wrong order": replaced(r"(tma_\w+\(.*), ([^,]+), ([^,]+)\);", r"\1, \3, \2);"),
    "a box stored from where the next one lies": replaced(r"(tma_store\(\w+, tw::shared_address\(&\w+\[)", r"\g<1>128 + "),
    # PTX, wgmma: fences, groups, registers, descriptors, all four warps.
    "a product by three warps of four": only_some(r"wgmma_(?:ss|rs)", "threadIdx.x % 128 < 96"),
    "registers of a product that are touched too early": behind_next(r"wgmma_wait<0>\(", r"store_fragment|set_word|\w+\[\w", 30),
    "a group of products left open": behind_next(r"wgmma_commit\(", r"wgmma_wait<"),
    "a product without the fence before it": replaced(r"tw::wgmma_fence\(\);", "{}"),
    "a descriptor of another swizzle": replaced(r"SWIZZLE_128B", "SWIZZLE_64B", only="wgmma_descriptor"),
    "a descriptor of a narrower swizzle": replaced(r"SWIZZLE_64B", "SWIZZLE_32B", only="wgmma_descriptor"),
    "a descriptor of another stride": replaced(r"(wgmma_descriptor\(.*), (\d+)\);", r"\1, \2 / 2);"),
    "sums that go on from what was there before": replaced(r", keep\);", ", true);"),
    # PTX, mma, ldmatrix, stmatrix: all lanes, rows by lanes, orientation.
    "a product by half a warp": only_some(r"mma_", "threadIdx.x % 32 < 16"),
    "matrices loaded in the other orientation": replaced(r"(ld|st)matrix_x(\d)(_trans)?\(", r"\1matrix_x\2_trans(", r"\1matrix_x\2("),
    "rows given by the wrong lanes": replaced(r"% 16 \*", "% 8 *", only="ldmatrix|stmatrix"),
    # Programming Guide, Warp Shuffle Functions.
    "a shuffle among half as many lanes": replaced(r"shuffle_xor\((.+), 16\)", r"shuffle_xor(\1, 16, tw::ALL_LANES, 16)"),
    "a shuffle that repeats a step": replaced(r"(shuffle_xor\(.+), 8\)", r"\1, 16)"),
    "a shuffle that some lanes do not come to": only_some(r"quad_transpose\(", "threadIdx.x % 32 != 5"),
    # Programming Guide, Memory Fence Functions and Atomic Functions; PTX, memory consistency.
    "a flag set by an ordinary store": replaced(r"tw::store_release\((.*), (.*)\);", r"*(\1) = \2;"),
    "a flag read by an ordinary load": replaced(r"tw::load_acquire\(([^)]*)\)", r"*(\1)"),
    "an atomic sum that is not atomic": replaced(r"tw::atomic_add\((.*), (.*)\);", r"*(\1) += \2;"),
    # Programming Guide, Device Memory Accesses; Shared Memory; Thread Hierarchy.
    "an index that may be the size": replaced(r"(if \(.*) < ", r"\1 <= "),
    "a guard without its last condition": replaced(r"(if \(.*) && [^&]*\) \{$", r"\1) {"),
    "a vector that is not aligned": replaced(r"((?:load|store)_fragment<[248]>\(.*&\w+\[)", r"\g<1>1 + "),
    "tiles that overlap in shared memory": replaced(r"\(shared_memory \+ (\d+)\)", r"(shared_memory + (\1 > 256 ? \1 - 256 : \1 + 256))"),
    "a block that takes another one's part": replaced(r"= blockIdx\.([xy]);", r"= blockIdx.\1 / 2;", r"= blockIdx.\1 + 1;"),
    "lanes counted by 16": replaced(r"tx % 32\b", "tx % 16"),
    "warps counted by 16": replaced(r"(tx|thread) / 32\b", r"\1 / 16"),
    "a ring of one slot fewer": replaced(r"% 3 \*", "% 2 *"),
    "sums that begin with nothing": replaced(r"\w+\[g\] = 0\.0f;|\w+\[g\] = 0;", "{}"),
    # PTX, setmaxnreg; barrier.cluster; distributed shared memory; griddepcontrol.
    "registers that are not there": replaced(r"(setmaxnreg_inc)<(\d+)>", r"\1<\2 + 32>"),
    "registers of one warp": only_some(r"setmaxnreg_", "threadIdx.x % 128 < 32"),
    "a block that ends while others reach into it": replaced(r"tw::cluster_wait\(\);", "{}"),
    "an arrival in the wrong block": replaced(r"(mbarrier_arrive_cluster\(.*), ([^,]+)\);", r"\1, tw::cluster_rank());"),
    "a load for one block of two": replaced(r"(tma_load_multicast\w*\(.*), 3,", r"\1, 1,"),
    "a part of a load that is the other block's": replaced(r"tw::cluster_rank\(\) \*", "(1 - tw::cluster_rank()) *"),
    "memory of the kernel before, read without a wait": replaced(r"tw::griddepcontrol_wait\(\);", "{}"),
}  # fmt: skip
"""What manuals warn of, and how it comes about in a text."""


def documented(text: str) -> list[Mutant]:
    """The texts with one of these faults each."""
    lines, found = text.split("\n"), []
    for name, plant in OPERATORS.items():
        for at, what, changes in plant(lines):
            barrier = re.search(r"expect_tx\w*\((.*), \d+\);", lines[at])
            altered = [changes.get(i, line) for i, line in enumerate(lines)]
            if "{0}" in altered[at]:  # an insertion that names the barrier of the statement behind it
                if not barrier:
                    continue
                altered[at] = altered[at].replace("{0}", barrier.group(1))
            found.append(Mutant(name, at + 1, what, "\n".join(altered)))
    return found
