"""The device headers that a CUDA text includes: files of ``device/``, and the wgmma functions generated for one shape
and types.

A wgmma instruction names up to 128 accumulator registers, so its functions are long lists; a text includes
only those it uses, by name: ``#include "tilewright_wgmma_n256_f32_bf16_bf16.cuh"``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.targets.gpu import headers as gpu
from tilewright.targets.gpu.headers import COMMON

DIRECTORIES = (Path(__file__).parent / "device", COMMON)
"""CUDA's own headers, and those that are plain C++ for all GPUs."""

_CPP_TYPES = {
    "f32": "float", "f16": "half", "bf16": "bfloat16", "tf32": "tfloat32", "s32": "int32_t",
    "s8": "int8_t", "u8": "uint8_t", "e4m3": "float8_e4m3", "e5m2": "float8_e5m2",
}  # fmt: skip
"""PTX's name of a type -> the vocabulary's."""

_K = {"f16": 16, "bf16": 16, "tf32": 8, "s8": 32, "u8": 32, "e4m3": 32, "e5m2": 32}
_INTEGERS = frozenset({"s8", "u8"})
_INTEGER_N = frozenset({8, 24, *range(16, 257, 16)})
_ACCUMULATORS = {
    "f16": ("f32", "f16"), "bf16": ("f32",), "tf32": ("f32",), "s8": ("s32",), "u8": ("s32",),
    "e4m3": ("f32", "f16"), "e5m2": ("f32", "f16"),
}  # fmt: skip

_NAME = re.compile(r"tilewright_wgmma_(?:(sparse|ss|rs)(\d*)_)?n(\d+)_([a-z0-9]+)_([a-z0-9]+)_([a-z0-9]+)\.cuh")


@dataclass(frozen=True, slots=True)
class WgmmaShape:
    """One wgmma instruction: d[64, n] += a[64, k] * b[k, n], by PTX's names of the types.

    Raises
    ------
    ValueError : an instruction that the machine does not have.
    """

    n: int
    accumulator: str
    a: str
    b: str

    def __post_init__(self) -> None:
        if self.a not in _K or self.b not in _K or self.accumulator not in _ACCUMULATORS[self.a]:
            raise ValueError(f"wgmma has no {self.accumulator} += {self.a} * {self.b}")
        mixed = {self.a, self.b}
        if len(mixed) == 2 and mixed not in ({"s8", "u8"}, {"e4m3", "e5m2"}):
            raise ValueError(f"wgmma cannot mix {self.a} and {self.b}")
        allowed = self.n in _INTEGER_N if self.a in _INTEGERS else self.n % 8 == 0 and 8 <= self.n <= 256
        if not allowed:
            raise ValueError(f"wgmma of {self.a} has no n = {self.n}")

    @property
    def types(self) -> str:
        """Template arguments: the accumulator's type and those of both operands."""
        return ", ".join(_CPP_TYPES[name] for name in (self.accumulator, self.a, self.b))

    @property
    def has_major(self) -> bool:
        """Whether operands may lie along m and n."""
        return self.a in ("f16", "bf16")

    @property
    def count(self) -> int:
        """32-bit registers of the accumulator: halves are two in a word."""
        return self.n // 4 if self.accumulator == "f16" else self.n // 2

    @property
    def words(self) -> str:
        """What names the accumulator by words, where it is not by elements."""
        return "    uint32_t* w = reinterpret_cast<uint32_t*>(d);\n" if self.accumulator == "f16" else ""

    @property
    def outputs(self) -> str:
        constraint, view = "+f" if self.accumulator == "f32" else "+r", "w" if self.words else "d"
        return _wrap(f'"{constraint}"({view}[{i}])' for i in range(self.count))

    @property
    def registers(self) -> str:
        """The accumulator's registers in the text of an instruction."""
        lines = _lines([f"%{i}" for i in range(self.count)], 16, ", ")
        return "".join(f'                 "{line}"\n' for line in lines)

    @property
    def signs(self) -> str:
        """What no operand of floats is: negated."""
        return "" if self.a in _INTEGERS else ", 1, 1"

    @property
    def k(self) -> int:
        """Depth of one instruction: 32 bytes of elements."""
        return _K[self.a]

    def header(self, form: str, steps: int = 1) -> str:
        """Name of the header that a text includes to issue so many steps at once; `form` is ``ss`` or ``rs``."""
        return f"tilewright_wgmma_{form}{steps}_n{self.n}_{self.accumulator}_{self.a}_{self.b}.cuh"


