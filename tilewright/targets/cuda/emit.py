"""A final program as CUDA text: tensor maps among the parameters, headers of the warpgroup instructions that are
called, and expressions that only NVIDIA's vocabulary has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, cast

from tilewright.ir import ALL, find, key
from tilewright.ir import nodes as ir
from tilewright.machine.arch import Arch
from tilewright.targets.base import Source
from tilewright.targets.c_family import Names, Text
from tilewright.targets.cuda import emulation
from tilewright.targets.cuda.arch import CudaArch
from tilewright.targets.cuda.instructions import PTX_NAMES
from tilewright.targets.cuda.toolkit import HEADER, uses_toolkit
from tilewright.targets.gpu import emit as gpu
from tilewright.targets.gpu.emit import Dialect, KernelText, prints_or_asserts
from tilewright.targets.gpu.printer import GpuPrinter
from tilewright.targets.gpu.spellings import TYPES


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
    n, _, _, count = call.arguments[:4]
    types = "_".join(PTX_NAMES[ALL[name]] for name in _types(call))
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


_SPARSE_PRODUCTS = ("wgmma_sparse_ss", "wgmma_sparse_rs")
_WAITS = ("wgmma_wait", "bulk_wait", "bulk_wait_read", "cp_async_wait")

_ASYNC_COPIES = tuple(f"{copy}{hint}" for copy in ("cp_async", "cp_async_zfill") for hint in ("", "_hint", "_prefetch"))

_POLICIES = {
    "evict_first": "tw::POLICY_EVICT_FIRST", "evict_last": "tw::POLICY_EVICT_LAST", "evict_normal": "tw::POLICY_NORMAL",
}  # fmt: skip
"""What copies with a hint to the L2 cache say of it."""


class CudaPrinter(GpuPrinter):
    """Prints the body of one kernel.

    Parameters
    ----------
    launch_registers : registers that a thread has when its block starts: what ``setmaxnreg`` asks for is more or less
        than that.
    toolkit : whether functions of the author's own text take what CUDA's headers call small floats.
    """

    def __init__(self, names: Names, launch_registers: int = 255, toolkit: bool = False) -> None:
        super().__init__(names)
        self.toolkit = toolkit
        self.launch_registers = launch_registers
        self.map_names: dict[object, str] = {}
        """Parameters that are tensor maps, by the key of the expression."""

    def _foreign(self, call: ir.Call) -> Text:
        if not self.toolkit:
            return super()._foreign(call)
        name, *arguments = call.arguments
        given = [self._pointer(one) if isinstance(one, ir.Region) else self._argument(one) for one in arguments]
        made = self.call(str(name), *(self.call("tw::in_toolkit", one) for one in given))
        small = call.dtype.is_float and call.dtype.bits < 32
        return self.call(f"tw::bit_cast<{TYPES[call.dtype.name]}>", made) if small else made

    def _matrix_load(self, call: ir.Call) -> Text:
        fragment, address, count = call.arguments
        assert isinstance(count, ir.Const)
        trans = "_trans" if call.function.endswith("_trans") else ""
        return self.call(f"tw::ldmatrix_x{count.value}{trans}", self._argument(fragment), self._argument(address))

    def _set_registers(self, call: ir.Call) -> Text:
        """More registers for each thread of a warpgroup, or fewer, than its block was launched with."""
        (count,) = call.arguments
        assert isinstance(count, ir.Const)
        way = "inc" if int(count.value) > self.launch_registers else "dec"
        return self.call(f"tw::setmaxnreg_{way}<{self._argument(count)}>")

    def _sparse_warpgroup(self, call: ir.Call) -> Text:
        """One step of a sparse product of warpgroups."""
        n, _, selector, majors, *operands = call.arguments
        parameters = [str(self._argument(n)), *_operand_types(call), str(self._argument(selector)), _majors(majors)]
        return self.call(f"tw::{call.function}<{', '.join(parameters)}>", *(self._argument(part) for part in operands))

    def _warpgroup(self, call: ir.Call) -> Text:
        """The steps of a product of warpgroups."""
        n, _, majors, steps, *rest = call.arguments
        assert isinstance(steps, ir.Const)
        count = int(steps.value)
        places, operands = [str(self._argument(part)) for part in rest[:-4]], rest[-4:]
        parameters = [str(self._argument(n)), *_operand_types(call), _majors(majors)]
        if count > 1:
            parameters += [f"tw::Steps<{', '.join(places[i : i + count])}>" for i in range(0, len(places), count)]
        return self.call(f"tw::{call.function}<{', '.join(parameters)}>", *(self._argument(part) for part in operands))

    def _descriptor(self, call: ir.Call) -> Text:
        """What names a tile of an asynchronous product: the span of its swizzle is a mode of the hardware's."""
        place, span, *distances = call.arguments
        assert isinstance(span, ir.Const)
        mode = f"tw::SWIZZLE_{span.value}B" if span.value else "tw::SWIZZLE_NONE"
        return self.call("tw::wgmma_descriptor", self._argument(place), mode, *map(self._argument, distances))

    def _argument(self, part: ir.Expr | str | ir.Region) -> Text:
        return super()._argument(_POLICIES.get(part, part) if isinstance(part, str) else part)

    def expression_TensorMap(self, node: ir.TensorMap) -> Text:
        return Text(self.map_names[key(node)])

    def _async_copy(self, call: ir.Call) -> Text:
        place = call.regions[0]
        assert isinstance(place.extents[-1], int)
        size = str(place.dtype.nbytes(place.extents[-1]))
        name, arguments = call.function, call.arguments
        if name.endswith("_prefetch"):
            name, size = name.removesuffix("_prefetch"), f"{size}, {self._argument(arguments[-1])}"
            arguments = arguments[:-1]
        return self.call(f"tw::{name}<{size}>", *(self._argument(part) for part in arguments))

    def _load_from_peer(self, call: ir.Call) -> Text:
        width, target, address = call.arguments
        assert isinstance(width, ir.Const) and isinstance(target, ir.Region)
        fragment, place = Text(self.names.of(target.buffer)), self.expression(target.starts[0])
        return self.call(f"tw::{call.function}<{width.value}>", fragment, place, self._argument(address))

    def _pointers(self, call: ir.Call) -> Text:
        """A function of places in memory that it reads by itself."""
        texts = [Text(f"&{self.names.of(one.buffer)}[{self.expression(one.starts[0])}]") for one in call.regions]
        return self.call(f"tw::{call.function}", *texts)

    words: ClassVar[Mapping[str, str]] = emulation.CUDA.words
    calls: ClassVar[Mapping[str, str]] = {
        **GpuPrinter.calls, **dict.fromkeys(("ldmatrix", "ldmatrix_trans"), "_matrix_load"),
        **dict.fromkeys(_WAITS, "_template"), **dict.fromkeys(("wgmma_ss", "wgmma_rs"), "_warpgroup"),
        **dict.fromkeys(_SPARSE_PRODUCTS, "_sparse_warpgroup"), "setmaxnreg": "_set_registers",
        **dict.fromkeys(_ASYNC_COPIES, "_async_copy"), "sparse_places": "_pointers",
        "load_cluster_fragment": "_load_from_peer", "wgmma_descriptor": "_descriptor",
    }  # fmt: skip


def _types(call: ir.Call) -> list[str]:
    """Names of the types of a product of warpgroups: of the sum, of the left and of the right operand."""
    return str(call.arguments[1]).split()


def _operand_types(call: ir.Call) -> list[str]:
    """Types of the operands of a product of warpgroups; of a left one in registers its own says it."""
    _, left, right = (TYPES[name] for name in _types(call))
    return [right] if call.function.endswith("_rs") else [left, right]


def _majors(said: object) -> str:
    """Orders of the operands in shared memory."""
    return ", ".join(f"tw::{major.upper()}_MAJOR" for major in str(said).split())
