"""Kernels of `front_door.py`, ours and the peers', built while others are timed.

Ours are compiled by processes that never ask the device: one that ends at once told them what it is (a program's key has all that the
driver says of it), and choice and text need the weight's shape and the range of its scales alone, so that arrays are stand-ins of no
memory and nothing is packed.  Humming's are compiled by threads of one process (its compiler is a
program of its own), Triton's by a process for each configuration.  All these processes are forked before this one asks the device, and
give way to it.  What they make lies in the caches on disk, where the process that times finds it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import AsyncResult
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import cache
from tilewright.kernels.recipe import Request
from tilewright.machine.arch import Arch
from tilewright.matmul import PackedWeight
from tilewright.matmul.tiers.base import Machine
from tilewright.matmul.tiers.dispatch import prepare
from tilewright.matmul.tiers.records import Records
from tilewright.targets.registry import resolve

Case = tuple[str, int, int, int]
"""Product, rows, and the weight's N and K."""

GROUP = 128
"""Columns of a weight that share a scale."""

_TYPES = {"bfloat16": "bfloat16", "float16": "float16", "int8": "int8", "e4m3": "float8_e4m3fn"}

PATIENCE = 40
"""Seconds that a case waits for its kernels at most: what a process that died was to build is built where it is met."""

_machine: list[Machine] = []
"""In a process that builds: the device, as the driver describes it."""


class Builds:
    """The kernels of cases, built in their order.

    Parameters
    ----------
    cases : about in the order in which they are timed.
    workers : processes for ours, and threads for Humming's.
    with_humming : whether its products are measured.

    Notes
    -----
    To be made before anything asks the device, and ended by `close`.
    """

    def __init__(self, cases: list[Case], workers: int, with_humming: bool) -> None:
        forked = multiprocessing.get_context("fork")
        self._cases, self._done, self._built = cases, forked.Queue(), set[int]()
        self._triton = [forked.Process(target=_triton, args=(one,), daemon=True) for one in range(_configurations())]
        self._humming = forked.Process(target=_humming, args=(cases, workers, self._done), daemon=True)
        self._with_humming = with_humming
        with forked.Pool(1) as asking:
            device = asking.apply(_present)
        self._pool = forked.Pool(workers, _begin, (device,))
        for one in [*self._triton, self._humming][: None if with_humming else -1]:
            one.start()
        self._ours: list[AsyncResult[None]] = [self._pool.apply_async(_ours, (case,)) for case in cases]

    def missing(self, number: int) -> str:
        """Whose kernels of a case are not built yet; nothing where all are."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._built.add(self._done.get_nowait())
        kind = self._cases[number][0]
        builds_humming = self._with_humming and self._humming.is_alive()
        waits_for = {
            "ours": not self._ours[number].ready(),
            "triton": kind == "bfloat16" and any(one.is_alive() for one in self._triton),
            "humming": builds_humming and kind.startswith("int") and number not in self._built,
        }
        return " and ".join(name for name, waits in waits_for.items() if waits)

    def ready(self, numbers: Sequence[int], deadline: float) -> int:
        """The first of some cases all of whose kernels are built; where there is none for long, the first."""
        until = min(deadline, time.time() + PATIENCE)
        while time.time() < until:
            found = next((one for one in numbers if not self.missing(one)), None)
            if found is not None:
                return found
            time.sleep(0.02)
        return numbers[0]

    def close(self) -> None:
        """End all processes."""
        for one in [*self._triton, self._humming]:
            if one.is_alive():
                one.kill()
        self._pool.terminate()


class _StandIn(PackedWeight):
    """A weight of which there are shape and scales alone; other forms of it are empty."""

    def derived(self, key: Any, make: Any) -> Any:
        if isinstance(key, tuple) and key[-1] is np.ndarray:
            return Records(np.zeros(1, np.uint32), np.zeros(1, np.float32))
        return super().derived(key, make)


def _present() -> Arch:
    return resolve("cuda")[1]


def _begin(device: Arch) -> None:
    os.nice(10)
    _machine.append(Machine(*resolve(device)))


def count_entries() -> list[str]:
    """A list that gets what made it for each entry that this process has to put into the library's cache from now on."""
    made: list[str] = []
    built = cache._built

    def counted(directory: Path, build: Callable[[Path], None]) -> None:
        made.append(build.__qualname__.partition(".<")[0])
        built(directory, build)

    cache._built = counted
    return made


def _ours(case: Case) -> None:
    """The kernel that the library chooses, as the call will choose it."""
    kind, rows, N, K = case
    weight, _, by = kind.partition(" by ")
    chance = np.random.default_rng(0)
    if weight in ("bfloat16", "e4m3"):
        codes = np.broadcast_to(np.zeros(1, np.uint16 if weight == "bfloat16" else np.uint8), (N, K))
        scales = {} if weight == "bfloat16" else {"scales": np.ones((N, 1), np.float32)}
        held = _StandIn(_TYPES[weight], (N, K), {"codes": codes, **scales})
    else:
        codes = np.broadcast_to(np.zeros(1, np.uint8), (N, K * int(weight[3:]) // 8))
        scales = {"scales": (chance.random((N, K // GROUP)) * 0.01 + 0.01).astype(np.float16)}
        held = _StandIn(weight, (N, K), {"codes": codes, **scales}, block=(1, GROUP))
    of_tokens = "token" if by in ("int8", "e4m3") else "none"
    request = Request(
        _TYPES[by or weight], "bfloat16" if weight in ("bfloat16", "e4m3") else "float16", of_tokens, rows=rows
    )
    for kernel in prepare(held, request, _machine[0], np.zeros((1, 1), np.float32)).kernels:
        _ = kernel.path


def _configurations() -> int:
    from triton_matmul import CONFIGURATIONS

    return len(CONFIGURATIONS)


def _triton(number: int) -> None:
    from triton_matmul import build

    os.nice(10)
    build(number)


def _humming(cases: list[Case], workers: int, done: Any) -> None:
    os.nice(5)
    import torch
    from peers import Humming

    by = {"float16": torch.float16, "int8": torch.int8, "e4m3": torch.float8_e4m3fn}

    def build(number: int) -> None:
        kind, rows, N, K = cases[number]
        try:
            small[kind].build(rows, N, K)
        except Exception as problem:  # the process that times meets it again, and says so in the log
            print(f"{cases[number]}, humming: {type(problem).__name__}", flush=True)
        done.put(number)

    def layer(kind: str) -> Any:
        weight, _, activations = kind.partition(" by ")
        codes = torch.zeros(256, 2 * GROUP, dtype=torch.uint8, device="cuda")
        scales = torch.ones(256, 2, dtype=torch.float16, device="cuda")
        return Humming(f"u{weight}", codes, scales, by[activations], torch.float16)

    kinds = sorted({case[0] for case in cases if case[0].startswith("int")})
    with ThreadPoolExecutor(workers) as pool:
        small = dict(zip(kinds, pool.map(layer, kinds)))  # each compiles what packs its weights
        list(pool.map(build, [number for number, case in enumerate(cases) if case[0] in small]))
