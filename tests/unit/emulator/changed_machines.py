"""Records of machines that somebody makes, with something of them changed: what passes may take for granted of none."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from tilewright.machine import Arch, MatrixInstruction
from tilewright.machine.amd import ARCHITECTURES as AMD
from tilewright.machine.apple import FAMILIES as APPLE
from tilewright.targets.cuda.arch import named

NVIDIA = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_90a", "sm_90a", "sm_120")
"""Those that have more ways to do a thing, more often."""

MACHINES: dict[str, Arch] = {**{name: named(name) for name in NVIDIA}, **AMD, **APPLE}
NAMES = (*NVIDIA, "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", *APPLE)

OWN: dict[str, tuple[object, ...]] = {
    "registers_per_multiprocessor": (16384, 32768), "warps_per_multiprocessor": (16, 32), "simds": (1, 2),
    "blocks_per_multiprocessor": (1, 4), "simd_registers": (128, 256), "simd_waves": (2, 4), "read_groups": ((),),
    "core_shared_bytes": (32 << 10, 128 << 10), "shared_per_multiprocessor": (48 << 10, 100 << 10),
}  # fmt: skip
"""What only one maker's records say, with values that others could have."""

Said = dict[str, Any]  # values of any of the record's fields
Change = Callable[[random.Random, Arch], Said]


def _products(draw: random.Random, arch: Arch) -> Said:
    """Some of the instructions are gone; sparse ones with those that they are like."""
    every = arch.products(MatrixInstruction)
    kept = {
        "none": lambda one: False,
        "half": lambda one: draw.random() < 0.5,
        "int8": lambda one: one.a.name == "int8",
        "narrow": lambda one: one.a.bits <= 16,
        "waiting": lambda one: not one.asynchronous,
    }
    how = draw.choice(sorted(kept))
    left = tuple(one for one in every if kept[how](one))
    return {"matrix_instructions": left, **({"sparse_instructions": ()} if how in ("none", "int8") else {})}


def _copies(draw: random.Random, arch: Arch) -> Said:
    """One to three ways to bring operands or to store results are gone; plain loads stay."""
    others = [one for one in arch.copy_instructions if one.function != "load"]
    gone = draw.sample(others, min(len(others), draw.randint(1, 3)))
    return {"copy_instructions": tuple(one for one in arch.copy_instructions if one not in gone)}


def _engine(draw: random.Random, arch: Arch) -> Said:
    """No copy engine, or one with other limits."""
    if arch.copy_engine is None or draw.random() < 0.2:
        return {"copy_engine": None}
    pick = draw.choice
    limits = {"rank": pick((2, 3, 5)), "box": pick((32, 64, 128, 256)), "unit": pick((16, 32, 64, 128))}
    limits |= {"multicast": pick((True, False))}
    return {"copy_engine": replace(arch.copy_engine, place=pick((128, 256, 512, 1024)), **limits)}


def _features(draw: random.Random, arch: Arch) -> Said:
    """One to four capabilities are gone."""
    every = sorted(arch.features - {"threads"})
    return {"features": arch.features - set(draw.sample(every, min(len(every), draw.randint(1, 4))))}


def _roles(draw: random.Random, arch: Arch) -> Said:
    """Warpgroups give and take registers otherwise, or not at all."""
    if arch.role_registers is None or draw.random() < 0.5:
        return {"role_registers": None}
    return {"role_registers": replace(arch.role_registers, step=16, loads=(None, 48, 32), computes=96, most=224)}


def _own(draw: random.Random, arch: Arch) -> Said:
    there = [one.name for one in fields(arch) if one.name in OWN and draw.random() < 0.4]
    return {name: draw.choice(OWN[name]) for name in there}


CHANGES: tuple[Change, ...] = (
    lambda draw, arch: {"shared_bytes": int(arch.shared_bytes * draw.choice((0.25, 0.5, 0.75, 2))) // 1024 * 1024},
    lambda draw, arch: {"vector_bytes": draw.choice([one for one in (4, 8, 16) if one <= arch.vector_bytes])},
    lambda draw, arch: {"spans": draw.choice(((), (128,), (64, 32), (32,), (64,)))},
    lambda draw, arch: {"registers": draw.choice((32, 64, 96, 128, 200, 255, 512))},
    lambda draw, arch: {"max_threads": draw.choice((64, 128, 256, 512))},
    lambda draw, arch: {"cores": draw.choice((1, 3, 20))},
    lambda draw, arch: {"rates": None},
    lambda draw, arch: {"signals": draw.choice((None, arch.signals and replace(arch.signals, follows_copies=False)))},
    lambda draw, arch: {draw.choice(("named_barriers", "clusters")): False},
    lambda draw, arch: {"async_copy": None},
    lambda draw, arch: {"dependent_launch": not arch.dependent_launch and arch.target == "cuda"},
    _products, _copies, _engine, _features, _roles, _own,
)  # fmt: skip


def changed_machine(draw: random.Random) -> Arch:
    """A machine of which one to four things are otherwise than their maker has them."""
    arch = MACHINES[draw.choice(NAMES)]
    said: Said = {}
    for change in draw.sample(CHANGES, draw.randint(1, 4)):
        said |= change(draw, arch)
    return replace(arch, **said)
