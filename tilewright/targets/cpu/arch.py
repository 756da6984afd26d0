"""What a CPU is to the passes and the compiler: features, vector width, caches; detected or asked for."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tilewright.errors import near
from tilewright.machine.arch import Arch
from tilewright.targets.base import UnknownTarget
from tilewright.targets.cpu.instructions import dot_instructions, tile_instructions
from tilewright.texts import read_text

X86_FLAGS: Mapping[str, tuple[str, str]] = {
    "sse4_2": ("sse4_2", "-msse4.2"),
    "popcnt": ("popcnt", "-mpopcnt"),
    "avx": ("avx", "-mavx"),
    "f16c": ("f16c", "-mf16c"),
    "fma": ("fma", "-mfma"),
    "avx2": ("avx2", "-mavx2"),
    "bmi2": ("bmi2", "-mbmi2"),
    "avx512f": ("avx512f", "-mavx512f"),
    "avx512bw": ("avx512bw", "-mavx512bw"),
    "avx512dq": ("avx512dq", "-mavx512dq"),
    "avx512vl": ("avx512vl", "-mavx512vl"),
    "vnni": ("avx512_vnni", "-mavx512vnni"),
    "vbmi": ("avx512vbmi", "-mavx512vbmi"),
    "bf16": ("avx512_bf16", "-mavx512bf16"),
    "avxvnni": ("avx_vnni", "-mavxvnni"),
    "amx_tile": ("amx_tile", "-mamx-tile"),
    "amx_int8": ("amx_int8", "-mamx-int8"),
    "amx_bf16": ("amx_bf16", "-mamx-bf16"),
}
"""Features of x86: our name, the kernel's name in ``/proc/cpuinfo``, the compiler's flag."""

AMX = ("amx_tile", "amx_int8", "amx_bf16")
"""Features of the matrix unit, whose registers a process must ask Linux for (`tile_permission`)."""

INTEL_TRAITS = frozenset({"slow_bf16", "slow_streams"})
"""What Intel's cores are known for: a `vdpbf16ps` of 512 bits takes both vector units 2.15 cycles, where AMD's take one
slot; a loop that reads one stream gets half of what memory gives, unless somebody asks for lines ahead of it."""
AMD_TRAITS = frozenset({"far_requests", "ordered_streams"})
"""What AMD's cores are known for: more lines are underway to the second-level cache than to the first, so that streams
from memory are best asked for there (`prefetch.py`); stores past the caches wait for the ordinary ones before them,
such as the end of a row, whose line is read first."""
HALVED_TRAITS = frozenset({"halved_vectors"})
"""What Zen 4 (family 25, where it has AVX-512) is known for: vectors of 512 bits pass its units in two halves, so that
one product is done a cycle while other units unpack the next."""
WIDE_TRAITS = frozenset({"wide_first_level"})
"""What Zen 5 (family 26, where it has AVX-512) is known for: as many lines are underway to the first-level cache as to
the second, and requests that stop in the second take a fifth off what loads get from the shared cache
(`prefetch.py`)."""
_FAMILIES = {25: HALVED_TRAITS, 26: WIDE_TRAITS}
_TRAITS = {"GenuineIntel": INTEL_TRAITS, "AuthenticAMD": AMD_TRAITS}

ARM_FEATURES: Mapping[str, tuple[str, str, str]] = {
    "dotprod": ("asimddp", "hw.optional.arm.FEAT_DotProd", "dotprod"),
    "fp16": ("asimdhp", "hw.optional.arm.FEAT_FP16", "fp16"),
    "i8mm": ("i8mm", "hw.optional.arm.FEAT_I8MM", "i8mm"),
    "bf16": ("bf16", "hw.optional.arm.FEAT_BF16", "bf16"),
}
"""Features of AArch64 beside NEON: name in ``/proc/cpuinfo``, in ``sysctl``, in ``-march``."""

_AVX2 = ("sse4_2", "popcnt", "avx", "f16c", "fma", "avx2", "bmi2")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl")
PRESETS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "x86_64": ("x86_64", ()),
    "avx2": ("x86_64", _AVX2),
    "avxvnni": ("x86_64", (*_AVX2, "avxvnni")),
    "avx512": ("x86_64", _AVX512),
    "avx512-vnni": ("x86_64", (*_AVX512, "vnni")),
    "avx512-vnni-bf16": ("x86_64", (*_AVX512, "vnni", "vbmi", "bf16")),
    "avx512-vnni-bf16-amx": ("x86_64", (*_AVX512, "vnni", "vbmi", "bf16", *AMX)),
    "neon": ("aarch64", ()),
    "neon-dotprod": ("aarch64", ("dotprod", "fp16")),
    "neon-i8mm-bf16": ("aarch64", ("dotprod", "fp16", "i8mm", "bf16")),
}
"""Machines by the name that ``cpu -arch=`` takes: family and features."""


CACHES = ("l1_bytes", "l2_bytes", "l3_bytes", "line_bytes")
"""What an `Arch` says of caches."""


def make_arch(family: str, features: frozenset[str], **facts: int) -> Arch:
    """The `Arch` of a CPU family (``"x86_64"``, ``"aarch64"`` or another, which gets plain C) with features."""
    vector_bytes, registers = 16, 16
    known: Iterable[str] = ARM_FEATURES
    if family == "x86_64":
        wide = {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= features
        vector_bytes, registers = (64, 32) if wide else (32, 16) if {"avx2", "fma"} <= features else (16, 16)
        known = X86_FLAGS
    else:
        registers = 32
    every = frozenset(features) | {family} | ({"neon"} if family == "aarch64" else frozenset())
    name = "-".join([family, *(feature for feature in known if feature in features)])
    matrix = (*tile_instructions(every, vector_bytes), *dot_instructions(every, vector_bytes))
    return Arch("cpu", name, every, vector_bytes=vector_bytes, registers=registers, matrix_instructions=matrix, **facts)  # type: ignore[arg-type]


def arch(options: Mapping[str, str]) -> Arch:
    """The machine that target options describe: ``{"arch": "avx2"}``; without, this one.

    ``arch`` is a key of `PRESETS` or ``"native"``; a preset may be followed by features to add, joined by ``+``
    (``"avx2+avxvnni"``), ``"native"`` by features to leave out, each behind a ``-`` (``"native-amx_int8"``). A machine
    other than this one gets this one's cores and caches.
    """
    unknown = [key for key in options if key != "arch"]
    if unknown:
        raise UnknownTarget(f"the cpu target has no option {unknown[0]!r}", hint="its option is -arch=")
    wish = options.get("arch", "native")
    here = host()
    if wish == "native":
        return here
    if wish.startswith("native-"):
        family = next((name for name in ("x86_64", "aarch64") if here.has(name)), platform.machine())
        features = here.features - _known(family, wish.split("-")[1:])
        return _elsewhere(family, features, here)
    preset, *extra = wish.split("+")
    if preset not in PRESETS:
        raise UnknownTarget(
            f"unknown CPU architecture {preset!r}",
            hint=near(preset, list(PRESETS)) or f"known: native, {', '.join(PRESETS)}",
        )
    family, preset_features = PRESETS[preset]
    return _elsewhere(family, _known(family, extra).union(preset_features), here)


def _known(family: str, features: Sequence[str]) -> frozenset[str]:
    """Names of features that a user wrote, all of which the family has."""
    known = X86_FLAGS if family == "x86_64" else ARM_FEATURES
    for feature in features:
        if feature not in known:
            raise UnknownTarget(
                f"unknown {family} feature {feature!r}", hint=near(feature, list(known)) or f"known: {', '.join(known)}"
            )
    return frozenset(features)


def _elsewhere(family: str, features: frozenset[str], here: Arch) -> Arch:
    """A machine with these features, and with this one's cores and caches."""
    return make_arch(family, features, **{name: getattr(here, name) for name in ("cores", *CACHES)})


