"""Launches against a stand-in of HIP's library: what it is handed, and that it refuses what is wrong."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hip_programs import on

import tilewright.language as T
from tilewright.errors import DriverError, LaunchFailed
from tilewright.targets.hip import arch as architectures
from tilewright.targets.hip import driver as drivers
from tilewright.targets.hip.compiler import compile_text
from tilewright.targets.hip.driver import Driver
from tilewright.targets.hip.launcher import HipKernel
from tilewright.targets.hip.target import load
from tilewright.targets.registry import resolve

from cuda_gemm import matmul, operands  # isort: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("hip") / "libamdhip64.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-w", str(Path(__file__).with_name("stand_in_hip.c")), "-o", str(path)],
        check=True,
    )
    return path


@pytest.fixture
def driver(library, monkeypatch):
    handle = ctypes.CDLL(str(library))
    handle.standin_reset()
    found = Driver(handle)
    for module in (drivers, architectures):
        monkeypatch.setattr(module, "find_driver", lambda: found)
    architectures._detected.cache_clear()
    return found


class Launched(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * 200), ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3), ("shared", ctypes.c_uint32), ("stream", ctypes.c_uint64),
        ("device", ctypes.c_int), ("cooperative", ctypes.c_int), ("arguments", ctypes.c_ubyte * 512), ("argument_bytes", ctypes.c_uint32),
    ]  # fmt: skip


def expect(driver, *sizes):
    """Say how large the next kernel's parameters are."""
    driver.library.standin_reset()
    driver.library.hipInit(0)
    (ctypes.c_uint32 * 64).in_dll(driver.library, "standin_sizes")[: len(sizes)] = sizes
    ctypes.c_uint32.in_dll(driver.library, "standin_parameters").value = len(sizes)


def launches(driver):
    get = driver.library.standin_launch
    get.restype = ctypes.POINTER(Launched)
    return [get(number).contents for number in range(driver.library.standin_launches())]


def loaded(kernel):
    return load(kernel.path, kernel.program.source, kernel.program.final, kernel.arch)


def test_the_device_is_found_with_its_own_sizes(driver):
    target, arch = resolve("hip")
    assert (target.name, arch.name, arch.cores) == ("hip", "gfx942", 228)
    assert resolve("hip -arch=gfx942:sramecc+:xnack-")[1].name == "gfx942"


def test_a_product_is_launched_with_its_addresses(driver):
    expect(driver, 8, 8, 8)
    kernel = on("gfx942", matmul).compile(*operands(100, 70, 64, "float16"), block=(64, 64, 32))
    loaded(kernel)(0x1000, 0x2000, 0x3000)
    (one,) = launches(driver)
    assert (one.name, tuple(one.grid), tuple(one.block)) == (b"matmul_kernel", (2, 2, 1), (128, 1, 1))
    assert (one.shared, one.stream, one.device, one.cooperative) == (0, 0, 0, 0)
    assert struct.unpack("<3Q", bytes(one.arguments[:24])) == (0x1000, 0x2000, 0x3000)


def test_tensors_of_another_device_are_worked_on_there(driver):
    expect(driver, 8, 8, 8)
    kernel = on("gfx942", matmul).compile(*operands(64, 64, 32, "float16"), block=(64, 64, 32))
    launcher = loaded(kernel)
    with launcher.on_device(1):
        assert launcher.current_device() == 1
        launcher(0x1000, 0x2000, 0x3000)
    assert [one.device for one in launches(driver)] == [1] and launcher.current_device() == 0


def scaled(A, factor: T.float32, count: T.int64):
    N = T.dynamic("N")
    A: T.Tensor((N,), "float32")
    B = T.empty((N,), "float32")
    with T.Kernel(T.ceildiv(N, 256), threads=256) as block:
        for i in T.Parallel(256):
            if block * 256 + i < count:
                B[block * 256 + i] = A[block * 256 + i] * factor
    return B


