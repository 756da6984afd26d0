"""A final program as HIP text: one array of shared memory a kernel, whose size the text says."""

from __future__ import annotations

from typing import ClassVar

from tilewright.errors import MissingCapability
from tilewright.ir import nodes
from tilewright.ir.nodes import Function
from tilewright.ir.visitor import find, kernels
from tilewright.machine.arch import Arch
from tilewright.targets.base import Source
from tilewright.targets.c_family import Names, Spellings, Text
from tilewright.targets.gpu import emit as gpu
from tilewright.targets.gpu.emit import Dialect, KernelText, unsettled_buffers
from tilewright.targets.gpu.printer import GpuPrinter
from tilewright.targets.gpu.spellings import SPELLINGS, TYPES


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
                span=kernel.span, hint="store the numbers in a tensor, or look at them with kernel.emulate() on "
                                       "another target",
            )  # fmt: skip
    return gpu.emit(
        function, arch, Dialect("hip", lambda _: [f"tilewright_{arch.name}.h"], HipKernel, frozenset(TYPES))
    )


class HipPrinter(GpuPrinter):
    """Prints the body of one kernel.

    Attributes
    ----------
    shares_tensors : whether threads of a block may read from global memory what others of them wrote there: only then
        do barriers wait for it.
    """

    dialect: ClassVar[Spellings] = SPELLINGS
    shares_tensors = True

    def expression_Call(self, call: nodes.Call) -> Text:
        if call.function == "sync_threads" and not self.shares_tensors:
            return self.call("tw::sync_shared")
        return super().expression_Call(call)


class HipKernel(KernelText):
    """One kernel."""

    def make_printer(self, names: Names) -> HipPrinter:
        printer = HipPrinter(names)
        atomic = any(call.function.startswith("atomic_") for call in find(self.kernel.body, nodes.Call))
        printer.shares_tensors = atomic or any(one.scope == "global" for one in unsettled_buffers(self.kernel))
        return printer

    def shared_memory(self, size: int) -> str:
        return f"TW_SHARED(shared_memory, {size});"
