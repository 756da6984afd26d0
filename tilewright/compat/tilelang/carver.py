"""``tilelang.carver``: facts of a device."""

from __future__ import annotations

import re
from collections.abc import Callable

from tilewright.compat.tilelang.targets import compute_version, request
from tilewright.language.dtypes import NumberType
from tilewright.libraries import torch
from tilewright.machine import Arch, MatrixInstruction
from tilewright.specialization import InvalidUse
from tilewright.targets.registry import TARGETS, resolve

_UNITS = {"bytes": 1, "kb": 1024, "mb": 1024 * 1024}


class Device:
    """Facts of a machine under the names that TileLang's ``CUDA`` and ``CPU`` have."""

    def __init__(self, target: object = "auto") -> None:
        self.target = target
        asked = request(target)
        if asked == "cuda":  # programs speak of a GPU where none is, too
            asked = f"cuda -arch={_gpu().name}"
        self.machine: Arch = resolve(asked)[1]
        self.platform = "CUDA" if self.machine.has_threads else "CPU"
        self.compute_capability = "".join(map(str, compute_version(asked)))
        self.sm_version = int(self.compute_capability)
        self.compute_max_core = self.machine.cores
        self.smem_cap = self.machine.shared_bytes if self.machine.has_threads else 0
        self.warp_size = 32
        self.name = self.machine.name

    def get_avaliable_tensorintrin_shapes(self) -> list[list[int]]:
        """Rows and columns of the results of a warp's matrix instructions."""
        return [[16, 16]] if has_mma_support(self) else []


CUDA = CPU = METAL = RDNA = TileDevice = get_arch = Device


def check_sm_version(arch: str) -> int:
    """The number of an architecture's name: 90 for ``"sm_90a"``, -1 where it is none of NVIDIA's."""
    digits = re.fullmatch(r"sm_(\d+)[a-z]?", str(arch))
    return int(digits[1]) if digits else -1


def _is(low: int, high: int) -> Callable[[Device], bool]:
    def ask(arch: Device) -> bool:
        return low <= arch.sm_version < high

    ask.__doc__ = f"Whether a machine's compute capability is at least {low / 10} and below {high / 10}."
    return ask


is_cuda_arch, has_mma_support = _is(1, 1000), _is(80, 1000)
is_volta_arch, is_ampere_arch, is_ada_arch, is_hopper_arch = _is(70, 80), _is(80, 89), _is(89, 90), _is(90, 100)


def is_cpu_arch(arch: Device) -> bool:
    """Whether a machine is a processor."""
    return arch.platform == "CPU"


def is_cdna_arch(arch: Device) -> bool:
    """Whether a machine is a GPU of AMD's with matrix instructions for data centres."""
    return arch.name.startswith("gfx9")


def is_rdna_arch(arch: Device) -> bool:
    """Whether a machine is one of AMD's other GPUs."""
    return arch.name.startswith("gfx1")


def is_tensorcore_supported_precision(in_dtype: str, accum_dtype: str, arch: Device) -> bool:
    """Whether a machine's matrix instructions multiply one type and sum in another."""
    pair = NumberType(in_dtype).record, NumberType(accum_dtype).record
    return any((one.a, one.accumulator) == pair for one in arch.machine.products(MatrixInstruction))


def _format(count: int, unit: str) -> int:
    if unit not in _UNITS:
        raise InvalidUse(f"there is no unit {unit!r}", hint=" or ".join(map(repr, _UNITS)))
    return count // _UNITS[unit]


def _gpu() -> Arch:
    found = TARGETS["cuda"].detect()
    return resolve("cuda -arch=sm_90a")[1] if found is None else found


def get_num_sms(device_id: int = 0) -> int:
    """Multiprocessors of the GPU."""
    return _gpu().cores


def get_device_name(device_id: int = 0) -> str:
    """The GPU's architecture."""
    return _gpu().name


def get_max_dynamic_shared_size_bytes(device_id: int = 0, format: str = "bytes") -> int:
    """Shared memory that a block of the GPU may have."""
    return _format(_gpu().shared_bytes, format)


get_shared_memory_per_block = get_max_dynamic_shared_size_bytes


def get_registers_per_block(device_id: int = 0) -> int:
    """Registers of 32 bits that a block of the GPU may have."""
    return 1 << 16


def get_cuda_device_properties(device_id: int = 0) -> object:
    """torch's properties of a GPU."""
    return torch.cuda.get_device_properties(device_id)


auto_infer_current_arch = Device
