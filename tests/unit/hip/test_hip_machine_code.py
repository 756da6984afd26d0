"""What is said of machine code: the hottest loop, its mix, waits; resources and errors in the author's terms."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hip_programs import EVERY, on
from machine_loops import loads, shared_bytes, vector, waits_before_products

import tilewright
import tilewright.language as T
from tilewright.errors import DeviceCompilationFailed, MissingCapability
from tilewright.machine.amd import ARCHITECTURES
from tilewright.targets.base import UnknownTarget
from tilewright.targets.hip import compiler
from tilewright.targets.hip.arch import arch, named
from tilewright.targets.hip.code_object import parse_resources
from tilewright.targets.hip.compiler import compile_text, find_compiler
from tilewright.targets.hip.machine_code import hottest_loop

from cuda_gemm import matmul, operands  # isort: skip

LOOP = """
kernel:
	s_mov_b32 s0, 0
.LBB0_1:
	s_barrier
	{first}
	ds_write_b128 v1, v[2:5]
	s_cbranch_scc1 .LBB0_1
	global_load_dwordx4 v[2:5], v[6:7], off
	{second}
	s_barrier
	ds_read2st64_b64 v[8:11], v1 offset1:4
	v_add_u32_e32 v1, 1, v1
	v_mfma_f32_16x16x16_bf16 v[0:3], v[4:5], v[6:7], v[0:3]
	s_cbranch_scc0 .LBB0_1
	s_endpgm
"""


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [("s_waitcnt vmcnt(0)", "s_nop 0", False), ("s_nop 0", "s_waitcnt vmcnt(0)", True), ("s_nop 0", "s_waitcnt vmcnt(1) lgkmcnt(0)", False),
     ("s_nop 0", "s_wait_loadcnt 0x0", True), ("s_nop 0", "s_waitcnt lgkmcnt(0)", False)],
)  # fmt: skip
def test_a_wait_between_loads_and_products_is_seen(first, second, waits):
    loop = hottest_loop(LOOP.format(first=first, second=second))
    assert (loop.products, vector(loop), loads(loop)) == (1, 1, 1)
    assert (shared_bytes(loop, "read"), shared_bytes(loop, "write")) == (16, 16)
    assert waits_before_products(loop) == waits
    assert loop.mix()["LDS"] == 2 and loop.mix()["products"] == 1


def test_explain_says_what_a_kernel_takes():
    find_compiler()  # without one it says less
    said = on("gfx942", matmul).compile(*operands(256, 256, 256, "float16"), block=(64, 64, 32)).explain()
    assert re.search(
        r"matmul_kernel: \d+ VGPRs, \d+ AGPRs, \d+ SGPRs, 8192 bytes of LDS, no scratch, \d waves a SIMD", said
    ), said
    assert re.search(r"matmul_kernel: an iteration of its hottest loop is .*16 products", said), said
    assert "gemm: mfma_m16n16k32 on 1 x 2 warps" in said


def test_resources_are_read_from_remarks():
    log = "\n".join(
        f"k.hip:3:1: remark: {line} [-Rpass-analysis=kernel-resource-usage]"
        for line in ("Function Name: one", "    TotalSGPRs: 14", "    VGPRs: 10", "    AGPRs: 4", "    ScratchSize [bytes/lane]: 8", "    Dynamic Stack: False",
                     "    Occupancy [waves/SIMD]: 8", "    SGPRs Spill: 0", "    VGPRs Spill: 2", "    LDS Size [bytes/block]: 8200")
    )  # fmt: skip
    found = parse_resources(log, {"one": 8192})["one"]
    assert (found.registers, found.vector_registers, found.accumulator_registers, found.scalar_registers) == (
        14,
        10,
        4,
        14,
    )
    assert (found.scratch_bytes, found.waves, found.vector_spills, found.lds_bytes, found.shared_bytes) == (
        8,
        8,
        2,
        8200,
        8,
    )


def test_an_error_of_the_authors_text_has_its_line():
    text = '#include "tilewright_gfx942.h"\nTW_KERNEL(64, 1)\nk_kernel(float* A) {\n#line 7 "author.py"\n  A[0] = tw::no_such(1.0f);\n}\n'
    with pytest.raises(DeviceCompilationFailed) as caught:
        compile_text(text, named("gfx942"))
    assert "no member named 'no_such'" in str(caught.value) and "author.py:7" in str(caught.value)


def test_a_text_for_another_machine_is_refused():
    with pytest.raises(DeviceCompilationFailed, match="another architecture"):
        compile_text('#include "tilewright_gfx942.h"\n', named("gfx1100"))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"arch": "gfx900"}, "the hip target has no architecture 'gfx900'"), ({"cores": "0"}, "names no architecture"), ({"arch": "gfx942", "cores": "x"}, "cores=x is no number of compute units"),
     ({"arch": "gfx942", "speed": "1"}, "no option 'speed'")],
)  # fmt: skip
def test_what_is_no_machine_is_said(options, message):
    with pytest.raises(UnknownTarget, match=message):
        arch(options)


def test_names_are_those_of_torch():
    assert named("gfx942:sramecc+:xnack-").name == named("942").name == "gfx942"
    assert arch({"arch": "gfx1100", "cores": "48"}).cores == 48


def printing(A):
    A: T.Tensor((64,), "float32")
    B = T.empty((64,), "float32")
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        T.print(A[tx])
        B[tx] = A[tx]
    return B


def test_what_amd_has_no_words_for_is_refused_with_a_sentence():
    with pytest.raises(MissingCapability, match="kernels for gfx942 cannot print"):
        on("gfx942", printing).compile(np.zeros(64, np.float32))
    with pytest.raises(MissingCapability, match="gfx1100 has at most 1024 threads"):
        tilewright.compile(wide, target="hip -arch=gfx1100")


@T.prim_func
def wide(A: T.Tensor((4096,), "float32")):
    with T.Kernel(1, threads=2048):
        for i in T.Parallel(4096):
            A[i] = 1.0


@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [("gfx942", "bfloat16"), ("gfx1100", "bfloat16"), ("gfx942", "int8"), ("gfx942", "float8_e4m3fnuz"),
     ("gfx950", "float8_e4m3fn"), ("gfx1201", "float8_e5m2")],
)  # fmt: skip
def test_the_product_of_the_page_is_as_it_should_be(architecture, dtype):
    """Among it: bytes reach products as the words that they lie in."""
    sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
    script = pytest.importorskip("hip_machine_code")
    _, wrong = script.check(architecture, dtype)
    assert wrong == []


@T.prim_func
def told(A: T.Tensor((4, 256), "float32"), S: T.Tensor((256,), "float32"), flags: T.Tensor((4,), "uint32")):
    with T.Kernel(4, threads=256) as b:
        tx = T.get_thread_binding()
        A[b, tx] = S[tx]
        T.sync_threads()
        if tx == 0:
            T.atomic_store(flags[b], T.cast(1, "uint32"), memory_order="release")


@pytest.mark.parametrize("architecture", EVERY)
def test_a_flag_follows_what_all_waves_have_stored(architecture: str) -> None:
    """One thread tells other blocks what its whole block has written: every wave waits for its stores before the barrier."""
    kernel = tilewright.compile(told, target=f"hip -arch={architecture}")
    assert "tw::sync_shared" not in kernel.get_kernel_source()
    lines = [line.split(";")[0].strip() for line in kernel.sass().split("\n")]
    barrier = next(at for at, line in enumerate(lines) if line.startswith("s_barrier"))
    stored = max(at for at, line in enumerate(lines[:barrier]) if line.startswith("global_store"))
    waits = r"s_waitcnt vmcnt\(0\)|s_waitcnt_vscnt null, 0x0|s_wait_storecnt 0x0"
    assert any(re.match(waits, line) for line in lines[stored:barrier])


def read_again(first: str, second: str, much: int) -> T.PrimFunc:
    """A thread's registers, written as elements of one type and read as those of another."""
    read = much * T.dtype(first).bits // T.dtype(second).bits

    @T.prim_func
    def seen(A: T.Tensor((64, much), first), B: T.Tensor((64, read), second)):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            own = T.alloc_local((much,), first)
            other = T.view(own, (read,), second)
            for i in T.serial(much):
                own[i] = A[tx, i]
            for i in T.serial(read):
                B[tx, i] = other[(i + tx) % read]

    return seen