def test_numbers_are_packed_as_the_kernel_reads_them(driver):
    kernel = on("gfx942", scaled).compile(np.zeros(1000, np.float32), 2.5, 7)
    text = kernel.get_kernel_source()
    signature = text[text.index("scaled_kernel(") : text.index(") {", text.index("scaled_kernel("))]
    sizes = {"*": 8, "float ": 4, "int32_t ": 4, "int64_t ": 8}
    order = [next(size for word, size in sizes.items() if word in part) for part in signature.split("(")[1].split(",")]
    expect(driver, *order)
    loaded(kernel)(0x1000, 2.5, 7, 0x2000, 1000)
    (one,) = launches(driver)
    held = bytes(one.arguments[: one.argument_bytes])
    assert (
        tuple(one.grid) == (4, 1, 1)
        and struct.pack("<f", 2.5) in held
        and struct.pack("<Q", 0x1000) in held
        and struct.pack("<q", 7) in held
    )


def test_streams_and_devices_go_through(driver):
    expect(driver, 8, 8, 8)
    kernel = on("gfx942", matmul).compile(*operands(64, 64, 32, "float16"), block=(64, 64, 32))
    image = compile_text(kernel.get_kernel_source(), kernel.arch).image
    one = HipKernel(image, "matmul_kernel", ("Q", "Q", "Q"), 128)
    one((1, 1, 1), (1, 2, 3), stream=3)
    with driver.on(1):
        one((1, 1, 1), (1, 2, 3), stream=2)
    one((0, 1, 1), (1, 2, 3))  # a grid without blocks launches nothing, and one of a negative size has none
    one((-2, 1, 1), (1, 2, 3))
    assert [(made.stream, made.device) for made in launches(driver)] == [(3, 0), (2, 1)]
    assert driver.current_device() == 0


def test_launches_go_to_torchs_current_stream(driver, monkeypatch):
    """Of torch for ROCm, whose CUDA names are HIP's; each thread's current stream at the time of the call."""
    expect(driver, 8, 8, 8)
    streams = {0: 1, 1: 2}
    cuda = SimpleNamespace(
        is_available=lambda: True, init=lambda: None, current_device=driver.current_device, device=driver.on,
        current_stream=lambda device: SimpleNamespace(cuda_stream=streams[device]),
    )  # fmt: skip
    monkeypatch.setitem(drivers.sys.modules, "torch", SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip="6.4")))
    kernel = on("gfx942", matmul).compile(*operands(64, 64, 32, "float16"), block=(64, 64, 32))
    launcher = loaded(kernel)
    launcher(0x1000, 0x2000, 0x3000)
    streams[0] = 3
    launcher(0x1000, 0x2000, 0x3000)
    with launcher.on_device(1):
        launcher(0x1000, 0x2000, 0x3000)
    assert [(one.stream, one.device) for one in launches(driver)] == [(1, 0), (3, 0), (2, 1)]


def test_what_the_library_refuses_is_said_in_words(driver):
    expect(driver, 8, 8, 8)
    kernel = on("gfx942", matmul).compile(*operands(64, 64, 32, "float16"), block=(64, 64, 32))
    image = compile_text(kernel.get_kernel_source(), kernel.arch).image
    other = compile_text(kernel.get_kernel_source().replace("gfx942", "gfx90a"), architectures.named("gfx90a")).image
    good = HipKernel(image, "matmul_kernel", ("Q", "Q", "Q"), 128)
    cases = [
        (lambda: HipKernel(b"\0" * 4096, "matmul_kernel", ("Q",) * 3, 128)((1, 1, 1), (1, 2, 3)), "hipErrorInvalidImage", "damaged"),
        (lambda: HipKernel(other, "matmul_kernel", ("Q",) * 3, 128)((1, 1, 1), (1, 2, 3)), "hipErrorNoBinaryForGpu", "another architecture"),
        (lambda: HipKernel(image, "nobody", ("Q",) * 3, 128)((1, 1, 1), (1, 2, 3)), "hipErrorNotFound", "no kernel of that name"),
        (lambda: HipKernel(image, "matmul_kernel", ("Q",) * 3, 2048)((1, 1, 1), (1, 2, 3)), "hipErrorInvalidConfiguration", None),
        (lambda: good((1, 70000, 1), (1, 2, 3)), "hipErrorInvalidConfiguration", None),
        (lambda: good((1, 1, 1), (1, 2, 3), stream=77), "hipErrorInvalidHandle", None),
        (lambda: HipKernel(image, "matmul_kernel", ("Q",) * 3, 128, cooperative=True)((1000, 1, 1), (1, 2, 3)), "hipErrorCooperativeLaunchTooLarge", "than fit"),
        (lambda: driver.allocate(1 << 40, 0), "hipErrorOutOfMemory", "no memory left"),
    ]  # fmt: skip
    for call, symbol, hint in cases:
        with pytest.raises(DriverError) as caught:
            call()
        assert symbol in str(caught.value) and (hint is None or hint in str(caught.value)), symbol
    assert issubclass(LaunchFailed, DriverError) and launches(driver) == []


