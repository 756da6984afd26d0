"""The machine code of a bf16 product of 4096^3 for AMD's GPUs, looked at without one.

    python benchmarks/hip_machine_code.py [ARCHITECTURE...] [--triton PYTHON] [--across] [--types]

For the hottest loop of each kernel, a step of K at a time: products against those that the tile takes, bytes of shared memory against what reuse
asks for, other vector instructions a product, whether products wait for the loads of the next step, bank conflicts of what lanes read.
``--triton`` names a Python that has Triton: its code object for the same product stands beside.  ``--types`` looks at every other type that the
machine multiplies, in tiles of as many bytes.  Exit status 1 where a figure is not as it should be.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "unit" / "hip"))

from machine_loops import shared_bytes, vector, waits_before_products

import tilewright
import tilewright.language as T
from tilewright.layout.access import bank_conflicts
from tilewright.machine.amd import ARCHITECTURES, AmdArch
from tilewright.targets.hip.machine_code import MachineLoop, hottest_loop

SIZE = 4096

TILES = {
    "gfx90a": (128, 128, 32, 256),
    "gfx942": (128, 128, 64, 256),
    "gfx950": (128, 128, 64, 256),
    "gfx1100": (128, 128, 32, 256),
    "gfx1201": (128, 128, 32, 256),
}
"""Rows, columns and depth of a block's tile of 16-bit elements, and its threads."""

