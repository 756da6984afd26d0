"""A final program as HIP text: one array of shared memory a kernel, whose size the text says."""

from __future__ import annotations

from tilewright.errors import MissingCapability
from tilewright.ir import nodes
from tilewright.ir.nodes import Function
from tilewright.ir.visitor import find, kernels
from tilewright.machine.arch import Arch
from tilewright.targets.base import Source
from tilewright.targets.gpu import emit as gpu
from tilewright.targets.gpu.emit import Dialect, KernelText


def emit(function: Function, arch: Arch) -> Source:
    """HIP text of a final program.

    Raises
    ------
    MissingCapability : it prints, or has numbers that the device has no words for.
    """
    for kernel in kernels(function):
        if any(node.function == "print_line" for node in find(kernel, nodes.Call)):
            raise MissingCapability(
                f"kernels for {arch.name} cannot print: lines have no way to the host without ROCm's device library",
                span=kernel.span, hint="store the numbers in a tensor, or look at them with kernel.emulate() on another target",
            )  # fmt: skip
    return gpu.emit(function, arch, Dialect("hip", lambda _: [f"tilewright_{arch.name}.h"], HipKernel))


class HipKernel(KernelText):
    """One kernel."""

    def shared_memory(self, size: int) -> str:
        return f"TW_SHARED(shared_memory, {size});"