def headers_of(text: str) -> dict[str, str]:
    """Every header that a text needs, by name, those included by headers too.

    Raises
    ------
    InternalError : a name that is neither a file of ``device/`` nor a generated header.
    """
    return gpu.headers_of(text, header_text)


@functools.cache
def header_text(name: str) -> str:
    """The text of one header."""
    match = _NAME.fullmatch(name)
    if match:
        form, steps, n, accumulator, a, b = match.groups()
        shape = WgmmaShape(int(n), accumulator, a, b)
        if form == "sparse":
            return wgmma_sparse_header(shape)
        return wgmma_header(shape, (form,) if form else ("ss", "rs"), int(steps or 1))
    return gpu.header_in(DIRECTORIES, name)


@functools.cache
def headers_hash() -> str:
    """Hash of the whole device vocabulary and of the generator of wgmma functions."""
    shape = WgmmaShape(8, "f32", "f16", "f16")
    return gpu.hash_of(DIRECTORIES, wgmma_header(shape, steps=2) + wgmma_sparse_header(shape))


def wgmma_header(shape: WgmmaShape, forms: Sequence[str] = ("ss", "rs"), steps: int = 1) -> str:
    """The specialisations for one instruction, `steps` of it in a statement: operands from shared memory, and A from
    registers."""
    times = f", {steps} steps" if steps > 1 else ""
    structs = "".join(
        f"template <> struct Wgmma{form.upper()}<{steps}, {shape.n}, {shape.types}> "
        f"{{\n{_function(shape, form == 'rs', steps)}}};\n"
        for form in forms
    )
    return (
        f"// wgmma m64n{shape.n}k{shape.k}, {shape.accumulator} += {shape.a} * {shape.b}{times}. Generated by "
        "targets/cuda/headers.py.\n"
        f"#pragma once\nnamespace tw {{\n{structs}}}  // namespace tw\n"
    )


def wgmma_sparse_header(shape: WgmmaShape) -> str:
    """The specialisation of ``tw::WgmmaSparse``: twice the depth of k, two of every four elements of A, which is
    K-major."""
    name = f"wgmma m64n{shape.n}k{2 * shape.k}, sparse, {shape.accumulator} += {shape.a} * {shape.b}"
    return (
        f"// {name}. Generated by targets/cuda/headers.py.\n#pragma once\nnamespace tw {{\n"
        f"template <> struct WgmmaSparse<{shape.n}, {shape.types}> {{\n"
        f"{_sparse_function(shape, from_registers=False)}{_sparse_function(shape, from_registers=True)}"
        f"}};\n}}  // namespace tw\n"
    )


def _sparse_function(shape: WgmmaShape, from_registers: bool) -> str:
    """One static function of the sparse instruction: after the operands come the metadata and which lanes give it."""
    count, has_major = shape.count, shape.has_major
    a_inputs = [f'"r"(a[{i}])' for i in range(4)] if from_registers else ['"l"(a)']
    major = ['"n"(int(MAJOR_B))'] if has_major else []
    inputs = ", ".join([*a_inputs, '"l"(b)', '"r"(metadata)', '"r"(uint32_t(accumulate))', '"n"(SELECTOR)', *major])
    a_text = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}" if from_registers else f"%{count}"
    at = count + len(a_inputs)
    majors = ("" if from_registers else ", 0") + f", %{at + 4}" if has_major else ""
    check = "" if has_major else _major_check("MAJOR_B == K_MAJOR")
    opcode = f"wgmma.mma_async.sp.sync.aligned.m64n{shape.n}k{2 * shape.k}.{shape.accumulator}.{shape.a}.{shape.b}"
    parameter, name = ("const uint32_t* a", "rs") if from_registers else ("uint64_t a", "ss")
    return (
        f"  template <int SELECTOR, Major MAJOR_B> TW_DEVICE static void {name}({_CPP_TYPES[shape.accumulator]} "
        f"(&d)[{shape.n // 2}], {parameter}, "
        f"uint64_t b, uint32_t metadata, bool accumulate) {{\n{check}{shape.words}"
        f'    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{at + 2}, 0; {opcode} {{"\n{shape.registers}'
        f'                 "}}, {a_text}, %{at}, %{at + 1}, %{at + 3}, p{shape.signs}{majors}; }}"\n'
        f'                 : {shape.outputs}\n                 : {inputs} : "memory");\n  }}\n'
    )


