"""Launches without a GPU: how arguments are laid out, which attributes go with them, and what errors say."""

from __future__ import annotations

import ctypes
import struct

import pytest

from tilewright.errors import DriverError, LaunchFailed
from tilewright.targets.cuda import launcher
from tilewright.targets.cuda.driver import Driver, LaunchAttribute, LaunchConfig
from tilewright.targets.cuda.launcher import POINTER, TENSOR_MAP, Kernel, LaunchShape, LaunchState


class FakeLibrary:
    """A driver that records its calls and answers what a test wants."""

    def __init__(self, version=13000, launch=0):
        self.version, self.launch_result, self.launches, self.calls = version, launch, [], []

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments):
            self.calls.append((name, arguments))
            return 0

        return call

    def cuDriverGetVersion(self, pointer):
        pointer._obj.value = self.version
        return 0

    def cuDeviceGetCount(self, pointer):
        pointer._obj.value = 1
        return 0

    def cuGetErrorName(self, number, pointer):
        pointer._obj.value = b"CUDA_ERROR_OF_SOME_KIND"
        return 0

    def cuDevicePrimaryCtxRetain(self, pointer, device):
        pointer._obj.value = 77
        return 0

    def cuLaunchKernelEx(self, config, function, addresses, extra):
        config = LaunchConfig.from_address(config.value)
        numbers = [config.attributes[i].id for i in range(config.attribute_count)]
        self.launches.append((tuple(config.grid), tuple(config.block), config.shared_bytes, config.stream, numbers))
        self.arguments = list(addresses)
        return self.launch_result


def prepared(library, monkeypatch, shape, codes=(POINTER, "i")):
    driver = Driver(library)
    monkeypatch.setattr(launcher, "require_driver", lambda doing: driver)
    monkeypatch.setattr(launcher, "current_stream_functions", lambda driver: (lambda: 0, lambda device: 5))
    return Kernel(b"cubin", "scale", codes).prepare(shape)


def test_structures_have_the_drivers_sizes():
    assert ctypes.sizeof(LaunchConfig) == 56 and ctypes.sizeof(LaunchAttribute) == 72
    assert LaunchConfig.stream.offset == 32 and LaunchAttribute.value.offset == 8


def test_arguments_are_laid_out_as_the_device_reads_them():
    state = LaunchState((POINTER, "i", TENSOR_MAP, "b", "d"), LaunchShape(32))
    state.set((1, 1, 1), 0, (0x1234567890, -7, bytes(range(128)), 3, 2.5))
    first = state.addresses[0]
    assert [address - state.config.value for address in state.addresses] == [56, 64, 128, 256, 264]
    assert ctypes.c_uint64.from_address(first).value == 0x1234567890
    assert ctypes.c_int32.from_address(state.addresses[1]).value == -7
    assert ctypes.string_at(state.addresses[2], 128) == bytes(range(128))
    assert ctypes.c_int8.from_address(state.addresses[3]).value == 3
    assert ctypes.c_double.from_address(state.addresses[4]).value == 2.5


def test_a_launch(monkeypatch):
    library = FakeLibrary()
    shape = LaunchShape(384, 200_000, (2, 1, 1), cooperative=True, dependent=True)
    kernel = prepared(library, monkeypatch, shape)
    kernel((6, 2, 1), (64, 3))
    kernel((4, 1, 1), (64, 3), stream=9)
    kernel((0, 1, 1), (64, 3))
    assert library.launches == [
        ((6, 2, 1), (384, 1, 1), 200_000, 5, [4, 2, 6]),
        ((4, 1, 1), (384, 1, 1), 200_000, 9, [4, 2, 6]),
    ]
    loads = [name for name, _ in library.calls if name == "cuModuleLoadData"]
    assert len(loads) == 1
    more_shared = [arguments for name, arguments in library.calls if name == "cuFuncSetAttribute"]
    assert [arguments[1:] for arguments in more_shared] == [(8, 200_000)]


def test_attributes_carry_their_values():
    attributes = launcher.launch_attributes(LaunchShape(32, cluster=(4, 2, 1), dependent=True))
    assert [(a.id, tuple(a.value[:3])) for a in attributes] == [(4, (4, 2, 1)), (6, (1, 0, 0))]


def test_large_clusters_ask_leave(monkeypatch):
    library = FakeLibrary()
    prepared(library, monkeypatch, LaunchShape(128, cluster=(16, 1, 1)))((16, 1, 1), (0, 0))
    assert (14, 1) in [arguments[1:] for name, arguments in library.calls if name == "cuFuncSetAttribute"]


def test_a_refused_launch_says_what_was_asked(monkeypatch):
    kernel = prepared(FakeLibrary(launch=701), monkeypatch, LaunchShape(1024, 1000))
    with pytest.raises(
        LaunchFailed, match=r"launching scale with a grid of .1, 1, 1., 1024 threads, 1000 bytes"
    ) as caught:
        kernel((1, 1, 1), (0, 0))
    assert "more registers or shared memory" in str(caught.value)
    with pytest.raises(LaunchFailed):  # the state went back to the pool: the process goes on
        kernel((1, 1, 1), (0, 0))


def test_a_wrong_value_leaves_the_kernel_usable(monkeypatch):
    library = FakeLibrary()
    kernel = prepared(library, monkeypatch, LaunchShape(32))
    with pytest.raises(struct.error):
        kernel((1, 1, 1), ("address", 0))
    kernel((1, 1, 1), (1, 0))
    assert len(library.launches) == 1


def test_an_old_driver_is_named():
    with pytest.raises(DriverError, match=r"speaks CUDA 11\.8, and launching k needs 12\.0"):
        Driver(FakeLibrary(version=11080)).require("launching k")


def test_a_thread_without_context_gets_one(monkeypatch):
    library = FakeLibrary()
    kernel = prepared(library, monkeypatch, LaunchShape(32))
    answers = [201, 0]
    original = library.cuLaunchKernelEx
    library.cuLaunchKernelEx = lambda *arguments: (original(*arguments), answers.pop(0))[1]
    kernel._launch = library.cuLaunchKernelEx
    kernel((1, 1, 1), (1, 0))
    assert len(library.launches) == 2
    assert "cuCtxSetCurrent" in [name for name, _ in library.calls]