TYPES = {
    "gfx90a": ("float16", "int8"),
    "gfx942": ("float16", "int8", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    "gfx950": ("float16", "int8", "float8_e4m3fn", "float8_e5m2"),
    "gfx1100": ("float16", "int8"),
    "gfx1201": ("float16", "int8", "float8_e4m3fn", "float8_e5m2"),
}
"""What each machine multiplies besides bfloat16."""

DEPTHS = {"gfx90a": (16,), "gfx942": (16, 32), "gfx950": (32, 64), "gfx1100": (16,), "gfx1201": (16,)}
"""How much of K a machine's instructions take."""

TRITON_TYPES = {
    "bfloat16": ("bf16", "float32", "bf16"), "float16": ("fp16", "float32", "fp16"), "int8": ("i8", "int32", "i32"),
    "float8_e4m3fnuz": ("fp8e4b8", "float32", "fp32"), "float8_e5m2fnuz": ("fp8e5b16", "float32", "fp32"),
    "float8_e4m3fn": ("fp8e4nv", "float32", "fp32"), "float8_e5m2": ("fp8e5", "float32", "fp32"),
}  # fmt: skip
"""Triton's names of an operand's type, of the sum's and of the result's."""

TRITON = """
import sys, triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
@triton.jit
def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0), tl.program_id(1)
    rows, columns, depth = m * BM + tl.arange(0, BM), n * BN + tl.arange(0, BN), tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    left, right = a + rows[:, None] * K + depth[None, :], b + columns[None, :] * K + depth[:, None]
    for k in range(0, K, BK):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += BK
        right += BK
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(tl.bfloat16))
arch, lanes, bm, bn, bk, warps = sys.argv[1], *map(int, sys.argv[2:])
signature = {"a": "*bf16", "b": "*bf16", "c": "*bf16", "M": "i32", "N": "i32", "K": "i32", "BM": "constexpr", "BN": "constexpr", "BK": "constexpr"}
attributes = {(place,): [["tt.divisibility", 16]] for place in range(6)}
made = triton.compile(ASTSource(product, signature, {"BM": bm, "BN": bn, "BK": bk}, attributes), target=GPUTarget("hip", arch, lanes), options={"num_warps": warps, "num_stages": 2})
print(made.asm["amdgcn"])
print("    .group_segment_fixed_size: ", made.metadata.shared)
"""


def product(A, B, block_M, block_N, block_K, threads, across_A=False, across_B=False, dtype="bfloat16"):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((K, M) if across_A else (M, K), dtype)
    B: T.Tensor((K, N) if across_B else (N, K), dtype)
    summed = "int32" if dtype == "int8" else "float32"
    C = T.empty((M, N), dtype if dtype in ("bfloat16", "float16") else summed)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        a = T.alloc_shared((block_K, block_M) if across_A else (block_M, block_K), dtype)
        b = T.alloc_shared((block_K, block_N) if across_B else (block_N, block_K), dtype)
        total = T.alloc_fragment((block_M, block_N), summed)
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
            if across_A:
                T.copy(A[k * block_K, by * block_M], a)
            else:
                T.copy(A[by * block_M, k * block_K], a)
            if across_B:
                T.copy(B[k * block_K, bx * block_N], b)
            else:
                T.copy(B[bx * block_N, k * block_K], b)
            T.gemm(a, b, total, transpose_A=across_A, transpose_B=not across_B)
        T.copy(total, C[by * block_M, bx * block_N])
    return C


def conflicts(text: str, arch: AmdArch, size: int) -> int:
    """Extra passes of all reads of shared operands by one wave, from the addresses in the text; lanes are served as the machine does."""
    extra = 0
    reads = re.findall(r"load_fragment<(\d+)>\([ab]\w*_[ab], [^&]*&[ab]\w*\[(.*)\]\);", text)
    assert reads, "no reads of shared operands in the text"
    for width, place in reads:
        names = {name: 0 for name in re.findall(r"\b[a-z_]\w*\b", place) if name != "tx"}
        lanes = np.arange(arch.warp_size)
        addresses = eval(place.replace("/", "//"), {}, {**names, "tx": lanes}) * size
        groups = arch.read_groups or tuple(tuple(range(first, first + 8)) for first in range(0, 32, 8))
        for half in range(0, arch.warp_size, 32):
            for group in groups:
                extra += bank_conflicts(addresses[[half + lane for lane in group]], int(width) * size, 32)
    return extra


def figures(code: str) -> dict[str, int]:
    """Registers, shared memory and scratch, as the code object's metadata has them."""
    names = {"vgprs": r"\.vgpr_count:\s+(\d+)", "agprs": r"\.agpr_count:\s+(\d+)", "lds": r"\.group_segment_fixed_size:\s+(\d+)",
             "scratch": r"\.private_segment_fixed_size:\s+(\d+)", "spills": r"\.vgpr_spill_count:\s+(\d+)"}  # fmt: skip
    return {name: max(map(int, re.findall(pattern, code)), default=0) for name, pattern in names.items()}


def row(name: str, assembly: str, loop: MachineLoop, arch: AmdArch, steps: str) -> str:
    facts = figures(assembly)
    waves = min(arch.simd_occupancy(facts["vgprs"]), arch.core_shared_bytes // max(facts["lds"], 1) * 4 // arch.simds)
    return (
        f"| {name} | {facts['vgprs']} | {facts['lds'] / 1024:.0f} | {facts['scratch']} | {waves} | {loop.products} | {steps} | "
        f"{shared_bytes(loop, 'read', 'load')} / {shared_bytes(loop, 'write', 'store')} | {vector(loop) / max(loop.products, 1):.2f} | "
        f"{'yes' if waits_before_products(loop) else 'no'} |"
    )


def check(name: str, dtype: str = "bfloat16") -> tuple[list[str], list[str]]:
    """Rows of the table, and what is not as it should be."""
    arch = ARCHITECTURES[name]
    m, n, k, threads = TILES[name]
    size = getattr(torch, dtype).itemsize
    k = k * 2 // size
    operands = (
        torch.empty(SIZE, SIZE, dtype=getattr(torch, dtype)),
        torch.empty(SIZE, SIZE, dtype=getattr(torch, dtype)),
    )
    function = tilewright.jit(product, target=f"hip -arch={name}")
    kernel = function.compile(*operands, block_M=m, block_N=n, block_K=k, threads=threads, dtype=dtype)
    assembly = kernel.ptx()
    loop = hottest_loop(assembly)
    assert loop is not None
    facts = figures(assembly)
    waves = threads // arch.warp_size
    depths = {int(depth) for one in loop.names for depth in re.findall(r"_16x16x(\d+)", one)}
    (depth,) = depths & set(DEPTHS[name])
    wanted = m * n * k // (16 * 16 * depth) // waves
    steps, rest = divmod(loop.products, wanted)
    plan = re.search(r"on (\d+) x (\d+) warps", kernel.explain())
    assert plan is not None
    across, along = int(plan[1]), int(plan[2])
    replicas = 2 if arch.generation == "rdna3" else 1
    reads = (m // across + n // along) * k * size // arch.warp_size * replicas
    direct = any(operands.endswith(" lds") for _, operands in loop.instructions)
    writes = 0 if direct else (m + n) * k * size // threads
    found = {
        f"{loop.products} products are not those of whole steps of K, {wanted} each": rest != 0 or steps == 0,
        f"lanes read {shared_bytes(loop, 'read', 'load')} bytes of shared memory, not {reads} a step": shared_bytes(
            loop, "read", "load"
        )
        != reads * steps,
        f"lanes write {shared_bytes(loop, 'write', 'store')} bytes of shared memory, not {writes} a step": shared_bytes(
            loop, "write", "store"
        )
        != writes * steps,
        f"{vector(loop) / max(loop.products, 1):.2f} vector instructions a product": vector(loop) > loop.products,
        "products wait for loads of the next step": waits_before_products(loop),
        f"{facts['scratch']} bytes of scratch": facts["scratch"] + facts["spills"] > 0,
        f"{conflicts(kernel.get_kernel_source(), arch, size)} bank conflicts": conflicts(
            kernel.get_kernel_source(), arch, size
        )
        > 0,
    }
    shape = f"{m}x{n}x{k}" + ("" if dtype == "bfloat16" else f" {dtype}")
    return [row(f"{name}, {shape}", assembly, loop, arch, str(wanted))], [
        f"{name}: {what}" for what, wrong in found.items() if wrong
    ]


ACROSS = {"[K, N]": (False, True), "[K, M] and [K, N]": (True, True)}
"""Operands whose rows are not along k, by how they are stored: their elements have to be turned on the way."""


def row_across(name: str, stored: str) -> str:
    """A row of the table for operands that lie across k."""
    arch = ARCHITECTURES[name]
    m, n, k, threads = TILES[name]
    operands = (torch.empty(SIZE, SIZE, dtype=torch.bfloat16), torch.empty(SIZE, SIZE, dtype=torch.bfloat16))
    function = tilewright.jit(product, target=f"hip -arch={name}")
    across_A, across_B = ACROSS[stored]
    assembly = function.compile(
        *operands, block_M=m, block_N=n, block_K=k, threads=threads, across_A=across_A, across_B=across_B
    ).ptx()
    loop = hottest_loop(assembly)
    assert loop is not None
    return row(f"{name}, {stored}", assembly, loop, arch, str(sum(one.startswith("ds_") for one in loop.names)))


def triton_row(python: str, name: str, stored: str = "", dtype: str = "bfloat16") -> str:
    """The same of Triton's code object for the same tile."""
    arch = ARCHITECTURES[name]
    m, n, k, threads = TILES[name]
    k = k * 2 // getattr(torch, dtype).itemsize
    with_lines = Path("/tmp") / "triton_product.py"
    across_A, across_B = ACROSS.get(stored, (False, False))
    text = TRITON
    if across_A:
        text = text.replace("a + rows[:, None] * K + depth[None, :]", "a + rows[:, None] + depth[None, :] * M")
        text = text.replace("left += BK", "left += BK * M")
    if across_B:
        text = text.replace("b + columns[None, :] * K + depth[:, None]", "b + columns[None, :] + depth[:, None] * N")
        text = text.replace("right += BK", "right += BK * N")
    kind, summed, out = TRITON_TYPES[dtype]
    text = text.replace('"*bf16", "c": "*bf16"', f'"*{kind}", "c": "*{out}"').replace('"a": "*bf16"', f'"a": "*{kind}"')
    text = text.replace("tl.float32)\n", f"tl.{summed})\n").replace(
        "tl.dot(tl.load(left), tl.load(right), total)",
        f"tl.dot(tl.load(left), tl.load(right), total, out_dtype=tl.{summed})",
    )
    text = text.replace("total.to(tl.bfloat16)", "total.to(c.dtype.element_ty)")
    with_lines.write_text(text)
    arguments = [name, str(arch.warp_size), *map(str, (m, n, k, threads // arch.warp_size))]
    done = subprocess.run([python, str(with_lines), *arguments], capture_output=True, text=True)
    if done.returncode:
        return f"| {name}, Triton | {done.stderr.strip().splitlines()[-1]} |"
    loop = hottest_loop(done.stdout)
    assert loop is not None
    return row(
        f"{name}, Triton",
        done.stdout,
        loop,
        arch,
        str(sum(one.startswith("ds_") for one in loop.names)) if stored else "",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("architectures", nargs="*", default=list(TILES))
    parser.add_argument("--triton", help="a Python that has Triton")
    parser.add_argument(
        "--across",
        action="store_true",
        help="operands stored [K, N], then [K, M] too, in place of rows along k; LDS instructions are counted",
    )
    parser.add_argument("--types", action="store_true", help="all other types, in place of bfloat16")
    options = parser.parse_args()
    what = "LDS instructions" if options.across else "products a step"
    print(
        f"| kernel | VGPRs | LDS, KB | scratch | waves a SIMD | products in the loop | {what} | "
        "LDS bytes a lane, read / written | vector a product | waits for loads |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    wrong: list[str] = []
    for name in options.architectures if options.across else ():
        for stored in ACROSS:
            print(row_across(name, stored))
            if options.triton:
                print(triton_row(options.triton, name, stored))
    for name in () if options.across else options.architectures:
        for dtype in TYPES[name] if options.types else ("bfloat16",):
            rows, found = check(name, dtype)
            wrong += found
            print(*rows, sep="\n")
            if options.triton:
                print(triton_row(options.triton, name, dtype=dtype))
    print(*wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
