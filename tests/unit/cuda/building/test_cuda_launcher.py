"""Launches without a GPU: how arguments are laid out, which attributes go with them, and what errors say."""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
import types

import pytest
from word_programs import handed_over

import tilewright
import tilewright.language as T
from tilewright.errors import DriverError, LaunchFailed
from tilewright.ir import Allocate, find
from tilewright.ir import kernels as kernels_of
from tilewright.targets.cuda import graph_memory, launcher, workspaces
from tilewright.targets.cuda.driver import Driver, LaunchAttribute, LaunchConfig
from tilewright.targets.cuda.graph_memory import GraphMemory
from tilewright.targets.cuda.launcher import TENSOR_MAP, CudaKernel, LaunchShape, LaunchState
from tilewright.targets.cuda.recorder import Given, MapOfGiven, record
from tilewright.targets.cuda.target import Launcher
from tilewright.targets.cuda.workspaces import StreamMemory, Workspaces
from tilewright.targets.gpu.emit import kernel_parameters
from tilewright.targets.gpu.host import POINTER


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
    driver.streams = lambda: (lambda: 0, lambda device: 5)
    return CudaKernel(b"cubin", "scale", codes).prepare(shape)


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


@pytest.mark.parametrize("grids", [(2,), (2, 3)])
def test_a_recorded_program_launches_every_kernel(grids, monkeypatch):
    @T.prim_func
    def program(A: T.Tensor((384,), "float32"), C: T.Tensor((384,), "float32")):
        for grid in grids:
            with T.Kernel(grid, threads=128) as block:
                for i in T.Parallel(128):
                    C[block * 128 + i] = A[block * 128 + i] + 1

    library = FakeLibrary()
    function = tilewright.compile(program, target="cuda -arch=sm_90a").program.final
    kernels = [prepared(library, monkeypatch, LaunchShape(128), (POINTER, POINTER)) for _ in grids]
    again = Launcher(function, launcher.require_driver("launching"), kernels).prepare([64, 128])
    assert library.launches == []
    again(256, 512)
    assert [launch[0] for launch in library.launches] == [(grid, 1, 1) for grid in grids]
    addresses = dict(zip((param.name for param in function.params), (256, 512)))
    assert arguments_of(library) == [addresses[param.name] for param in kernel_parameters(kernels_of(function)[-1])]


class Streams(FakeLibrary):
    """A driver whose memory lies at multiples of 4096, with a current stream that may be captured.

    Attributes
    ----------
    stream, capture : the current stream, and the number of the capture that it takes part in.
    cleared : pieces of memory that were filled with zeros, with their sizes.
    cleared_in : the streams that did it.
    """

    def __init__(self):
        super().__init__()
        self.stream, self.capture, self.active = 5, None, 1
        self.fresh = iter(range(4096, 1 << 20, 4096))
        self.objects, self.owned, self.cleared, self.cleared_in = {}, {}, [], []

    def cuMemAlloc_v2(self, pointer, size):
        pointer._obj.value = next(self.fresh)
        return 0

    def cuMemsetD8Async(self, address, value, size, stream):
        self.cleared.append((address.value, size.value))
        self.cleared_in.append(stream.value)
        return 0

    def cuStreamGetCaptureInfo_v2(self, stream, status, number, graph, *rest):
        status._obj.value = 0 if self.capture is None else self.active
        number._obj.value, graph._obj.value = self.capture or 0, 1000 + (self.capture or 0)
        return 0

    def cuUserObjectCreate(self, made, argument, destroy, references, flags):
        assert (references, flags) == (1, 1)
        made._obj.value = len(self.objects) + 1
        self.objects[made._obj.value] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(destroy.value), argument
        return 0

    def cuGraphRetainUserObject(self, graph, held, references, flags):
        assert (references, flags) == (1, 1)
        self.owned.setdefault(graph.value, []).append(held.value)
        return 0

    def delete_graph(self, capture):
        """What the driver does when the last graph of a capture is gone, on a thread of its own."""
        for held in self.owned.pop(1000 + capture):
            thread = threading.Thread(target=self.objects[held][0], args=(self.objects[held][1],))
            thread.start()
            thread.join()


