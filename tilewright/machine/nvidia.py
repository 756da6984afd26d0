"""NVIDIA's GPUs as data: multiprocessors, second-level cache and rates of each, with where each number is from.

An architecture (`targets/cuda/arch.py`) says what code runs; two GPUs of one architecture differ in what stands here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.cache import CacheUnavailable, cache_directory, get_text, put_text
from tilewright.machine.rates import Rates

_MB = 1 << 20


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU.

    Attributes
    ----------
    name : a part of what the driver calls it.
    arch : of its own code, without the letter of what only that generation has.
    l2_bytes : as the driver says where that is known: what is built for a GPU that is only named (``"cuda -arch=sm_90a
        -cores=132"``) is found again on it.
    """

    name: str
    arch: str
    cores: int
    l2_bytes: int
    rates: Rates


def _device(
    name: str,
    arch: str,
    cores: int,
    cache_mb: int,
    megahertz: int,
    gigabytes: float,
    tera: Mapping[str, float],
    source: str,
    shared: float = 128,
    cache: float = 5120,
) -> Device:
    """A record as data sheets have it: `tera` operations a second of dense matrices by type."""
    types = {**tera, "bfloat16": tera["float16"], "float8_e5m2": tera.get("float8_e4m3fn", 0.0)}
    # Units do powers of two in a cycle; what remains is rounding of the sheets.
    a_cycle = {
        kind: 2.0 ** round(math.log2(found * 1e6 / (cores * megahertz))) for kind, found in types.items() if found
    }
    rates = Rates(
        lanes=64 if arch == "sm_80" else 128,
        shifts=64,
        cycles=megahertz * 1e6,
        bytes=gigabytes * 1e9,
        products=tuple(sorted(a_cycle.items())),
        shared=shared,
        cache=cache,
        source=source,
    )
    return Device(name, arch, cores, cache_mb * _MB, rates)


_HOPPER = {"float16": 989.4, "float8_e4m3fn": 1978.9, "int8": 1978.9, "tfloat32": 494.7, "float64": 66.9}
_MEASURED = (162, 8448)
"""Bytes a cycle of shared memory and of the second-level cache of an H200: what fits the times of 900 products of
bfloat16 and e4m3 (24 November 2026). Its shared memory gives 128 bytes a cycle by the manual; the rest is what
instructions need not read again. The cache gives each core what its port takes. The GPUs below that are made of the
same chip have its numbers, which nobody measured there."""

DEVICES = (
    _device("H200", "sm_90", 132, 60, 1830, 4800, _HOPPER, "data sheet; caches measured", *_MEASURED),
    _device("H100 PCIe", "sm_90", 114, 50, 1620, 2039, {"float16": 756.4, "float8_e4m3fn": 1513, "int8": 1513,
        "tfloat32": 378, "float64": 51.2},
            "data sheet; caches as on an H200", *_MEASURED),
    _device("H20", "sm_90", 78, 60, 1830, 4000, {"float16": 148, "float8_e4m3fn": 296, "int8": 296, "tfloat32": 74,
        "float64": 1},
            "data sheet; caches as on an H200", *_MEASURED),
    # Behind the other GPUs of this architecture, whose names hold it too; "NVIDIA H100 80GB HBM3" is the one with SXM.
    _device("H100", "sm_90", 132, 50, 1830, 3352, _HOPPER, "data sheet; caches as on an H200", *_MEASURED),
    _device("A100", "sm_80", 108, 40, 1410, 2039, {"float16": 312, "int8": 624, "tfloat32": 156, "float64": 19.5},
        "data sheet; white paper of GA100"),
    _device("L40S", "sm_89", 142, 96, 2520, 864, {"float16": 362, "float8_e4m3fn": 733, "int8": 733, "tfloat32": 183},
            "data sheet; caches assumed"),
    _device("RTX 4090", "sm_89", 128, 72, 2520, 1008, {"float16": 165.2, "float8_e4m3fn": 330.3, "int8": 660.6,
        "tfloat32": 82.6},
            "white paper of AD102; caches assumed"),
    _device("RTX 5090", "sm_120", 170, 96, 2407, 1792, {"float16": 209.5, "float8_e4m3fn": 419, "int8": 838,
        "tfloat32": 104.8},
            "white paper of GB202; caches assumed"),
    _device("RTX PRO 6000", "sm_120", 188, 128, 2617, 1792, {"float16": 503.8, "float8_e4m3fn": 1007, "int8": 1007,
        "tfloat32": 251.9},
            "white paper of GB202; caches assumed"),
    _device("A40", "sm_86", 84, 6, 1740, 696, {"float16": 149.7, "int8": 299.3, "tfloat32": 74.8},
        "data sheet; caches assumed"),
    _device("B200", "sm_100", 148, 126, 1860, 8000, {"float16": 2250, "float8_e4m3fn": 4500, "int8": 4500,
        "tfloat32": 1125, "float64": 37},
            "data sheet; caches assumed"),
)  # fmt: skip
"""Every GPU that is known; of an architecture the first one stands for those that nobody named."""


def device_of(arch: str, cores: int | None = None, name: str = "") -> Device | None:
    """The GPU that the driver calls so, else one of an architecture with so many multiprocessors, else the first of its
    architecture.

    Examples
    --------
    >>> device_of("sm_90a", 78).name, device_of("sm_90a", name="NVIDIA H100 80GB HBM3").name, device_of("sm_90a", 100).name
    ('H20', 'H100', 'H200')
    """  # noqa: E501
    alike = [one for one in DEVICES if one.arch == arch.rstrip("a")]
    called = [one for one in alike if one.name in name]
    as_many = [one for one in alike if one.cores == cores]
    return next(iter([*called, *as_many, *alike]), None)


MEASURED = ("cycles", "bytes", "launch")
"""The rates that `tilewright calibrate` measures on the GPU at hand."""


def _kept(name: str) -> Path:
    """Where the rates of a GPU are kept that was measured."""
    return cache_directory() / "rates" / f"{re.sub(r'[^A-Za-z0-9]+', '-', name)}.json"


def keep(name: str, rates: Rates) -> Path:
    """Keep what was measured on a GPU of this name, for this process and later ones. Raises CacheUnavailable,
    OSError."""
    path = _kept(name)
    put_text(path, json.dumps({"name": name, **{one: getattr(rates, one) for one in MEASURED}}))
    return path


def as_measured(name: str, rates: Rates) -> Rates:
    """The rates of a GPU of this name, with what was measured on one here in the place of the record's.

    A file that is none, is cut, or was made for another GPU counts as nothing.
    """
    try:
        found = json.loads(get_text(_kept(name)))
        if found.get("name") != name:
            return rates
        cycles, moved, launch = (float(found[one]) for one in MEASURED)
    except (CacheUnavailable, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return rates
    if not all(math.isfinite(number) and number > 0 for number in (cycles, moved, launch)):
        return rates
    source = f"measured here (tilewright calibrate); the rest: {rates.source}"
    return replace(rates, cycles=cycles, bytes=moved, launch=launch, source=source)
