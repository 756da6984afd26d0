"""Launches without a GPU: how arguments are laid out, which attributes go with them, and what errors say."""

from __future__ import annotations

import ctypes
import gc
import struct
import sys
import threading
import types

import pytest
from word_programs import handed_over

import tilewright
from tilewright.errors import DriverError, LaunchFailed
from tilewright.ir.nodes import Allocate
from tilewright.ir.visitor import find
from tilewright.targets.cuda import launcher, workspaces
from tilewright.targets.cuda.driver import Driver, LaunchAttribute, LaunchConfig
from tilewright.targets.cuda.launcher import POINTER, TENSOR_MAP, Kernel, LaunchShape, LaunchState
from tilewright.targets.cuda.recorder import Given, MapOfGiven, record
from tilewright.targets.cuda.workspaces import StreamMemory, Workspaces


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
    kernel.launch = library.cuLaunchKernelEx
    kernel((1, 1, 1), (1, 0))
    assert len(library.launches) == 2
    assert "cuCtxSetCurrent" in [name for name, _ in library.calls]


def arguments_of(library):
    """The 8-byte words that the arguments of the last launch hold."""
    return [ctypes.c_uint64.from_address(address).value for address in library.arguments]


def test_recorded_launches_take_new_addresses_numbers_and_maps(monkeypatch):
    library = FakeLibrary()
    kernel = prepared(library, monkeypatch, LaunchShape(64), (POINTER, "i", "f", TENSOR_MAP, POINTER))
    encoded = []

    def encode(address):
        encoded.append(address)
        return struct.pack("<16Q", *[address + 1] * 16)

    again = record(kernel, (3, 1, 1), [Given(0), 7, Given(2), MapOfGiven(0, encode), Given(1)], 3, 0)
    for first, second, number in ((64, 128, 2.5), (256, 128, -1.0), (64, 512, 0.5), (256, 0, 0.0)):
        again(first, second, number)
        words = arguments_of(library)
        assert words[0] == first and words[4] == second and words[3] == first + 1
        assert words[1] & 0xFFFFFFFF == 7
        assert ctypes.c_float.from_address(library.arguments[2]).value == number
    assert encoded == [64, 256]  # once for each address
    assert [launch[0] for launch in library.launches] == [(3, 1, 1)] * 4 and library.launches[0][3] == 5


def test_recorded_launches_of_nothing(monkeypatch):
    library = FakeLibrary()
    record(prepared(library, monkeypatch, LaunchShape(64)), (0, 1, 1), [Given(0), 1], 1, 0)(64)
    assert library.launches == []


def test_a_refused_recorded_launch_leaves_the_others_usable(monkeypatch):
    library = FakeLibrary()
    kernel = prepared(library, monkeypatch, LaunchShape(64))
    again = record(kernel, (2, 1, 1), [Given(0), 1], 1, 0)
    library.launch_result = 701
    with pytest.raises(LaunchFailed, match=r"launching scale with a grid of .2, 1, 1., 64 threads"):
        again(64)
    library.launch_result = 0
    again(128)
    assert arguments_of(library)[0] == 128


@pytest.fixture
def streams(monkeypatch):
    """A driver whose memory lies at multiples of 4096, the current stream, and whether that is captured."""
    library, state = FakeLibrary(), {"stream": 5, "capture": None}
    fresh = iter(range(4096, 1 << 20, 4096))

    def allocate(pointer, size):
        pointer._obj.value = next(fresh)
        return 0

    def capture(stream, status, number, *rest):
        status._obj.value, number._obj.value = state["capture"] is not None, state["capture"] or 0
        return 0

    library.cuMemAlloc_v2, library.cuStreamGetCaptureInfo_v2 = allocate, capture
    driver = Driver(library)
    monkeypatch.setattr(workspaces, "require_driver", lambda doing: driver)
    monkeypatch.setattr(
        workspaces, "current_stream_functions", lambda driver: (lambda: 0, lambda device: state["stream"])
    )
    monkeypatch.setattr(workspaces, "_ASKED", [lambda: state["capture"] is not None])
    monkeypatch.setattr(workspaces, "MEMORY", StreamMemory())
    return library, state


def workspaces_of(program):
    """A program's workspaces: those that sums pass through, and the words that atomics count in."""
    function = tilewright.compile(program, target="cuda -arch=sm_90a").program.final
    made = {node.buffer.name: node.buffer for node in find(function.body, Allocate) if node.buffer.scope == "global"}
    return Workspaces(function), made["left"], made["there"]


def test_programs_share_memory_of_a_stream_but_for_words_that_atomics_count_in(streams):
    _, state = streams
    one, left, there = workspaces_of(handed_over()[0])
    other, same, again = workspaces_of(handed_over(4)[0])
    assert one.address(left, 1024) == other.address(same, 900) == one.address(left, 100)
    assert len({one.address(left, 1024), one.address(there, 16), other.address(again, 16)}) == 3
    wide = other.address(same, 1025)
    assert wide != one.address(there, 16) and one.address(left, 1024) == wide
    assert workspaces.MEMORY.held == 1024 + 2048
    state["stream"] = 6
    assert wide != one.address(left, 1024)
    state["stream"] = 5
    assert wide == one.address(left, 1024)
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append(one.address(left, 1024)))
    thread.start()
    thread.join()
    assert elsewhere != [wide]


def test_recorded_launches_find_the_workspaces_of_their_stream(streams, monkeypatch):
    library, state = streams
    kernel = prepared(library, monkeypatch, LaunchShape(64), (POINTER, POINTER, POINTER))
    kernel.current_stream = lambda device: state["stream"]
    made, left, there = workspaces_of(handed_over()[0])
    again = record(kernel, (1, 1, 1), [Given(0), made.on_stream(left, 1024), made.on_stream(there, 16)], 1, 0)
    seen = []
    for state["stream"] in (5, 6, 5):
        again(64)
        seen.append(arguments_of(library))
        assert seen[-1] == [64, made.address(left, 1024), made.address(there, 16)]
    assert seen[0] == seen[2] and not set(seen[0][1:]) & set(seen[1][1:])


def test_captures_have_workspaces_of_their_own(streams, monkeypatch):
    class Piece:
        places = iter(range(1 << 20, 1 << 30, 4096))

        def __init__(self, size, **options):
            self.size, self.place = size, next(self.places)

        def numel(self):
            return self.size

        def data_ptr(self):
            return self.place

    torch = types.SimpleNamespace(empty=Piece, uint8=None)
    monkeypatch.setitem(sys.modules, "torch", torch)
    _, state = streams
    made, left, there = workspaces_of(handed_over()[0])
    eager = made.address(left, 1024), made.address(there, 16)
    found = []
    for state["capture"] in (1, 2):
        found.append((made.address(left, 1024), made.address(there, 16)))
        assert found[-1] == (made.address(left, 1024), made.address(there, 16))
        assert found[-1][0] != made.address(left, 2048) == made.address(left, 1024)
        last = made.address(left, 1024)
        workspaces.MEMORY.forget_ended("start", {})
        assert last == made.address(left, 1024)
    state["capture"] = None
    # What belongs to a capture that has ended is given back when garbage is collected.
    assert workspaces.MEMORY._captured and workspaces.MEMORY.forget_ended in gc.callbacks
    gc.collect()
    assert not workspaces.MEMORY._captured
    gc.callbacks.remove(workspaces.MEMORY.forget_ended)
    assert eager == (made.address(left, 1024), made.address(there, 16))
    assert len({*eager, *found[0], *found[1]}) == 6