@pytest.fixture
def streams(monkeypatch):
    library = Streams()
    driver = Driver(library)
    monkeypatch.setattr(workspaces, "require_driver", lambda doing: driver)
    monkeypatch.setattr(graph_memory, "require_driver", lambda doing: driver)
    driver.streams = lambda: (lambda: 0, lambda device: library.stream)
    monkeypatch.setattr(workspaces, "_ASKED", [lambda: library.capture is not None])
    monkeypatch.setattr(workspaces, "MEMORY", StreamMemory())
    monkeypatch.setattr(workspaces, "GRAPHS", GraphMemory())
    return library


def workspaces_of(program):
    """A program's workspaces: those that sums pass through, and the words that atomics count in."""
    function = tilewright.compile(program, target="cuda -arch=sm_90a").program.final
    made = {node.buffer.name: node.buffer for node in find(function.body, Allocate) if node.buffer.scope == "global"}
    return Workspaces(function), made["left"], made["there"]


def test_programs_share_memory_of_a_stream_but_for_words_that_atomics_count_in(streams):
    one, left, there = workspaces_of(handed_over()[0])
    other, same, again = workspaces_of(handed_over(4)[0])
    assert one.address(left, 1024) == other.address(same, 900) == one.address(left, 100)
    assert len({one.address(left, 1024), one.address(there, 16), other.address(again, 16)}) == 3
    wide = other.address(same, 1025)
    assert wide != one.address(there, 16) and one.address(left, 1024) == wide
    assert workspaces.MEMORY.held == 1024 + 2048
    streams.stream = 6
    assert wide != one.address(left, 1024)
    streams.stream = 5
    assert wide == one.address(left, 1024)
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append(one.address(left, 1024)))
    thread.start()
    thread.join()
    assert elsewhere != [wide]


def test_new_workspaces_wait_for_no_work(streams):
    """Zeros come in the stream that counts in them.  In a stream of their own, which the call waited for, they could stand
    behind another stream's work: the driver has few queues for many streams."""
    one, left, there = workspaces_of(handed_over()[0])
    for streams.stream in (5, 6):
        one.address(left, 1024)
        words = one.address(there, 16)
        assert (streams.cleared[-1], streams.cleared_in[-1]) == ((words, 16), streams.stream)
    assert streams.cleared_in == [5, 6], "what holds nothing between calls is left as it is"
    assert not {"cuStreamSynchronize", "cuStreamCreate"} & {name for name, _ in streams.calls}


def test_recorded_launches_find_the_workspaces_of_their_stream(streams, monkeypatch):
    kernel = prepared(streams, monkeypatch, LaunchShape(64), (POINTER, POINTER, POINTER))
    kernel.current_stream = lambda device: streams.stream
    made, left, there = workspaces_of(handed_over()[0])
    again = record(kernel, (1, 1, 1), [Given(0), made.on_stream(left, 1024), made.on_stream(there, 16)], 1, 0)
    seen = []
    for streams.stream in (5, 6, 5):
        again(64)
        seen.append(arguments_of(streams))
        assert seen[-1] == [64, made.address(left, 1024), made.address(there, 16)]
    assert seen[0] == seen[2] and not set(seen[0][1:]) & set(seen[1][1:])


def test_captures_have_workspaces_of_their_own(streams):
    made, left, there = workspaces_of(handed_over()[0])
    eager = made.address(left, 1024), made.address(there, 16)
    found = []
    for streams.capture in (1, 2):
        found.append((made.address(left, 1024), made.address(there, 16)))
        assert found[-1] == (made.address(left, 1024), made.address(there, 16))
        assert found[-1][0] != made.address(left, 2048) == made.address(left, 1024)
    streams.capture = None
    assert eager == (made.address(left, 1024), made.address(there, 16))
    assert len({*eager, *found[0], *found[1]}) == 6


