"""All facts of the vocabulary, for a device, for the emulator, and for a command line without pytest."""

from __future__ import annotations

import importlib
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

MODULES = ("cuda_facts_numbers", "cuda_facts_matrix", "cuda_facts_sparse", "cuda_facts_copy", "cuda_facts_dependent")


def all_facts(arch: Any) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Name and check of every fact that an architecture should confirm; a check takes a runner and raises."""
    for module in MODULES:
        yield from importlib.import_module(module).facts(arch)


def confirm(runner: Any) -> list[str]:
    """Run every fact, print a line for each that fails, and give their names."""
    failed, count, start = [], 0, time.time()
    for name, check in all_facts(runner.arch):
        count += 1
        try:
            check(runner)
        except Exception as error:
            failed.append(name)
            lines = [line for line in str(error).splitlines() if line.strip()] or [repr(error)]
            print(f"FAIL {name}: {type(error).__name__}: {' | '.join(lines[:4])[:400]}", flush=True)
            if len(failed) == 1:
                traceback.print_exc()
    print(
        f"{count - len(failed)} of {count} facts confirmed on {runner.arch.name} in {time.time() - start:.1f} s",
        flush=True,
    )
    return failed