def detect() -> Arch | None:
    """This machine (every machine is a CPU)."""
    return host()


@functools.cache
def host() -> Arch:
    """The `Arch` of this machine."""
    machine = platform.machine().lower()
    family = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    if platform.system() == "Darwin":
        features, caches = _darwin(family)
    else:
        features, caches = _linux(family)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return make_arch(family, features, cores=cores, **{name: size for name, size in caches.items() if size})


def _linux(family: str) -> tuple[frozenset[str], dict[str, int]]:
    try:
        text = read_text(Path("/proc/cpuinfo"))
    except OSError:
        text = ""
    lines = [line.partition(":")[2].split() for line in text.splitlines() if line.startswith(("flags", "Features"))]
    present = set(lines[0]) if lines else set()
    table = {ours: theirs[0] for ours, theirs in (X86_FLAGS if family == "x86_64" else ARM_FEATURES).items()}
    features = frozenset(ours for ours, theirs in table.items() if theirs in present)
    if not features.isdisjoint(AMX) and not tile_permission():
        features -= frozenset(AMX)
    return features | traits_in(text), _linux_caches()


def traits_in(cpuinfo: str) -> frozenset[str]:
    """What the cores that ``/proc/cpuinfo`` describes are known for."""
    found = frozenset().union(*(traits for vendor, traits in _TRAITS.items() if vendor in cpuinfo))
    family = re.search(r"cpu family\s*: (\d+)\b", cpuinfo)
    if family is None or "AuthenticAMD" not in cpuinfo or "avx512f" not in cpuinfo:
        return found
    return found | _FAMILIES.get(int(family[1]), frozenset())


