"""What ``tilelang.carver``'s templates give, hints, and what all of them are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

import tilewright.language as T
from tilewright.compat.tilelang.carver import Device
from tilewright.kernels.roofline import Speed, speed_of
from tilewright.language.trace import PrimFunc
from tilewright.specialization import InvalidUse


class Rasterization:
    """An order of blocks, as hints name it; `T.use_swizzle` says the same to the compiler."""

    def __init__(self, panel_width: int = 4) -> None:
        self.panel_width = panel_width

    def __repr__(self) -> str:
        return f"<{type(self).__name__}({self.panel_width})>"


class NoRasterization(Rasterization):
    """Blocks in the order of their numbers."""


class Rasterization2DRow(Rasterization):
    """Panels of rows."""


class Rasterization2DColumn(Rasterization):
    """Panels of columns."""


@dataclass
class Hint:
    """One way to cut work into tiles.

    Attributes
    ----------
    block, warp, thread : elements of a result that each of them has, by dimension; warp for the matrix unit alone.
    rstep : steps along what is summed.
    reduce_thread : threads that share a sum.
    pipeline_stage : stages of operands in shared memory.
    rasterization_plan : the order of blocks.
    vectorize : elements of an access by operand.
    """

    block: list[int]
    rstep: list[int] = field(default_factory=list)
    warp: list[int] = field(default_factory=list)
    thread: list[int] = field(default_factory=list)
    reduce_thread: list[int] = field(default_factory=list)
    use_tc: bool = False
    pipeline_stage: int = 1
    use_async: bool = False
    rasterization_plan: object = field(default_factory=NoRasterization)
    vectorize: dict[str, int] = field(default_factory=dict)
    arch: object = None

    def to_dict(self) -> dict[str, object]:
        """What it says, by name, without what says nothing."""
        return {one.name: value for one in fields(self) if one.name != "arch" and (value := getattr(self, one.name))}

    @classmethod
    def from_dict(cls, dic: dict[str, Any]) -> Hint:
        """The hint that `to_dict` tells."""
        return cls(**dic)

    @property
    def step(self) -> list[int]:
        """One for each dimension: no thread strides."""
        return [1] * len(self.block)

    def __repr__(self) -> str:
        return str(self.to_dict())


def bytes_of(dtype: object) -> float:
    """Bytes of an element."""
    return float(T.dtype(dtype).bits) / 8


def powers(least: int, most: int) -> list[int]:
    """Powers of two from one to another."""
    return [1 << n for n in range(least.bit_length() - 1, most.bit_length())]


def next_power(value: int) -> int:
    """The next power of two."""
    return 1 << max(0, value - 1).bit_length()


Made = TypeVar("Made", bound="BaseTemplate")


class BaseTemplate:
    """A kind of work; its dataclass fields are its sizes."""

    sizes: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        self._arch: Device | None = None
        for name in self.sizes:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InvalidUse(f"{name}={value!r} of {type(self).__name__}", hint="give a number above 0")

    def with_arch(self: Made, arch: Any) -> Made:
        """The same for a machine."""
        self._arch = arch
        return self

    @property
    def arch(self) -> Device:
        """The machine it is for: this one, unless `with_arch` said another."""
        if self._arch is None:
            self._arch = Device()
        return self._arch

    def has_arch(self) -> bool:
        """Whether `with_arch` was called."""
        return self._arch is not None

    def is_ampere_arch(self) -> bool:
        """Whether that is one of NVIDIA's sm_8x."""
        return self.arch.machine.name.startswith("sm_8")

    def is_volta_arch(self) -> bool:
        """Whether that is one of NVIDIA's sm_7x."""
        return self.arch.machine.name.startswith("sm_7")

    def is_cdna_arch(self) -> bool:
        """Whether that is one of AMD's gfx9."""
        return self.arch.machine.name.startswith("gfx9")

    def is_rdna_arch(self) -> bool:
        """Whether that is one of AMD's gfx11 or gfx12."""
        return self.arch.machine.name.startswith("gfx1")

    def get_hardware_aware_configs(self, arch: object = None, topk: int = 10) -> list[Hint]:
        """`recommend_hints` for a machine."""
        return (self if arch is None else self.with_arch(arch)).recommend_hints(topk)

    def recommend_hints(self, topk: int = 10) -> list[Hint]:
        """The ways that the model of the machine takes for the fastest, best first."""
        speed = speed_of(self.arch.machine)
        ranked = sorted(
            ((self.took(one, speed), n, one) for n, one in enumerate(self.candidates())), key=lambda x: x[:2]
        )
        return [one for _, _, one in ranked[:topk]]

    def params_as_dict(self) -> dict[str, object]:
        """Its sizes and types."""
        return {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]

    @property
    def class_attributes(self) -> dict[str, object]:
        """As `params_as_dict`."""
        return self.params_as_dict()

    def candidates(self) -> Iterable[Hint]:
        """Every way that may be taken."""
        raise NotImplementedError

    def took(self, hint: Hint, speed: Speed) -> float:
        """Cycles that the model takes a way for."""
        raise NotImplementedError

    def equivalent_function(self) -> PrimFunc:
        """A program that does the work, without any tiles of its own."""
        raise NotImplementedError


def waves_of(blocks: int, speed: Speed) -> int:
    """How often a machine's multiprocessors begin blocks."""
    return math.ceil(blocks / speed.cores)


def get_rasterization_code(pannel_width: int = 8) -> str:
    """What says the order of blocks to the compiler."""
    return f"T.use_swizzle({pannel_width})"
