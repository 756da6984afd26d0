"""Machine code as text: nvdisasm, where the package index's wheel or a toolkit supplies it."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from tilewright.errors import CompilerNotFound, Span
from tilewright.targets.cuda.messages import _OWN_HEADER, _shorten
from tilewright.targets.cuda.toolkit import named_toolkits, wheels

_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<name>[A-Z0-9_]+(?:\.[A-Za-z0-9_]+)*)")
_FUNCTION = re.compile(r"^\.text\.(?P<name>[\w$]+):|^\s*\.section\s+\.text\.(?P<section>[\w$]+)")
_PLACE = re.compile(
    r'//## File "(?P<file>[^"]+)", line (?P<line>\d+)(?P<inlined> inlined at "(?P<caller>[^"]+)", line (?P<at>\d+))?'
)


@functools.cache
def find_tool(name: str) -> Path:
    """Path of ``nvdisasm`` or ``cuobjdump``.

    Raises
    ------
    CompilerNotFound : the tool is not on this machine.
    """
    found = [root / "bin" / name for root in (*wheels(), *named_toolkits(), Path("/usr/local/cuda"))]
    for path in (*found, Path(shutil.which(name) or "")):
        if path.is_file():
            return path
    package = f"nvidia-cuda-{name}"
    raise CompilerNotFound(
        f"no {name}, which prints machine code, on this machine", hint=f"pip install {package} brings it"
    )


def disassemble(cubin: bytes, *, lines: bool = False) -> str:
    """The SASS of a binary; with ``lines``, comments that name the source lines.

    Raises
    ------
    CompilerNotFound : there is no nvdisasm here, or it refused the binary.
    """
    tool = find_tool("nvdisasm")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kernel.cubin"
        path.write_bytes(cubin)
        flags = ["-gi"] if lines else []
        # Without an analysis of data flow, which finds targets of branches that no text here asks for.
        result = subprocess.run([str(tool), "-c", "-ndf", *flags, str(path)], capture_output=True, text=True)
    if result.returncode:
        raise CompilerNotFound(f"{tool} refused the binary: {result.stderr.strip()}")
    return result.stdout


def lines_with(cubin: bytes, kernel: str, *prefixes: str) -> tuple[Span, ...]:
    """The author's lines whose machine code in a kernel has an instruction that begins so, most frequent first."""
    found: Counter[Span] = Counter()
    here, place, inlined = "", None, False
    for line in disassemble(cubin, lines=True).splitlines():
        function, mark, instruction = _FUNCTION.match(line), _PLACE.search(line), _INSTRUCTION.match(line)
        if function:
            here = function["name"] or function["section"]
        elif mark:
            # A chain of inlined places begins with the innermost; the last is where the author's text stands.
            candidate = Span(_shorten(mark["file"]), int(mark["line"]))
            if not inlined or os.path.basename(str(place and place.file)).startswith(_OWN_HEADER):
                place = candidate
            if mark["inlined"]:
                caller = Span(_shorten(mark["caller"]), int(mark["at"]))
                if place and os.path.basename(place.file).startswith(_OWN_HEADER):
                    place = caller
            inlined = bool(mark["inlined"])
        elif instruction and here == kernel and place and instruction["name"].startswith(prefixes):
            found[place] += 1
    return tuple(span for span, _ in found.most_common())
