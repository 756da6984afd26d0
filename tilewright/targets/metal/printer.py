"""Final programs as Metal Shading Language: what it spells in other words than C++ for other GPUs does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from tilewright.arith import Analyzer
from tilewright.errors import MissingCapability
from tilewright.ir import DType, root
from tilewright.ir import nodes as ir
from tilewright.ops.prints import in_c
from tilewright.targets.c_family import Names, Spellings, Text
from tilewright.targets.gpu.printer import GpuPrinter
from tilewright.targets.gpu.spellings import KEYWORDS as CXX_KEYWORDS
from tilewright.targets.gpu.spellings import TYPES as CXX_TYPES

TYPES: Mapping[str, str] = {
    **{name: word for name, word in CXX_TYPES.items() if name != "float64"},
    "float16": "half", "bfloat16": "bfloat",
}  # fmt: skip
"""Metal's type of one element; it has halves and bfloats itself, and no doubles."""

KEYWORDS = CXX_KEYWORDS | {
    "kernel",
    "device",
    "threadgroup",
    "constant",
    "thread",
    "vertex",
    "fragment",
    "bfloat",
    "uint",
    "ushort",
    "uchar",
    "ulong",
    "metal",
    "vec",
    "access",
    "sampler",
    "texture",
    "threadgroup_position_in_grid",
    "thread_index_in_threadgroup",
}

SPELLINGS = Spellings(TYPES, KEYWORDS, unroll="#pragma unroll")


class MetalPrinter(GpuPrinter):
    """Prints the body of one kernel."""

    dialect: ClassVar[Spellings] = SPELLINGS
    restrict: ClassVar[str] = "__restrict"
    space: ClassVar[Mapping[str, str]] = {"global": "device", "shared": "threadgroup", "register": "thread"}

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        self.small: set[ir.Buffer] = set()
        """Tensors that are handed over in constant memory."""

    def memory(self, buffer: ir.Buffer, constant: bool = False) -> str:
        text = super().memory(buffer, constant)
        return text.replace("device ", "constant ", 1) if root(buffer) in self.small else text

    def literal(self, value: int | float | bool, dtype: DType) -> Text:
        if dtype.is_integer and dtype.bits == 64:
            # Metal has no long long: a long has 64 bits.
            text = super().literal(value, dtype)
            return Text(text.text.replace("ll", "l"), text.precedence)
        return super().literal(value, dtype)

    def number_of_code(self, kind: str, code: Text) -> Text:
        return Text(f"{kind}({code})")

    def _atomic(self, call: ir.Call) -> Text:
        *_, order = call.arguments
        if order != "relaxed":
            raise MissingCapability(
                f"{call.function} with the order {order!r}: Metal's atomics are relaxed",
                span=self._span,
                hint='leave memory_order out, or pass "relaxed"; blocks of one launch cannot hand over memory there',
            )
        return super()._atomic(call)

    def _stored(self, call: ir.Call) -> Text:
        """A matrix to memory, by its first element and the distance between its rows."""
        first, second, part = call.arguments
        assert isinstance(first, ir.Region) and isinstance(second, ir.Region) and isinstance(part, ir.Region)
        apart = Analyzer().simplify(second.starts[0] - first.starts[0])
        return self.call(
            f"tw::{call.function}", self._pointer(first), self.expression(apart), Text(self.names.of(part.buffer))
        )

    calls: ClassVar[Mapping[str, str]] = {**GpuPrinter.calls, "simdgroup_store": "_stored"}

    def _printed(self, call: ir.Call) -> Text:
        """A line of the system's log; a long has 64 bits there, and the log ends lines itself."""
        text = super()._printed(call).text.removeprefix("tw::print")
        return Text("metal::os_log_default.log" + re.sub(r"%ll(?=[ud])", "%l", text).replace('\\n"', '"', 1))

    def statement_Assert(self, check: ir.Assert) -> None:
        """What does not hold is said in the system's log: a kernel cannot stop."""
        place = f"{Path(check.span.file).name}:{check.span.line}: " if check.span else ""
        said = in_c(f"{place}{check.message or 'device assertion failed'}".replace("%", "%%"))
        self.line(f"if (!({self.value(check.condition)})) metal::os_log_default.log_fault({said});")
