"""Running a kernel's text on this machine: memory, arguments, schedules, and what comes back."""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from tilewright.emulator.arena import Arena, allocations, arrays_of, pack_arguments
from tilewright.emulator.lines import line_table
from tilewright.emulator.reports import OPERATIONS, Labels, Named, Report, Resolve, called, in_order, make_report
from tilewright.emulator.structures import (
    CONSTANT,
    LOOK,
    OF_ENGINES,
    OF_MACHINES,
    SCHEDULES,
    UNSETTLED,
    CFault,
    Fault,
    make_launch,
)
from tilewright.emulator.tensor_map import TensorMap
from tilewright.emulator.toolchain import Text, compile_text, core
from tilewright.errors import EmulationError, EmulationFailed, Span
from tilewright.machine.nvidia import DEVICES
from tilewright.options import options
from tilewright.progress import Progress
from tilewright.targets.cuda.emulation import CUDA
from tilewright.targets.emulation import Vocabulary
from tilewright.texts import keep_lines, write_text


@dataclass(frozen=True, slots=True)
class Emulation:
    """A finished run.

    Attributes
    ----------
    reports : mistakes found (empty unless `emulate` was told not to raise).
    census : how often each call of the vocabulary ran: (operation, file, line) -> count; only where asked for.
    printed : the lines of ``tw::print``, block by block, in each as its warps ran.
    """

    reports: tuple[Report, ...]
    census: Mapping[tuple[str, str, int], int]
    printed: tuple[str, ...] = ()


def _resolver(text: Text, positions: Sequence[Sequence[Any]]) -> Resolve:
    """Finds the author's place of a site: a call by its number, a plain access by its address in the text."""

    def resolve(site: int) -> Span | None:
        if site >> 31:
            file, line = positions[site & 0x7FFFFFFF]
            return Span(file, line)
        place = line_table(text.path).find(site) if site else None
        return Span(*place) if place else None

    return resolve


def launch_registers(source: str, kernel: str, threads: int, vocabulary: Vocabulary) -> int:
    """Registers a thread starts with, from the launch bounds in the text; 0 where it states none, or none are
    counted."""
    found = re.search(r"TW_KERNEL\(\s*\d+\s*,\s*(\d+)\s*\)\s*" + re.escape(kernel) + r"\b", source)
    return vocabulary.launch_registers(threads, int(found[1])) if found and vocabulary.launch_registers else 0


_PARAMETERS = re.compile(r"([^(){]*)\)\s*\{")


def constant_arrays(source: str, kernel: str, arguments: Sequence[object], vocabulary: Vocabulary) -> list[np.ndarray]:
    """The arrays that a kernel's parameters say nobody writes while it runs.

    Those of a restricted pointer to constants, and of a restricted pointer that is not the only one.
    """
    heads = (found.end() for found in re.finditer(vocabulary.kernels, source) if found[1] == kernel)
    found = next((match for end in heads if (match := _PARAMETERS.match(source, end))), None)
    if not found or not vocabulary.restrict or vocabulary.restrict not in found.group(1):
        return []
    parameters = re.sub(r"<[^<>]*>", "", found.group(1)).split(",")
    if len(parameters) != len(arguments):
        return []
    given = [argument for argument in arguments if isinstance(argument, np.ndarray)]
    return [
        array
        for text, array in zip(parameters, arguments, strict=True)
        if isinstance(array, np.ndarray) and vocabulary.restrict in text
        if re.search(r"\bconst\b.*\*", text) or sum(array is one for one in given) > 1
    ]


def _launch_sizes(*given: int | Sequence[int]) -> list[tuple[int, ...]]:
    """Grid, block and cluster with all three extents each."""
    sizes = []
    for name, dims in zip(("grid", "block", "cluster"), given):
        extents = (dims,) if isinstance(dims, int) else tuple(dims)
        if not 1 <= len(extents) <= 3 or not all(isinstance(extent, int) and extent > 0 for extent in extents):
            raise EmulationFailed(f"{name}={dims!r} is not one to three extents of at least 1")
        sizes.append((*extents, 1, 1)[:3])
    if any(blocks % together for blocks, together in zip(sizes[0], sizes[2])):
        raise EmulationFailed(f"a grid of {sizes[0]} blocks cannot be cut into clusters of {sizes[2]}")
    return sizes


