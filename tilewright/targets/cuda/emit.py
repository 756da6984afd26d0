"""A final program as CUDA text: tensor maps among the parameters, headers of the warpgroup instructions that are
called."""

from __future__ import annotations

from typing import cast

from tilewright.ir import find, key
from tilewright.ir import nodes as ir
from tilewright.machine.arch import Arch
from tilewright.targets.base import Source
from tilewright.targets.c_family import Names
from tilewright.targets.cuda.arch import CudaArch
from tilewright.targets.cuda.printer import CudaPrinter
from tilewright.targets.cuda.toolkit import HEADER, uses_toolkit
from tilewright.targets.gpu import emit as gpu
from tilewright.targets.gpu.emit import Dialect, KernelText, prints_or_asserts


def emit(function: ir.Function, arch: Arch) -> Source:
    """CUDA text of a final program.  Raises MissingCapability where it has numbers that the device has no words for."""
    return gpu.emit(function, arch, CUDA)


def _includes(function: ir.Function) -> list[str]:
    """The vocabulary, and a header for each form of warpgroup instruction that is called."""
    called = {
        _header(call)
        for call in find(function, ir.Call)
        if call.function.startswith(("wgmma_ss", "wgmma_rs", "wgmma_sparse"))
    }
    spoken = ["tilewright_debug.cuh"] if prints_or_asserts(function) else []
    toolkit = [HEADER] if uses_toolkit(function) else []
    return ["tilewright_cuda.cuh", *spoken, *toolkit, *sorted(called)]


def _header(call: ir.Call) -> str:
    n, types, _, count = call.arguments[:4]
    form = "sparse" if "sparse" in call.function else f"{call.function.removeprefix('wgmma_')}{count.value}"  # type: ignore[union-attr]
    return f"tilewright_wgmma_{form}_n{n.value}_{types}.cuh"  # type: ignore[union-attr]


class CudaKernel(KernelText):
    """One kernel, whose parameters may be maps of tensors for the copy engine."""

    def make_printer(self, names: Names) -> CudaPrinter:
        threads, arch = self.kernel.num_threads, self.arch
        registers = arch.launch_registers(threads, self.blocks) if isinstance(arch, CudaArch) else 255
        return CudaPrinter(names, registers, uses_toolkit(self.function))

    def head(self, name: str) -> list[str]:
        for param in self.parameters:
            if isinstance(param, ir.TensorMap):
                self._names[key(param)] = self.printer.names.fresh(f"{param.tensor.name}_map")
        return KernelText.head(self, name)

    def beginning(self) -> list[str]:
        """Tensor maps are on their way to the copy engine while barriers are made."""
        maps = [self._names[key(param)] for param in self.parameters if isinstance(param, ir.TensorMap)]
        calls = " ".join(f"tw::tma_prefetch_descriptor({name});" for name in maps)
        return [f"  if (threadIdx.x == 0) {{ {calls} }}"] if maps else []

    def parameter(self, param: ir.Buffer | ir.Var | ir.TensorMap) -> str:
        if isinstance(param, ir.TensorMap):
            return f"const TW_GRID_CONSTANT tw::TensorMap {self._names[key(param)]}"
        return KernelText.parameter(self, param)

    @property
    def _names(self) -> dict:
        return cast(CudaPrinter, self.printer).map_names


CUDA = Dialect("cu", _includes, CudaKernel)
