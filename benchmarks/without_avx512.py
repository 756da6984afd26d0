"""`benchmarks/cpu.py` with everybody held to AVX2: ours, torch, NumPy, and ONNX Runtime too.

    python benchmarks/without_avx512.py [options of benchmarks/cpu.py]

ONNX Runtime asks the processor itself and has no switch.  So it is run from a copy in a temporary folder in which each ``cpuid``
is a breakpoint, whose handler (a preloaded library) executes the instruction and clears what AVX-512, AVX-VNNI and AMX are
announced by.  Needs ``objdump`` and a C compiler; for Linux on x86-64.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

CPUID, BREAKPOINT = b"\x0f\xa2", b"\xcc\x90"

HANDLER = r"""
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <ucontext.h>

static void answer(int signal_number, siginfo_t *information, void *state) {
  greg_t *registers = ((ucontext_t *)state)->uc_mcontext.gregs;
  const unsigned char *next = (const unsigned char *)registers[REG_RIP];
  if (*next != 0x90) { signal(signal_number, SIG_DFL); return; }
  unsigned leaf = registers[REG_RAX], part = registers[REG_RCX], a, b, c, d;
  __cpuid_count(leaf, part, a, b, c, d);
  if (leaf == 7 && part == 0) {
    b &= ~(1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31); /* AVX-512 F, DQ, IFMA, PF, ER, CD, BW, VL */
    c &= ~(1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14);                                     /* VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ */
    d &= ~(1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25);                /* 4VNNIW, 4FMAPS, VP2INTERSECT, AMX, FP16 */
  } else if (leaf == 7 && part == 1) {
    a &= ~(1u << 4 | 1u << 5 | 1u << 21 | 1u << 23);                                                /* AVX-VNNI, BF16, AMX-FP16, AVX-IFMA */
    d &= ~(1u << 4 | 1u << 5 | 1u << 10 | 1u << 19);                                                /* AVX-VNNI-INT8, NE-CONVERT, INT16, AVX10 */
  }
  registers[REG_RAX] = a; registers[REG_RBX] = b; registers[REG_RCX] = c; registers[REG_RDX] = d;
  registers[REG_RIP] += 1;
}

__attribute__((constructor)) static void install(void) {
  struct sigaction action = {0};
  action.sa_sigaction = answer;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGTRAP, &action, 0);
}
"""

ENVIRONMENT = {
    "TILEWRIGHT_TARGET": "cpu -arch=avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
}
"""The switches of those who have one."""


def places(library: Path) -> Iterator[int]:
    """Where in the file the instruction ``cpuid`` stands."""
    headers = subprocess.run(["objdump", "-h", "-j", ".text", library], capture_output=True, text=True, check=True)
    found = re.search(r"\.text\s+\w+\s+(\w+)\s+\w+\s+(\w+)", headers.stdout)
    if found is None:
        raise SystemExit(f"{library} has no section .text")
    address, offset = (int(number, 16) for number in found.groups())
    command = ["objdump", "-d", "--no-show-raw-insn", "-j", ".text", str(library)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listing:
        assert listing.stdout is not None
        for line in listing.stdout:
            if line.rstrip().endswith("cpuid"):
                yield int(line.split(":")[0], 16) - address + offset


def restricted_copy(folder: Path) -> None:
    """A copy of ONNX Runtime in `folder` that asks our handler what the processor can do."""
    specification = importlib.util.find_spec("onnxruntime")
    if specification is None or specification.origin is None:
        return
    shutil.copytree(Path(specification.origin).parent, folder / "onnxruntime")
    for library in (folder / "onnxruntime/capi").glob("*.so*"):
        content = bytearray(library.read_bytes())
        for place in places(library):
            if content[place : place + 2] != CPUID:
                raise SystemExit(f"{library}: no cpuid at {place:#x}")
            content[place : place + 2] = BREAKPOINT
        library.write_bytes(content)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, handler = folder / "handler.c", folder / "handler.so"
        source.write_text(HANDLER)
        subprocess.run([os.environ.get("CC", "cc"), "-O1", "-shared", "-fPIC", "-o", handler, source], check=True)
        restricted_copy(folder)
        path = os.pathsep.join([name, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": path, "LD_PRELOAD": str(handler)}
        command = [sys.executable, str(Path(__file__).with_name("cpu.py")), *sys.argv[1:]]
        raise SystemExit(subprocess.run(command, env=environment).returncode)


if __name__ == "__main__":
    main()
