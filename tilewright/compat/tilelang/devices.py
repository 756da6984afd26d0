"""``tilelang.utils.device``: the device that programs make their tensors on."""

from __future__ import annotations

import os
import sys

from tilewright.specialization import InvalidUse


def _there(kind: str) -> bool:
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    return bool(torch.cuda.is_available() if kind == "cuda" else torch.backends.mps.is_available())


def __getattr__(name: str) -> bool:
    """``IS_CUDA``, ``IS_MPS``, ``IS_NPU``: whether torch has such a device here."""
    if name in ("IS_CUDA", "IS_MPS", "IS_NPU"):
        return _there(name[3:].lower()) if name != "IS_NPU" else False
    raise AttributeError(f"tilewright has no tilelang.utils.device.{name}")


def get_current_device() -> object:
    """torch's device: the number of a GPU of CUDA's, ``"mps:0"``, or None for the processor."""
    if _there("cuda"):
        return sys.modules["torch"].cuda.current_device()
    return "mps:0" if _there("mps") else None


def device_synchronize(device: object = None) -> None:
    """Wait until a device has done what was asked of it."""
    torch = sys.modules.get("torch")
    kind = "cuda" if isinstance(device, int) else str(device or ("cuda" if _there("cuda") else "mps")).partition(":")[0]
    if torch is None or kind not in ("cuda", "mps") or not _there(kind):
        raise InvalidUse(
            f"there is no device {device or 'of torch'} to wait for", hint="kernels on processors have ended"
        )
    if kind == "cuda":
        torch.cuda.synchronize(device)
    else:
        torch.mps.synchronize()


def get_available_cpu_count() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
