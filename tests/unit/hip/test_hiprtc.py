"""hiprtc as compiler, against a stand-in of the library: what it is handed, what comes back, and that it refuses what is wrong."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
from hip_programs import EVERY, on

from tilewright import processes
from tilewright.errors import CompilerNotFound, DeviceCompilationFailed, DriverError
from tilewright.targets.hip import compiler as compilers
from tilewright.targets.hip import driver as libraries
from tilewright.targets.hip.arch import named
from tilewright.targets.hip.compiler import Hiprtc, compile_text, find_compiler

from cuda_gemm import matmul, operands  # isort: skip


compiles = pytest.mark.skipif(processes.zig() is None, reason="the stand-in compiles by ziglang's clang")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("hiprtc") / "libhiprtc.so"
    source = str(Path(__file__).with_name("stand_in_hiprtc.c"))
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-w", source, "-o", str(path)], check=True)
    return ctypes.CDLL(str(path))


@pytest.fixture
def hiprtc(library, monkeypatch):
    """The only compiler of this machine."""
    monkeypatch.setenv("STANDIN_CLANG", str(processes.zig()))
    monkeypatch.setenv("ROCM_PATH", "/nowhere")
    monkeypatch.setattr(compilers.processes, "zig", lambda: None)
    monkeypatch.setattr(compilers.shutil, "which", lambda _: None)
    found = Hiprtc(library)
    monkeypatch.setattr(compilers, "find_hiprtc", lambda: found)
    find_compiler.cache_clear()
    yield found
    find_compiler.cache_clear()
    assert library.standin_alive() == 0  # every program was destroyed


def test_it_compiles_where_there_is_no_clang(hiprtc):
    assert find_compiler() is hiprtc and hiprtc.version == "hiprtc 6.4"


def test_without_any_compiler_that_is_said(hiprtc, monkeypatch):
    monkeypatch.setattr(compilers, "find_hiprtc", lambda: None)
    find_compiler.cache_clear()
    with pytest.raises(CompilerNotFound, match="needs a clang or hiprtc"):
        find_compiler()


@pytest.mark.parametrize("architecture", EVERY)
def test_a_product_is_the_one_that_clang_makes(architecture, request):
    """The same resources, read from the code object's metadata in one case and from clang's remarks in the other."""
    text = on(architecture, matmul).compile(*operands(128, 96, 64, "float16"), block=(64, 64, 32)).get_kernel_source()
    arch = named(architecture)
    expected = compile_text(text, arch, {"matmul_kernel": 4096}).resources
    request.getfixturevalue("hiprtc")
    found = compile_text(text, arch, {"matmul_kernel": 4096})
    assert found.resources == expected and found.assembly == "" and found.image.startswith(b"\x7fELF")


@compiles
@pytest.mark.parametrize("architecture", ["gfx942", "gfx1100", "gfx1201"])
def test_the_whole_vocabulary_stands_beside_hips_own_header(architecture, hiprtc):
    text = Path(__file__).with_name("every_function.hip").read_text()
    assert compile_text(f'#include "tilewright_{architecture}.h"\n{text}', named(architecture)).resources


@compiles
def test_an_error_has_the_authors_line(hiprtc):
    text = '#include "tilewright_gfx942.h"\nTW_KERNEL(64, 1)\nk(float* A) {\n#line 7 "author.py"\n  A[0] = tw::no_such(1.0f);\n}\n'
    with pytest.raises(DeviceCompilationFailed) as caught:
        compile_text(text, named("gfx942"))
    assert "no member named 'no_such'" in str(caught.value) and "author.py:7" in str(caught.value)


def test_what_the_library_answers_is_said(hiprtc):
    with pytest.raises(DriverError, match=r"hiprtc answered HIPRTC_ERROR_INVALID_OPTION \(5\) to hiprtcCompileProgram"):
        hiprtc.compile("", "k.hip", {}, ["offload-arch=gfx942"])


def test_the_stand_in_refuses_what_the_library_does(library):
    program, size, null = ctypes.c_void_p(), ctypes.c_size_t(), None
    words = (ctypes.c_char_p * 1)(b"-O3")
    create, compile_ = library.hiprtcCreateProgram, library.hiprtcCompileProgram
    assert library.hiprtcVersion(null, null) == 3
    assert create(null, b"", b"k", 0, null, null) == 3
    assert create(ctypes.byref(program), null, b"k", 0, null, null) == 3
    assert create(ctypes.byref(program), b"", b"k", 2, null, null) == 3
    assert create(ctypes.byref(program), b"", b"k", 0, null, null) == 0
    assert compile_(null, 0, null) == 4
    assert compile_(program, 1, null) == 3
    assert compile_(program, 1, words) == 5  # no architecture
    for option in (b"O3", b"-c", b"-S", b"-ok.o"):
        assert compile_(program, 1, (ctypes.c_char_p * 1)(option)) == 5
    assert library.hiprtcGetCodeSize(program, ctypes.byref(size)) == 4
    assert library.hiprtcGetCode(program, ctypes.create_string_buffer(8)) == 4
    assert library.hiprtcGetProgramLogSize(program, null) == 3
    assert library.hiprtcGetProgramLogSize(null, ctypes.byref(size)) == 4
    assert library.hiprtcDestroyProgram(null) == 4
    assert library.hiprtcDestroyProgram(ctypes.byref(program)) == 0
    assert library.hiprtcDestroyProgram(ctypes.byref(program)) == 4


def test_it_is_looked_for_beside_torch(monkeypatch, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libhiprtc.so.7").write_bytes(b"")
    torch = type(
        "torch", (), {"__file__": str(tmp_path / "__init__.py"), "version": type("version", (), {"hip": "7.0"})}
    )
    monkeypatch.setitem(libraries.sys.modules, "torch", torch)
    assert next(libraries.rocm_libraries("libhiprtc.so", ())) == str(tmp_path / "lib" / "libhiprtc.so.7")
