"""``tilewright doctor``: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import ctypes.util
import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import tilewright
from tilewright.cache import CacheUnavailable, cache_directory
from tilewright.cli.terminal import Terminal
from tilewright.errors import TilewrightError
from tilewright.options import VARIABLES, options
from tilewright.targets.cpu.arch import host
from tilewright.targets.cpu.compiler import find_compiler
from tilewright.targets.registry import resolve
from tilewright.texts import write_text


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at.

    Attributes
    ----------
    subject : what.
    state : ``"ok"``, ``"missing"`` (kernels cannot run without it) or ``"optional"`` (absent, not needed).
    detail : what was found.
    remedy : how to get it, where it is not ok.
    """

    subject: str
    state: str
    detail: str
    remedy: str = ""


def run_doctor(given: argparse.Namespace, terminal: Terminal) -> int:
    """Print every finding; 1 where something that is needed is missing, else 0."""
    marks = {"ok": ("ok      ", "green"), "missing": ("MISSING ", "red"), "optional": ("-       ", "dim")}
    found = list(findings())
    for finding in found:
        mark, style = marks[finding.state]
        terminal.write(
            f"{terminal.paint(mark, style)}{terminal.paint(finding.subject.ljust(14), 'bold')}{finding.detail}"
        )
        if finding.state != "ok" and finding.remedy:
            terminal.write(" " * 22 + terminal.paint(finding.remedy, "yellow"))
    missing = [finding.subject for finding in found if finding.state == "missing"]
    if missing:
        terminal.write(f"\nKernels cannot run here yet: {', '.join(missing)}.")
        return 1
    terminal.write("\nKernels can run here.  Try: tilewright demo")
    return 0


def findings() -> Iterator[Finding]:
    """Everything that is looked at, in order."""
    yield Finding("tilewright", "ok", f"{tilewright.__version__} in {Path(tilewright.__file__).parent}")
    yield _python()
    yield from (_package(name, needed=True) for name in ("numpy", "ml_dtypes"))
    yield _processor()
    yield _compiler()
    yield _cache()
    yield _gpu()
    yield _nvrtc()
    yield from (_package(name, needed=False) for name in USES)
    yield from _switches()


def _python() -> Finding:
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    state = "ok" if sys.version_info >= (3, 10) else "missing"
    return Finding("Python", state, detail, "install Python 3.10 or newer")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


USES = {
    "torch": "tilewright.Linear, quantising and loading models, and tensors on a GPU need it; arrays of NumPy do not",
    "onnxruntime": "only comparisons of speed need it",
}
"""Packages that kernels run without, and what they are for."""


def _package(name: str, *, needed: bool) -> Finding:
    version = _version(name)
    if version is not None:
        return Finding(name, "ok", version)
    if needed:
        return Finding(name, "missing", "not installed", f"pip install {name}")
    return Finding(name, "optional", f"not installed; {USES[name]}", f"pip install {name}")


def _processor() -> Finding:
    arch = host()
    caches = f"L1 {_size(arch.l1_bytes)}, L2 {_size(arch.l2_bytes)}, L3 {_size(arch.l3_bytes)}"
    threads = options().num_threads or arch.cores
    return Finding(
        "CPU", "ok", f"{arch.name}, {arch.cores} cores ({threads} used), {8 * arch.vector_bytes}-bit vectors, {caches}"
    )


def _size(count: int) -> str:
    if not count:
        return "unknown"
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def _compiler() -> Finding:
    try:
        compiler = find_compiler()
    except TilewrightError as error:
        return Finding("C compiler", "missing", error.message, error.hint or "")
    complaint = _try_compiler(compiler.command)
    if complaint:
        hint = "repair it, or name another with TILEWRIGHT_CC"
        return Finding("C compiler", "missing", f"{' '.join(compiler.command)} does not work: {complaint}", hint)
    return Finding("C compiler", "ok", f"{' '.join(compiler.command)}: {compiler.version}")


