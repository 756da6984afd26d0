"""``tilelang.carver``: facts of a device."""

from __future__ import annotations

from typing import Any

from tilewright.compat.tilelang.targets import compute_version, request
from tilewright.machine.arch import Arch
from tilewright.specialization import InvalidUse
from tilewright.targets.registry import TARGETS, resolve

_UNITS = {"bytes": 1, "kb": 1024, "mb": 1024 * 1024}


class Device:
    """Facts of a machine under the names that TileLang's ``CUDA`` and ``CPU`` have."""

    def __init__(self, target: Any = "auto") -> None:
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


CUDA = CPU = get_arch = Device


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


def get_cuda_device_properties(device_id: int = 0) -> Any:
    """torch's properties of a GPU."""
    import torch

    return torch.cuda.get_device_properties(device_id)


auto_infer_current_arch = Device