def _function(shape: WgmmaShape, from_registers: bool, steps: int) -> str:
    """One static function: parameters, the instructions and their operands, in the order that PTX wants."""
    count, has_major = shape.count, shape.has_major
    left = [f'"r"(a[{i}])' for i in range(4 * steps)] if from_registers else ['"l"(a)']
    majors = (
        (['"n"(int(MAJOR_B))'] if from_registers else ['"n"(int(MAJOR_A))', '"n"(int(MAJOR_B))']) if has_major else []
    )
    sides = ("B",) if from_registers else ("A", "B")
    offsets = [f'"n"(STEPS_{side}::at[{step}] >> 4)' for step in range(1, steps) for side in sides]
    b_at = count + len(left)
    major_text = "".join(f", %{b_at + 2 + i}" for i in range(len(majors)))
    opcode = f"wgmma.mma_async.sync.aligned.m64n{shape.n}k{shape.k}.{shape.accumulator}.{shape.a}.{shape.b}"
    registers = shape.registers
    declared = "" if steps == 1 else f".reg .b64 {'b' if from_registers else 'a, b'}; "
    text = f'    asm volatile("{{ .reg .pred p; {declared}setp.ne.b32 p, %{b_at + 1}, 0;"\n'
    for step in range(steps):
        a_text, b_text, moves = f"%{count}", f"%{b_at}", ""
        if step:
            first = b_at + 2 + len(majors) + (step - 1) * len(sides)
            names = {"A": ("a", count), "B": ("b", b_at)}
            moves = "".join(
                f" add.s64 {names[side][0]}, %{names[side][1]}, %{first + i};" for i, side in enumerate(sides)
            )
            a_text, b_text = "a", "b"
        if from_registers:
            a_text = "{" + ", ".join(f"%{count + 4 * step + i}" for i in range(4)) + "}"
        keep = "1" if step else "p"
        text += f'                 "{moves} {opcode} {{"\n{registers}                 "}}, {a_text}, {b_text}, {keep}{shape.signs}{major_text};"\n'  # noqa: E501
    inputs = _wrap([*left, '"l"(b)', '"r"(uint32_t(accumulate))', *majors, *offsets])
    parameters = ", ".join([*(f"Major MAJOR_{side}" for side in sides), *(f"class STEPS_{side}" for side in sides)])
    a_parameter = "const uint32_t* a" if from_registers else "uint64_t a"
    check = "" if has_major else _major_check(" && ".join(f"MAJOR_{side} == K_MAJOR" for side in sides))
    return (
        f"  template <{parameters}> TW_DEVICE static void issue({_CPP_TYPES[shape.accumulator]} "
        f"(&d)[{shape.n // 2}], {a_parameter}, "
        f"uint64_t b, bool accumulate) {{\n{check}{shape.words}{text}"
        f'                 "}}"\n                 : {shape.outputs}\n                 : {inputs} : "memory");\n  }}\n'
    )


def _major_check(condition: str) -> str:
    return f'    static_assert({condition}, "only 16-bit operands may be MN-major");\n'


def _lines(items: list[str], width: int, separator: str) -> list[str]:
    """`items` joined, `width` to a line, with a separator between lines too."""
    rows = [separator.join(items[i : i + width]) for i in range(0, len(items), width)]
    return [row + separator if i + 1 < len(rows) else row for i, row in enumerate(rows)]


def _wrap(items: Iterable[str]) -> str:
    return "\n                   ".join(line.rstrip() for line in _lines(list(items), 8, ", "))