def test_branches_and_threads_of_a_capture_share_nothing(streams):
    made, left, _ = workspaces_of(handed_over()[0])
    streams.capture, found = 1, []
    for streams.stream in (5, 6):
        found.append(made.address(left, 1024))
        thread = threading.Thread(target=lambda: found.append(made.address(left, 1024)))
        thread.start()
        thread.join()
    assert len(set(found)) == 4 and len(streams.owned[1001]) == 1


def test_memory_of_a_graph_that_is_gone_serves_the_next(streams):
    made, left, there = workspaces_of(handed_over()[0])
    streams.capture = 1
    small = made.address(left, 1024)
    first = {small, made.address(left, 2000), made.address(there, 16)}
    streams.capture = 2
    second = {made.address(left, 2000), made.address(there, 16)}
    assert not first & second and workspaces.GRAPHS.idle() == 0
    held = workspaces.GRAPHS.held
    streams.delete_graph(1)
    assert workspaces.GRAPHS.idle() == 1024 + 2048 + 512
    streams.capture, before = 3, len(streams.cleared)
    assert {made.address(left, 1000), made.address(left, 2000), made.address(there, 16)} == first
    assert streams.cleared[before:] == [(made.address(there, 16), 512)], "words to count in are zeros, and nothing else"
    assert workspaces.GRAPHS.idle() == 0 and workspaces.GRAPHS.held == held
    streams.delete_graph(3)  # whose semaphore is the first one's: it was not posted for nothing
    assert workspaces.GRAPHS.idle() == 1024 + 2048 + 512
    streams.delete_graph(2)
    assert workspaces.GRAPHS.idle() == workspaces.GRAPHS.held == held


def test_a_capture_that_has_failed_is_told(streams):
    made, left, _ = workspaces_of(handed_over()[0])
    streams.capture, streams.active = 1, 2
    with pytest.raises(DriverError, match="capturing a launch") as raised:
        made.address(left, 1024)
    assert "the error before this one says why" in str(raised.value)


def test_a_graph_that_refuses_leaves_nothing_behind(streams, monkeypatch):
    made, left, _ = workspaces_of(handed_over()[0])
    streams.capture = 1
    monkeypatch.setattr(streams, "cuGraphRetainUserObject", lambda *rest: 1, raising=False)
    with pytest.raises(DriverError, match="cuGraphRetainUserObject"):
        made.address(left, 1024)
    assert "cuUserObjectRelease" in [name for name, _ in streams.calls] and workspaces.GRAPHS.held == 0


def test_torch_gives_back_what_it_keeps_where_the_device_is_full(streams, monkeypatch):
    full = [True]
    torch = types.SimpleNamespace(cuda=types.SimpleNamespace(empty_cache=full.clear))
    monkeypatch.setitem(sys.modules, "torch", torch)
    allocate = streams.cuMemAlloc_v2
    monkeypatch.setattr(streams, "cuMemAlloc_v2", lambda *given: 2 if full else allocate(*given), raising=False)
    assert workspaces.allocated(100, 0) % 4096 == 0
    full.append(True)
    torch.cuda.empty_cache = lambda: None
    with pytest.raises(DriverError, match="allocating a workspace of 100 bytes") as raised:
        workspaces.allocated(100, 0)
    assert "the device has no memory left" in str(raised.value)


class FakeTorch:
    """As much of torch as says where a launch goes."""

    def __init__(self, internals: dict[str, object]) -> None:
        self._C = types.SimpleNamespace(**internals)
        stream = types.SimpleNamespace(cuda_stream=91)
        self.cuda = types.SimpleNamespace(
            is_available=lambda: True, init=lambda: None, current_device=lambda: 3, current_stream=lambda index: stream
        )


@pytest.mark.parametrize("internals", [{}, {"_cuda_getDevice": lambda: 3}, {"_cuda_getCurrentRawStream": lambda i: 91}])
def test_a_torch_without_its_quick_functions_is_still_one_with_cuda(monkeypatch, internals):
    monkeypatch.setitem(sys.modules, "torch", FakeTorch(internals))
    device, stream = Driver(FakeLibrary()).streams()
    assert device() == 3 and stream(device()) == 91