_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 0x1023, 18


@functools.cache
def tile_permission() -> bool:
    """Whether Linux lets this process use the registers of the matrix unit; it is asked once, for all threads."""
    try:
        return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0)
    except (OSError, AttributeError):
        return False


def _linux_caches(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for index in sorted(folder.glob("index*")):
        level, kind, size, line = (
            read_text(index / name).strip() if (index / name).is_file() else ""
            for name in ("level", "type", "size", "coherency_line_size")
        )
        if kind != "Instruction" and level in ("1", "2", "3") and size:
            unit = {"K": 1 << 10, "M": 1 << 20}.get(size[-1], 1)
            sizes |= {f"l{level}_bytes": int(size.rstrip("KM")) * unit, "line_bytes": int(line or 0)}
    return sizes


def _darwin(family: str) -> tuple[frozenset[str], dict[str, int]]:
    def ask(name: str) -> str:
        answer = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False)
        return answer.stdout.strip()

    if family == "x86_64":
        words = f"{ask('machdep.cpu.features')} {ask('machdep.cpu.leaf7_features')}".lower().replace(".", "_").split()
        alias = {"avx": "avx1_0", "avx512_vnni": "avx512vnni"}
        features = {ours for ours, (theirs, _) in X86_FLAGS.items() if theirs in words or alias.get(theirs) in words}
    else:
        features = {ours for ours, (_, name, _) in ARM_FEATURES.items() if ask(name) == "1"}
    names = ("hw.l1dcachesize", "hw.l2cachesize", "hw.l3cachesize", "hw.cachelinesize")
    return frozenset(features), dict(zip(CACHES, (int(ask(name) or 0) for name in names), strict=True))


def compiler_flags(arch: Arch) -> tuple[str, ...]:
    """Flags that let a C compiler use the instructions of `arch` and no others."""
    if arch.has("x86_64"):
        return ("-march=x86-64", *(flag for feature, (_, flag) in X86_FLAGS.items() if arch.has(feature)))
    if arch.has("aarch64"):
        extra = [name for feature, (_, _, name) in ARM_FEATURES.items() if arch.has(feature)]
        return ("+".join(["-march=armv8.2-a" if extra else "-march=armv8-a", *extra]),)
    return ()


def zig_flags(arch: Arch) -> tuple[str, ...]:
    """The same for Zig's C compiler, which has names of its own."""
    table, base = (_ZIG_X86, "x86_64") if arch.has("x86_64") else (_ZIG_ARM, "generic")
    if not (arch.has("x86_64") or arch.has("aarch64")):
        return ()
    known = X86_FLAGS if arch.has("x86_64") else ARM_FEATURES
    return ("-mcpu=" + "+".join([base, *(table.get(feature, feature) for feature in known if arch.has(feature))]),)


_ZIG_X86 = {"vnni": "avx512vnni", "vbmi": "avx512vbmi", "bf16": "avx512bf16"}
_ZIG_ARM = {"fp16": "fullfp16"}


def runs_here(arch: Arch) -> bool:
    """Whether this machine has every feature of `arch`."""
    return arch.features <= host().features