def run(
    source: str,
    kernel: str,
    arguments: Sequence[object],
    *,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    cluster: int | Sequence[int] = (1, 1, 1),
    shared_bytes: int = 0,
    schedule: str = "late",
    seed: int = 0,
    check: bool = True,
    trace: str | os.PathLike[str] | None = None,
    multiprocessors: int = DEVICES[0].cores,
    registers: int | None = None,
    names: Sequence[str] | None = None,
    named: Sequence[tuple[np.ndarray, Named]] = (),
    tiles: Sequence[tuple[int, int, str]] = (),
    memory: Sequence[np.ndarray] = (),
    tables: Sequence[np.ndarray] = (),
    unsettled: Sequence[np.ndarray] = (),
    faults: Sequence[Fault] = (),
    census: bool = False,
    workers: int = 0,
    seconds: float = 600.0,
    poison: int = 0x7FF7A5A57FF7A5A5,
    vocabulary: Vocabulary = CUDA,
    file: str = "kernel.cu",
    report: Callable[[str], None] = print,
) -> Emulation:
    """Run a text once and return what was found, without raising; see `emulate` for the parameters."""
    sizes = _launch_sizes(grid, block, cluster)
    threads = math.prod(sizes[1])
    if threads > vocabulary.block_threads or not 0 <= shared_bytes <= vocabulary.shared_bytes:
        raise EmulationFailed(
            f"a block of {threads} threads with {shared_bytes} bytes of shared memory fits no machine"
        )
    if schedule not in SCHEDULES:
        raise EmulationFailed(f"unknown schedule {schedule!r}", hint="use " + ", ".join(SCHEDULES) + " or explore")
    text = compile_text(source, kernel, vocabulary, check, file)
    if not Path(file).exists():  # so that reports can show its lines
        keep_lines(source, file)
    library = core(options().compiler)

    arrays = arrays_of((*arguments, *memory))
    labels = Labels(_array_names(arrays, arguments, names, named), tiles, vocabulary.words)
    constant = constant_arrays(source, kernel, arguments, vocabulary)
    promises = [
        UNSETTLED * any(array is one for one in unsettled) + CONSTANT * any(array is one for one in constant)
        for array in arrays
    ]
    blocks = math.prod(sizes[2])
    taken = max(shared_bytes + vocabulary.reserved_bytes, 1)
    fit = max(1, min(vocabulary.threads // threads, vocabulary.shared_bytes // taken))
    talks = bool(vocabulary.talks and re.search(vocabulary.talks, source))
    if registers is None:
        registers = launch_registers(source, kernel, threads, vocabulary)
    unit = vocabulary.memory_unit
    watch = Watch(math.prod(sizes[0]))
    low, high = ctypes.c_uint64(), ctypes.c_uint64()
    library.tw_image(text.entry, ctypes.byref(low), ctypes.byref(high))
    arena = Arena(arrays)
    try:
        arena.point(tables)
        packed = pack_arguments(arguments, text, arena, vocabulary)
        order = make_launch(
            grid=sizes[0],
            block=sizes[1],
            cluster=sizes[2],
            warp_size=text.lanes,
            shared_bytes=-(-shared_bytes // unit) * unit,
            check=check,
            schedule=SCHEDULES[schedule],
            workers=1 if talks or trace or faults else workers or min(os.cpu_count() or 1, math.prod(sizes[0]), 16),
            resident=max(1, multiprocessors * fit // blocks),
            trace=(1 if trace else 0) | (2 if census else 0),
            promises=any(promises),
            fences_memory="fence_" in source,
            talks=talks,
            **{name: getattr(vocabulary, name) for name in OF_MACHINES},
            **{f"engine_{name}": getattr(vocabulary.copy_engine, name, 0) for name in OF_ENGINES},
            look=watch.look,
            registers=registers,
            seed=seed,
            poison=poison,
            milliseconds=int(1000 * seconds),
            entry=text.entry,
            arguments=(ctypes.addressof(packed) + 127) // 128 * 128,
            allocations=allocations(arena, promises, unit),
            allocation_count=len(arrays),
            arena_low=arena.base,
            arena_high=arena.base + arena.bytes,
            text_low=low.value,
            text_high=high.value,
            faults=(CFault * max(len(faults), 1))(*[fault.encode(vocabulary.words) for fault in faults]),
            fault_count=len(faults),
        )
        with watch:
            answer = library.tw_run(ctypes.byref(order))
        try:
            result = json.loads(ctypes.string_at(answer).decode(errors="replace"))
        finally:
            library.tw_free(answer)
        arena.copy_back()
    finally:
        arena.release()
    for line in result["printed"]:
        report(line)
    resolve = _resolver(text, result["positions"])
    reports = in_order([make_report(facts, labels, resolve) for facts in result["reports"]])
    if trace:
        _write_trace(trace, result["events"], resolve, vocabulary.words)
    return Emulation(tuple(reports), _counts(result["census"], resolve, vocabulary.words), tuple(result["printed"]))


def _counts(census: Sequence[Any], resolve: Resolve, words: Mapping[str, str]) -> dict[tuple[str, str, int], int]:
    """How often each line did what."""
    counts: dict[tuple[str, str, int], int] = {}
    for operation, site, count in census:
        place = resolve(site)
        if place:
            key = (called(OPERATIONS[operation], words), place.file, place.line)
            counts[key] = counts.get(key, 0) + count
    return counts


def _array_names(
    arrays: Sequence[np.ndarray],
    arguments: Sequence[object],
    names: Sequence[str] | None,
    named: Sequence[tuple[np.ndarray, Named]],
) -> list[str | Named]:
    """What to call each array: as it is named, or by the first argument that is or describes it."""
    labels: list[str | Named] = []
    for array in arrays:
        known = next((one for given, one in named if given is array), None)
        if known is not None:
            labels.append(known)
            continue
        label = "of a tensor map"
        for i, argument in enumerate(arguments):
            if argument is array or (isinstance(argument, TensorMap) and argument.array is array):
                label = names[i] if names else str(i)
                break
        labels.append(label)
    return labels


def _write_trace(
    path: str | os.PathLike[str], events: list[dict[str, Any]], resolve: Resolve, words: Mapping[str, str]
) -> None:
    """A timeline in the Chrome trace format (chrome://tracing, Perfetto): a process a block, a thread a warp."""
    for event in events:
        event["name"] = called(event["name"], words)
        site = event["args"].pop("site", 0)
        place = resolve(site)
        if place:
            event["args"]["at"] = f"{place.file}:{place.line}"
    blocks = sorted({(event["pid"], event["tid"]) for event in events})
    labels: list[dict[str, Any]] = []
    for block in sorted({pid for pid, _ in blocks}):
        labels.append({"name": "process_name", "ph": "M", "pid": block, "args": {"name": f"block {block}"}})
    for block, warp in blocks:
        labels.append({"name": "thread_name", "ph": "M", "pid": block, "tid": warp, "args": {"name": f"warp {warp}"}})
    write_text(Path(path), json.dumps({"traceEvents": labels + events, "displayTimeUnit": "ns"}))


EXPLORED = (("late", 0), ("early", 0), ("late", 1), ("early", 1), *(("random", seed) for seed in range(2, 14)))
"""The schedules that ``schedule="explore"`` tries."""


def emulate(
    source: str, kernel: str, arguments: Sequence[Any], *, schedule: str = "late", seed: int = 0, **launch: Any
) -> Emulation:  # of fields of `Launch`, each of its type
    """Run a kernel's text on this machine's CPU, under a scheduler that finds its mistakes.

    Parameters
    ----------
    source : the text, in the words of the vocabulary (docs/cuda_vocabulary.md).
    kernel : name of the kernel in it.
    arguments : in order; NumPy arrays (global memory, changed in place), scalars, `TensorMap` or `BoxDescriptor`.
    grid, block, cluster : up to three extents each, or one number; the grid's in blocks.
    shared_bytes : dynamic shared memory of a block.
    schedule : ``"late"`` (asynchronous things happen at the last moment), ``"early"`` (at once), ``"random"``, or
        ``"explore"``: a set of schedules, whose results must agree bit by bit.
    seed : chooses the order of warps, and everything random; a run is reproduced by schedule and seed.
    check : False runs without any check, several times as fast.
    trace : a file for a timeline in the Chrome trace format.
    multiprocessors : how many the machine has; limits the blocks that run at once.
    registers : a thread has at launch; None takes the launch bounds in the text, 0 does not check.
    names : of the arguments, for reports.
    named : arrays among arguments and memory that are tensors, of which reports name elements.
    tiles : of dynamic shared memory, for reports: first byte, byte behind the last one, name.
    memory : further arrays that tensor maps and tables of pointers point into.
    tables : those of the arrays that hold addresses (uint64) within others.
    unsettled : those that the kernel before, of which this one is a dependent launch, may use until
        this one waits for it (CUDA's `griddepcontrol_wait`).
    seconds : after which a run is stopped and reported.
    report : what shows the lines that the kernel prints.
    faults, census, workers, poison, vocabulary, file : planted faults, whether operations are counted, OS threads, what
        memory holds before it is written, whose words the text uses, and what the text's own lines are called.

    Returns
    -------
    The finished run.

    Raises
    ------
    EmulationError : mistakes were found; its `reports` lists them.
    EmulationFailed : the text does not compile or the launch does not fit it.
    """
    if schedule == "explore":
        return _explore(source, kernel, arguments, launch)
    result = run(source, kernel, arguments, schedule=schedule, seed=seed, **launch)
    if result.reports:
        raise EmulationError(result.reports)
    return result


def _explore(source: str, kernel: str, arguments: Sequence[object], launch: dict[str, Any]) -> Emulation:
    """Try the schedules of `EXPLORED`; the arrays end as the first one leaves them."""
    arrays = [a.array if isinstance(a, TensorMap) else a for a in (*arguments, *launch.get("memory", ()))]
    arrays = [array for array in arrays if isinstance(array, np.ndarray) and array.flags.writeable]
    before = [array.copy() for array in arrays]
    first: list[np.ndarray] = []
    result = Emulation((), {})
    for schedule, seed in EXPLORED:
        for array, old in zip(arrays, before):
            array[...] = old
        result = run(source, kernel, arguments, schedule=schedule, seed=seed, **launch)
        if result.reports:
            raise EmulationError(result.reports)
        if not first:
            first = [array.copy() for array in arrays]
            launch = {**launch, "report": lambda line: None}  # one schedule's lines are enough
            continue
        for position, (array, expected) in enumerate(zip(arrays, first)):
            if array.tobytes() != expected.tobytes():
                names = _array_names(arrays, arguments, launch.get("names"), launch.get("named", ()))
                facts = {
                    "kind": "schedule-dependent",
                    "site": 0,
                    "argument": str(names[position]),
                    "first": "late, seed 0",
                    "second": f"{schedule}, seed {seed}",
                }
                raise EmulationError([make_report(facts, Labels(names), lambda site: None)])
    for array, expected in zip(arrays, first):
        array[...] = expected
    return result


class Watch:
    """Keeps a run in the core interruptible, and shows how far it is.

    Use as a context manager; `look` is for the core, which calls it ten times a second. Python's own handler of an
    interrupt could not raise out of that call, so that it is called when the core has returned.
    """

    def __init__(self, blocks: int) -> None:
        self.interrupted = False
        self.before: Any = None
        self.bar = Progress(blocks)
        self.look = LOOK(self._look)

    def _look(self, ended: int) -> int:
        self.bar.wait(ended, "blocks emulated")
        return self.interrupted

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True

    def __enter__(self) -> Watch:
        if threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT)):
            self.before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.__exit__()
        if self.before is not None:
            signal.signal(signal.SIGINT, self.before)
            if self.interrupted:
                self.before(signal.SIGINT, None)