@pytest.mark.parametrize("architecture", EVERY)
@pytest.mark.parametrize(
    "types", [("float32", "int32"), ("float16", "uint32"), ("int32", "bfloat16"), ("int64", "float32")]
)
def test_views_of_registers_are_read_whatever_their_type_is(types: tuple[str, str], architecture: str) -> None:
    """Types of accesses say nothing of their places: clang made an empty kernel of the first of these."""
    kernel = tilewright.compile(read_again(*types, 4), target=f"hip -arch={architecture}")
    code, text = kernel.sass(), kernel.get_kernel_source()
    assert re.search("global_load", code) and re.search("global_store", code)
    for more in ("-fno-strict-aliasing", "-ffp-contract=fast-honor-pragmas"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiler, "FLAGS", (*compiler.FLAGS, more))
            again = compile_text(text, ARCHITECTURES[architecture])
        assert re.sub(r"__hip_cuid\w+", "", again.machine_code()) == re.sub(r"__hip_cuid\w+", "", code)


@pytest.mark.parametrize("architecture", EVERY)
def test_products_and_sums_are_rounded_whatever_a_compiler_is_told(architecture: str) -> None:
    @T.prim_func
    def added(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            B[tx] = B[tx] + A[tx] * A[tx]

    text = tilewright.compile(added, target=f"hip -arch={architecture}").get_kernel_source()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "FLAGS", (*compiler.FLAGS, "-ffp-contract=fast-honor-pragmas"))
        code = compile_text(text, ARCHITECTURES[architecture]).machine_code()
    assert "v_mul_f32" in code and not re.search("v_fma|v_fmac|v_mac", code)