def wrong_calls(library, module, function):
    """Calls that the library refuses, and its answers."""
    out, null = ctypes.byref(ctypes.c_void_p()), None
    ok = (1, 1, 1, 64, 1, 1, 0, ctypes.c_uint64(0))
    arguments = (ctypes.c_void_p * 3)(*(ctypes.addressof(ctypes.create_string_buffer(8)) for _ in range(3)))

    def launch(*shape, of=function, given=arguments, extra=None):
        return library.hipModuleLaunchKernel(of, *shape, given, extra)

    yield library.hipInit(1), 1
    yield library.hipGetDeviceCount(null), 1
    yield library.hipSetDevice(2), 101
    yield library.hipSetDevice(-1), 101
    yield library.hipGetDevicePropertiesR0600(ctypes.create_string_buffer(2000), 9), 101
    yield library.hipDeviceGetAttribute(ctypes.byref(ctypes.c_int()), 63, 5), 101
    yield library.hipModuleLoadData(null, b"\x7fELF"), 1
    yield library.hipModuleLoadData(out, null), 1
    yield library.hipModuleLoadData(out, b"not an image" * 8), 200
    yield library.hipModuleGetFunction(out, null, b"matmul_kernel"), 400
    yield library.hipModuleGetFunction(out, module, null), 1
    yield library.hipModuleGetFunction(out, module, b"matmul"), 500
    yield launch(*ok, of=module), 400
    yield launch(0, *ok[1:]), 9
    yield launch(1, 1, 0, *ok[3:]), 9
    yield launch(1, 1, 1, 0, *ok[4:]), 9
    yield launch(1, 1, 1, 1025, *ok[4:]), 9
    yield launch(1, 1, 1, 64, 32, 1, *ok[6:]), 9
    yield launch(1 << 31, 1, 1, 1024, *ok[4:]), 9
    yield launch(1, 1, 1, 64, 1, 1, 65536, ctypes.c_uint64(0)), 1
    yield launch(*ok[:7], ctypes.c_uint64(99)), 400
    yield launch(*ok, given=None), 1
    yield launch(*ok, extra=arguments), 1
    yield library.hipMalloc(null, ctypes.c_uint64(8)), 1
    yield library.hipMalloc(out, ctypes.c_uint64(1 << 50)), 2


def test_the_stand_in_refuses_what_the_library_does(driver):
    expect(driver, 8, 8, 8)
    kernel = on("gfx942", matmul).compile(*operands(64, 64, 32, "float16"), block=(64, 64, 32))
    image = compile_text(kernel.get_kernel_source(), kernel.arch).image
    module = driver.load_module(image)
    function = driver.function(module, "matmul_kernel")
    answers = list(wrong_calls(driver.library, module, function))
    assert len(answers) >= 20 and [got for got, _ in answers] == [wanted for _, wanted in answers]
    driver.library.standin_reset()
    assert driver.library.hipModuleLoadData(ctypes.byref(ctypes.c_void_p()), image) == 3  # before hipInit


def test_without_a_gpu_a_launch_says_so():
    kernel = on("gfx942", matmul).compile(*operands(64, 64, 32, "float16"), block=(64, 64, 32))
    with pytest.raises(DriverError, match="needs an AMD GPU, and there is none here"):
        loaded(kernel)(1, 2, 3)
