"""A random program as what it consists of: its tensors, the lines of its kernel, and what both were drawn from."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes  # noqa: F401  (registers the carriers)
import numpy as np

import tilewright.language as T
from tilewright.compat.tilelang.layout import make_swizzled_layout
from tilewright.ir import ALL, FLOAT64, TILE_OPERATORS, Expr, pack
from tilewright.language.buffers import region_of
from tilewright.language.builder import record_operator
from tilewright.language.proxies import as_expr, is_number
from tilewright.language.source import statement_here
from tilewright.language.tensor_proxies import TensorProxy
from tilewright.machine.fragment_records import FragmentRecords
from tilewright.runtime.kernel import Kernel
from tilewright.specialization import JITFunction
from tilewright.texts import keep_lines


def operator(name: str, **operands: Any) -> None:
    """Record any registered operator by the names of its fields: tiles become regions, scalars expressions."""
    made = {key: _operand(value, key, name) for key, value in operands.items()}
    record_operator(TILE_OPERATORS[name](**made, span=statement_here()), f"T.{name}")


def _operand(value: Any, key: str, name: str) -> Any:
    if isinstance(value, TensorProxy):
        return region_of(value, f"{key} of {name}")
    return as_expr(value) if is_number(value) and not isinstance(value, (bool, int, float)) else value


def number(value: float, dtype: str) -> Expr:
    """A literal of a dtype, for operands of `operator` that are expressions."""
    return as_expr(value, ALL[dtype])


SPACE: dict[str, Any] = {"T": T, "operator": operator, "number": number, "make_swizzled_layout": lambda tile: make_swizzled_layout(tile).layout,
                         "FragmentRecords": FragmentRecords, "ALL": ALL}  # fmt: skip
"""Names that a program's text uses."""


@dataclass(frozen=True)
class Param:
    """A parameter: how it is declared, and what it is called with."""

    name: str
    declared: str
    value: Any
    is_scalar: bool = False
    tells: frozenset[str] = frozenset()
    """Sizes that its shape tells."""


@dataclass(frozen=True)
class TileProgram:
    """A program from a seed.

    Attributes
    ----------
    sizes : lines that name sizes, constants and dynamic ones.
    params : tensors and scalars.
    outputs : name, shape and dtype of each tensor that the program makes.
    kernel : the line that opens the kernel.
    body : its lines, indented from depth 0 on.
    machines : targets that it is compiled for, beside others that a run asks for.
    features : what it reaches, as tuples of words, for the statement of coverage.
    near : outputs whose numbers are rounded by functions that machines have to a last place or two.
    """

    seed: int
    sizes: tuple[str, ...]
    params: tuple[Param, ...]
    outputs: tuple[tuple[str, str, str], ...]
    kernel: str
    body: tuple[str, ...]
    machines: tuple[str, ...] = ()
    features: frozenset[tuple[str, ...]] = frozenset()
    near: frozenset[str] = field(default=frozenset())

    @property
    def text(self) -> str:
        lines = [f"def program({', '.join(p.name + (': ' + p.declared if p.is_scalar else '') for p in self.used)}):"]
        lines += [f"    {line}" for line in self.sizes]
        lines += [f"    {param.name}: {param.declared}" for param in self.used if not param.is_scalar]
        lines += [f'    {name} = T.empty({shape}, "{dtype}")' for name, shape, dtype in self.outputs]
        lines += [f"    {self.kernel}", *(f"        {line}" for line in self.body)]
        names = ", ".join(name for name, _, _ in self.outputs)
        return "\n".join([*lines, *([f"    return {names}"] if names else [])]) + "\n"

    @property
    def used(self) -> tuple[Param, ...]:
        """Parameters that the text speaks of, and those that sizes are told by."""
        said = "\n".join([*self.body, self.kernel])
        return tuple(p for p in self.params if p.tells or re.search(rf"\b{p.name}\b", said))

    @property
    def arguments(self) -> tuple[Any, ...]:
        return tuple(param.value for param in self.used)

    def with_body(self, body: Sequence[str]) -> TileProgram:
        """The same program with other lines, without the outputs that these no longer speak of."""
        said = "\n".join(body)
        outputs = tuple(output for output in self.outputs if re.search(rf"\b{output[0]}\b", said))
        return replace(self, body=tuple(body), outputs=outputs)

    def compile(self, target: str) -> Kernel:
        """The kernel for a target."""
        name = f"<fuzz {self.seed}>"
        keep_lines(self.text, name)
        space = dict(SPACE)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(self.text, name, "exec"), space)
            return self.kernel_of(space["program"], target)

    def kernel_of(self, function: Any, target: str) -> Kernel:
        """The kernel that its function is for a target."""
        return JITFunction(function, target, None).compile(*self.arguments)


# Values ------------------------------------------------------------------------------------------


def small(random: np.random.Generator, shape: Sequence[int], dtype: str, bound: int) -> np.ndarray:
    """Integers of at most `bound`, as many as a tensor has, in the form in which it is passed."""
    record = ALL[dtype]
    if record.kind == "bool":
        return random.integers(0, 2, shape).astype(bool)
    low = max(-bound, int(record.minimum))
    values = random.integers(low, min(bound, int(record.maximum)) + 1, shape)
    made = values.astype(record.numpy)
    return pack(made, record) if record.is_packed else made


def edges(random: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Any value of a type, those at the ends of its range among them."""
    record = ALL[dtype]
    if record.kind == "bool":
        return random.integers(0, 2, shape).astype(bool)
    carrier = record.numpy
    bits = random.integers(0, 1 << 32, (*shape, 2), dtype=np.uint32).view(np.uint64)[..., 0]
    if record.is_packed:
        low, high = int(record.minimum), int(record.maximum)
        return pack(random.integers(low, high + 1, shape).astype(carrier), record)
    made = bits.astype(f"u{carrier.itemsize}").view(carrier).reshape(shape)
    if record.is_float:
        special = [0.0, -0.0, 1.0, -1.5, 0.5, 2.5, float(record.maximum), float(record.minimum)]
        special += [float("inf"), float("-inf")] if record.infinities else []
        special += [float("nan")] if record.nans else []
    else:
        top = int(record.maximum)
        special = [0, 1, 2, top, int(record.minimum), top - 1, top // 2, *([-1] if record.is_signed else [])]
    chosen = np.array(special, FLOAT64.numpy if record.is_float else object).astype(carrier)
    return np.where(random.random(shape) < 0.5, random.choice(chosen, shape), made).astype(carrier)