def _try_compiler(command: tuple[str, ...]) -> str:
    """Compile and load one function; what went wrong, empty where nothing did."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "probe.c"), Path(folder, "probe.so")
        write_text(source, "#include <stdint.h>\n#include <math.h>\nint probe(void) { return 42; }\n")
        call = [*command, "-shared", "-fPIC", str(source), "-o", str(library), "-lm"]
        try:
            answer = subprocess.run(call, capture_output=True, text=True, timeout=120, check=False)
            if answer.returncode != 0:
                return next(iter(answer.stderr.splitlines()), f"exit status {answer.returncode}")
            return "" if ctypes.CDLL(str(library)).probe() == 42 else "its code gives wrong results"
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)


def _cache() -> Finding:
    folder = options().cache_dir
    if not options().cache:
        return Finding("cache", "ok", "off (TILEWRIGHT_CACHE=0): kernels are compiled anew in every process")
    try:
        with tempfile.TemporaryFile(dir=cache_directory()):
            pass
    except CacheUnavailable as error:
        return Finding("cache", "missing", error.message, error.hint or "")
    except OSError as error:
        return Finding(
            "cache",
            "missing",
            f"{folder}: {error.strerror or error}",
            "set TILEWRIGHT_CACHE_DIR to a folder that can be written, or TILEWRIGHT_CACHE=0 to keep nothing",
        )
    sizes = list(islice(_sizes_below(folder), _MOST_FILES + 1))
    over, counted = ("over ", sizes[:-1]) if len(sizes) > _MOST_FILES else ("", sizes)
    return Finding("cache", "ok", f"{folder}, {over}{len(counted)} files, {over}{sum(counted) / (1 << 20):.1f} MiB")


_MOST_FILES = 20_000
"""Files of a cache that are counted: a disk takes long to tell of all in one that has grown for months."""


def _sizes_below(folder: Path) -> Iterator[int]:
    """Bytes of each file; others may be building entries, whose files come and go."""
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield os.stat(os.path.join(place, name)).st_size


def _gpu() -> Finding:
    """NVIDIA GPUs, through the driver's own library: no package is needed to ask."""
    name = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
    except OSError:
        return Finding(
            "NVIDIA GPU",
            "optional",
            f"no driver ({name} not found); kernels run on the CPU or emulated",
            "install NVIDIA's driver where there is a GPU",
        )
    version, count = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return Finding("NVIDIA GPU", "optional", "a driver, but no GPU that it can use", "see nvidia-smi")
    driver.cuDriverGetVersion(ctypes.byref(version))
    names = []
    for index in range(count.value):
        device, text = ctypes.c_int(), ctypes.create_string_buffer(96)
        major, minor = ctypes.c_int(), ctypes.c_int()
        driver.cuDeviceGet(ctypes.byref(device), index)
        driver.cuDeviceGetName(text, len(text), device)
        driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
        names.append(f"{text.value.decode()} (sm_{major.value}{minor.value})")
    release = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    return Finding("NVIDIA GPU", "ok", f"{', '.join(names)}, driver for {release}")


def _nvrtc() -> Finding:
    for package in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc-cu13"):
        version = _version(package)
        if version is not None:
            return Finding("NVRTC", "ok", f"{version} ({package})")
    return Finding(
        "NVRTC", "optional", "not installed; only kernels for NVIDIA GPUs need it", "pip install 'tilewright[cuda]'"
    )


def _switches() -> Iterator[Finding]:
    for variable in VARIABLES.values():
        if variable in os.environ:
            yield _switch(variable, os.environ[variable])


def _switch(variable: str, value: str) -> Finding:
    try:
        if variable == VARIABLES["target"]:
            resolve(value or "auto")
    except TilewrightError as error:
        return Finding("switch", "missing", f"{variable}={value}: {error.message}", error.hint or "")
    return Finding("switch", "ok", f"{variable}={value}")
