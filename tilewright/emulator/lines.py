"""From an address in a compiled text to the author's file and line: a reader of DWARF 4 line tables.

Reports of plain loads and stores know where in the machine code they happened; the compiler has left a table (section
``.debug_line``) that this module runs through.  No other tool is needed for it.
"""

from __future__ import annotations

import bisect
import functools
import struct
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LineTable:
    """Rows of a line table in order of address: where each begins, its file and its line."""

    addresses: tuple[int, ...]
    places: tuple[tuple[str, int] | None, ...]

    def find(self, address: int) -> tuple[str, int] | None:
        """File and line of the instruction before a return address; a header's inlined code counts for the line that
        called it."""
        row = bisect.bisect_right(self.addresses, address - 1) - 1
        for nearby in (*range(row, max(row - 64, -1), -1), *range(row + 1, min(row + 64, len(self.places)))):
            place = self.places[nearby]
            if place is not None and not place[0].endswith((".cuh", ".h")):
                return place
        return None


def _section(image: bytes, wanted: bytes) -> bytes:
    """A section of a 64-bit little-endian ELF file; empty where there is none."""
    if image[:5] != b"\x7fELF\x02":
        return b""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", image, table + size * i) for i in range(count)]
    names = headers[names_index][4]
    for name, _, _, _, offset, length in headers:
        start = names + name
        if image[start : image.index(b"\0", start)] == wanted:
            return image[offset : offset + length]
    return b""


class _Reader:
    """Numbers and strings from bytes, one after the other."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def fixed(self, form: str) -> int:
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    def signed(self) -> int:
        start = self.at
        value = self.unsigned()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) & 1 else value

    def string(self) -> str:
        end = self.data.index(b"\0", self.at)
        value = self.data[self.at : end].decode(errors="replace")
        self.at = end + 1
        return value


def _program(data: bytes, start: int) -> tuple[list[tuple[int, str, int, bool]], int]:
    """The rows of one compilation unit's program, and where the next unit begins."""
    reader = _Reader(data, start)
    length = reader.fixed("I")
    end = reader.at + length
    version = reader.fixed("H")
    if version not in (2, 3, 4):
        return [], end
    header_length = reader.fixed("I")
    body = reader.at + header_length
    step = reader.fixed("B")
    if version == 4:
        reader.fixed("B")
    reader.fixed("B")
    line_base, line_range, opcode_base = reader.fixed("b"), reader.fixed("B"), reader.fixed("B")
    operands = [reader.fixed("B") for _ in range(opcode_base - 1)]
    directories = [""]
    while reader.data[reader.at]:
        directories.append(reader.string())
    reader.at += 1
    files = [""]
    while reader.data[reader.at]:
        name = reader.string()
        directory = directories[reader.unsigned()]
        files.append(f"{directory}/{name}" if directory and not name.startswith("/") else name)
        reader.unsigned(), reader.unsigned()
    reader.at = body

    rows: list[tuple[int, str, int, bool]] = []
    address, file, line = 0, 1, 1

    def row(ends: bool = False) -> None:
        rows.append((address, files[file] if file < len(files) else "", line, ends))

    while reader.at < end:
        opcode = reader.fixed("B")
        if opcode >= opcode_base:
            adjusted = opcode - opcode_base
            address += adjusted // line_range * step
            line += line_base + adjusted % line_range
            row()
        elif opcode == 0:
            size = reader.unsigned()
            after = reader.at + size
            kind = reader.fixed("B")
            if kind == 1:
                row(True)
                address, file, line = 0, 1, 1
            elif kind == 2:
                address = reader.fixed("Q")
            reader.at = after
        elif opcode == 1:
            row()
        elif opcode == 2:
            address += reader.unsigned() * step
        elif opcode == 3:
            line += reader.signed()
        elif opcode == 4:
            file = reader.unsigned()
        elif opcode == 8:
            address += (255 - opcode_base) // line_range * step
        elif opcode == 9:
            address += reader.fixed("H")
        else:
            for _ in range(operands[opcode - 1]):
                reader.unsigned()
    return rows, end


@functools.lru_cache(maxsize=32)
def line_table(path: Path) -> LineTable:
    """The line table of a shared library; empty where it has none that can be read."""
    data = _section(path.read_bytes(), b".debug_line")
    rows: list[tuple[int, str, int, bool]] = []
    at = 0
    while at < len(data):
        unit, at = _program(data, at)
        rows += unit
    rows.sort(key=lambda row: (row[0], not row[3]))
    return LineTable(tuple(row[0] for row in rows), tuple(None if row[3] else (row[1], row[2]) for row in rows))
