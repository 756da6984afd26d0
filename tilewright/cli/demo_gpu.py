"""The demo's contestants on an NVIDIA GPU, on torch's tensors: dense float16 products beside quantised ones."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tilewright.cli.contestants import Contestant, Prepare, quantized
from tilewright.cli.timed_products import captured
from tilewright.errors import NoDevice
from tilewright.libraries import torch
from tilewright.matmul import PackedWeight, quant_matmul
from tilewright.options import options
from tilewright.progress import Progress
from tilewright.quant import QuantizedWeight
from tilewright.targets.cpu.arch import runs_here
from tilewright.targets.cuda.arch import detect
from tilewright.targets.registry import resolve


def is_usable() -> bool:
    """Whether a GPU is here, and a torch that can hold arrays on it."""
    if detect() is None or importlib.util.find_spec("torch") is None:
        return False
    return bool(torch.cuda.is_available())


def measured_on(asked: str) -> str:
    """The target of products that are measured: what is asked for, or TILEWRIGHT_TARGET where that is ``"auto"``; else
    the best of those here. Raises NoDevice for a machine that is not here, or whose arrays no torch here holds."""
    named = (options().target or asked) if asked == "auto" else asked
    if named == "auto":
        return "cuda" if is_usable() else "cpu"
    target, arch = resolve(named)
    if not (runs_here(arch) if target.device == "cpu" else target.detect() is not None and is_usable()):
        raise NoDevice(
            f"nothing can be measured on {named!r} here",
            hint="--target cpu is the processor; tilewright doctor says what is missing",
        )
    return named


@dataclass(frozen=True, slots=True)
class DeviceResult:
    """A result in device memory; NumPy reads it as float32."""

    tensor: torch.Tensor

    def __array__(self, dtype: np.dtype | None = None, copy: object = None) -> np.ndarray:
        values = self.tensor.float().cpu().numpy()
        return values if dtype is None else values.astype(dtype)


def contestants(weight: np.ndarray, group: int, progress: Progress) -> Iterator[Contestant]:
    """Torch's dense product, then this library's with each quantised form of the weight."""
    dense = torch.from_numpy(weight).cuda().half()
    transposed = dense.T
    yield Contestant(
        "torch",
        "float16",
        weight,
        weight.size * 2 / (1 << 20),
        _prepared(lambda a, c: torch.mm(a, transposed, out=c), weight),
    )

    def multiplied(made: QuantizedWeight) -> Prepare:
        packed = PackedWeight.pack(made, "cuda")
        return _prepared(lambda a, c: quant_matmul(a, packed, out=c), weight)

    yield from quantized(weight, group, progress, "float16", multiplied, scale_dtype="float16")


def _prepared(product: Callable[[torch.Tensor, torch.Tensor], object], weight: np.ndarray) -> Prepare:
    """Activations on the device, and a replay of one captured call."""

    def prepare(a: np.ndarray) -> Callable[[], object]:
        held = torch.from_numpy(a).cuda().half()
        c = torch.empty(a.shape[0], weight.shape[0], dtype=torch.float16, device="cuda")
        again = captured(lambda: product(held, c))

        def multiply() -> DeviceResult:
            again()
            return DeviceResult(c)

        return multiply

    return prepare
