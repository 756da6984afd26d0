"""Expressions that only NVIDIA's vocabulary has: matrix loads, products of warpgroups, copies of the engine,
clusters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tilewright.ir import nodes as ir
from tilewright.ir.structure import key
from tilewright.targets.c_family import Names, Text
from tilewright.targets.cuda.instructions import PTX_NAMES
from tilewright.targets.gpu.printer import GpuPrinter
from tilewright.targets.gpu.spellings import TYPES

_SPARSE_PRODUCTS = ("wgmma_sparse_ss", "wgmma_sparse_rs")
_WAITS = ("wgmma_wait", "bulk_wait", "bulk_wait_read", "cp_async_wait")

_ASYNC_COPIES = tuple(f"{copy}{hint}" for copy in ("cp_async", "cp_async_zfill") for hint in ("", "_hint", "_prefetch"))

_ELEMENTS = {name: TYPES[dtype.name] for dtype, name in PTX_NAMES.items()}


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
        n, _, majors, selector, *operands = call.arguments
        parameters = [
            str(self._argument(n)),
            *_operand_types(call),
            *(str(self._argument(p)) for p in (majors, selector)),
        ]
        return self.call(f"tw::{call.function}<{', '.join(parameters)}>", *(self._argument(part) for part in operands))

    def _warpgroup(self, call: ir.Call) -> Text:
        """The steps of a product of warpgroups."""
        n, _, majors, steps, *rest = call.arguments
        assert isinstance(steps, ir.Const)
        count = int(steps.value)
        places, operands = [str(self._argument(part)) for part in rest[:-4]], rest[-4:]
        parameters = [str(self._argument(n)), *_operand_types(call), str(majors)]
        if count > 1:
            parameters += [f"tw::Steps<{', '.join(places[i : i + count])}>" for i in range(0, len(places), count)]
        return self.call(f"tw::{call.function}<{', '.join(parameters)}>", *(self._argument(part) for part in operands))

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

    calls: ClassVar[Mapping[str, str]] = {
        **GpuPrinter.calls, **dict.fromkeys(("ldmatrix", "ldmatrix_trans"), "_matrix_load"),
        **dict.fromkeys(_WAITS, "_template"), **dict.fromkeys(("wgmma_ss", "wgmma_rs"), "_warpgroup"),
        **dict.fromkeys(_SPARSE_PRODUCTS, "_sparse_warpgroup"), "setmaxnreg": "_set_registers",
        **dict.fromkeys(_ASYNC_COPIES, "_async_copy"), "sparse_places": "_pointers",
        "load_cluster_fragment": "_load_from_peer",
    }  # fmt: skip


def _operand_types(call: ir.Call) -> list[str]:
    """Types of the operands of a product of warpgroups; of a left one in registers its own says it."""
    _, left, right = str(call.arguments[1]).split("_")
    return [_ELEMENTS[right]] if call.function.endswith("_rs") else [_ELEMENTS[left], _ELEMENTS[right]]
