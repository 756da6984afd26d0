"""compute-sanitizer over what the emulator passes: every program of the repository and the emulator's own kernels.

    PYTHONPATH=.:tests/gpu python3 tests/gpu/sanitizer.py [--tools memcheck,synccheck,racecheck] [--share 0/2] [--workers 12] [--only NAME ...]

A line a form says what the tools had to say; ``OK`` at the end, or the forms with findings and what was found.  Some findings
are the tools' limits, which `texts/sanitizer_probes.cu` shows: data handed over by `sync_warp` and one lane's arrival, or to and fro by
arrivals at named barriers (racecheck), and a named barrier that warps reach in different places of the text (synccheck, whose report ends the process).
API errors are not
listed: a driver refuses the binaries of older machines before it takes their PTX.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.runtime.arguments import Binder
from tilewright.runtime.kernel import Kernel
from tilewright.targets.cuda.driver import require_driver

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "unit" / "emulator")]

TOOLS = ("memcheck", "synccheck", "racecheck")
TOGETHER = 8
"""Forms of one process."""

SECONDS, SECONDS_MORE = 60, 20
"""For the process of a tool, and for each of its forms."""

SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
LAUNCHED = "launched"
"""What the process says once its kernel has run: silence of a tool that saw nothing is no proof."""


def forms() -> list[str]:
    """Names of all forms: programs with their architecture, then texts."""
    from emulator_kernels import KERNELS
    from repository_programs import ALL

    programs = [f"{program.name}-{architecture}" for program in ALL for architecture in program.architectures]
    return [*programs, *(f"text {kernel.name}" for kernel in KERNELS), *(f"probe {name}" for name in PROBES)]


PROBES = (
    "handed_by_all_lanes",
    "handed_by_a_lane",
    "handed_by_a_named_barrier",
    "handed_to_and_fro",
    "met_in_one_place",
    "met_in_two_places",
)
"""Kernels that say what the tools follow: of `handed_by_a_lane`, `handed_to_and_fro` and `met_in_two_places` they report what PTX orders."""


def launch(form: str) -> None:
    """Run one form on the device."""
    if form.startswith("text "):
        launch_text(form)
    elif form.startswith("probe "):
        launch_probe(form.split()[1])
    else:
        launch_program(form)
    print(LAUNCHED, flush=True)


def launch_text(form: str) -> None:
    from cuda_runner import DeviceRunner
    from emulator_kernels import KERNELS, correct
    from test_gpu_emulated_kernels import ARCH
    from test_gpu_emulated_kernels import launch as launch_kernel

    kernel = next(kernel for kernel in KERNELS if kernel.name == form.split()[1])
    problem = kernel.make(np.random.default_rng(0))
    launch_kernel(DeviceRunner(ARCH), kernel, problem)
    assert correct(problem)


def launch_probe(name: str) -> None:
    from cuda_runner import DeviceRunner, text

    out = np.zeros(256, np.int32)
    DeviceRunner().run(text("sanitizer_probes"), name, 1, 256, [out], shared=2048)
    assert out[1] == (126 if "handed" in name else 1)


def launch_program(form: str) -> None:
    from repository_programs import ALL, differences, run

    name, architecture = form.rsplit("-", 1)
    program = next(program for program in ALL if program.name == name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel, arguments = program.make(architecture)
    expected = run(kernel.interpret, arguments)
    assert not (problems := differences(on_device(kernel, arguments), expected, program.bound)), problems


def on_device(kernel: Kernel, arguments: Sequence[Any]) -> list[np.ndarray]:
    """What a kernel returns, and leaves in the arrays given.

    Memory is the driver's: torch would double a tool's work, and its allocator hide the ends of tensors.
    """
    from cuda_runner import Memory

    given = [argument.copy() if isinstance(argument, np.ndarray) else argument for argument in arguments]
    binder = Binder(kernel.function, "cpu")
    bound = binder.bind(given, {})
    driver = require_driver("running a program")
    with driver.on(0):
        memory = Memory(driver)
        try:
            entry = list(bound.entry)
            for place, value in enumerate(binder.arguments(given, bound.outputs)):
                if isinstance(value, np.ndarray):
                    entry[place] = memory.address(value)
            kernel._variant(entry).launcher(*entry)
            driver.check(driver.library.cuCtxSynchronize(), "cuCtxSynchronize", f"running {kernel.function.name}")
            memory.copy_back()
        finally:
            memory.free()
    return [np.asarray(array) for array in (*bound.outputs, *given) if isinstance(array, np.ndarray)]


def examine(forms: list[str], tools: list[str]) -> dict[tuple[str, str], str]:
    """What each tool finds in each form: nothing, or the text that it printed.

    Several forms share a process, whose start takes longer than they do; where a tool finds something, each has its own.
    """
    found = {}
    for tool in tools:
        text = output(forms, tool)
        for form in forms:
            found[form, tool] = text and (text if len(forms) == 1 else output([form], tool))
    return found


def output(forms: list[str], tool: str) -> str:
    """What a tool prints of forms in which it finds something; else nothing."""
    command = ["compute-sanitizer", "--tool", tool, "--report-api-errors", "no", "--print-limit", "4"]
    command += [sys.executable, __file__, "--launch", *forms]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + SECONDS_MORE * len(forms))
    except subprocess.TimeoutExpired:
        return "not done in time"
    printed = done.stdout + done.stderr
    counts = [int(count) for pair in SUMMARY.findall(printed) for count in pair if count]
    clean = counts and not any(counts) and done.stdout.count(LAUNCHED) == len(forms)
    return "" if clean else printed[-4000:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--share", default="0/1", help="I/N: every N-th form from the I-th on")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--only", nargs="*", help="parts of names")
    parser.add_argument("--launch", nargs="*", help="run these forms alone, as the tools' own process does")
    options = parser.parse_args()
    if options.launch:
        for form in options.launch:
            launch(form)
        return 0
    number, count = map(int, options.share.split("/"))
    chosen = [form for form in forms() if options.only is None or any(part in form for part in options.only)]
    chosen = chosen[number::count]
    tools, findings, start = options.tools.split(","), [], time.time()
    with concurrent.futures.ThreadPoolExecutor(options.workers) as pool:
        groups = [chosen[first : first + TOGETHER] for first in range(0, len(chosen), TOGETHER)]
        tasks = {pool.submit(examine, group, tools): group for group in groups}
        for task in concurrent.futures.as_completed(tasks):
            found = task.result()
            for form in tasks[task]:
                says = ", ".join(f"{tool} {'finds something' if found[form, tool] else 'clean'}" for tool in tools)
                print(f"[{time.time() - start:5.0f} s] {form}: {says}", flush=True)
            for (form, tool), text in found.items():
                if text:
                    findings.append((form, tool))
                    print(f"== {form}, {tool}\n{text}\n==", flush=True)
    print(
        f"{len(chosen)} forms, {len(findings)} findings: "
        + ("OK" if not findings else "; ".join(f"{form} ({tool})" for form, tool in findings))
    )
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
