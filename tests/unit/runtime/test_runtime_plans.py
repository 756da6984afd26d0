"""Plans of GPU calls, with a driver that records what it is asked for: memory of this machine stands for the device's."""

import contextlib
import ctypes
import gc
import weakref

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.targets.cuda import launcher, target
from tilewright.targets.cuda.driver import Driver, LaunchConfig


class Recording:
    """A driver without a device: launches are noted, every other call succeeds."""

    def __init__(self):
        self.launches, self.contexts = [], []

    def __getattr__(self, name):
        return lambda *arguments: 0

    def cuDriverGetVersion(self, pointer):
        pointer._obj.value = 13000
        return 0

    def cuLaunchKernelEx(self, config, function, addresses, extra):
        words = [ctypes.c_uint64.from_address(address).value for address in addresses]
        self.launches.append((LaunchConfig.from_address(config.value).stream, words))
        return 0


@pytest.fixture
def device(monkeypatch):
    """The library, whose thread has device `current` and stream `stream`."""
    library = Recording()
    library.current, library.stream = 0, 0x50
    driver = Driver(library)

    @contextlib.contextmanager
    def on(index):
        before, library.current = library.current, index
        yield library.contexts.append(index)
        library.current = before

    for module in (launcher, target):
        monkeypatch.setattr(module, "require_driver", lambda doing: driver)
    streams = lambda driver: (lambda: library.current, lambda index: library.stream + index)  # noqa: E731
    monkeypatch.setattr(Driver, "streams", streams)
    monkeypatch.setattr(Driver, "on_device", lambda driver, index: on(index))
    return library


def compiled(function, out_idx=None):
    kernel = tilewright.compile(function, out_idx, target="cuda -arch=sm_80")
    kernel._binder.device = "cpu"
    return kernel


def scaled():
    M, N = T.dynamic("M, N")

    @T.prim_func
    def scaled(X: T.Tensor((M, N), "float32"), factor: T.float32, shift: T.int32, Y: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(M, 4), threads=128) as block:
            for i, j in T.Parallel(4, N):
                Y[block * 4 + i, j] = X[block * 4 + i, j] * factor + T.cast(shift, "float32")

    return scaled


def addresses(*arrays):
    return {array.ctypes.data for array in arrays}


def test_later_calls_pass_their_own_addresses_and_numbers(device):
    kernel = compiled(scaled())
    seen = []
    for rows, factor, shift in ((4, 2.0, 1), (4, 3.0, 1), (4, 2.5, 7), (5, 2.5, 7), (4, 0.5, 1)):
        x, y = np.ones((rows, 8), np.float32), np.empty((rows, 8), np.float32)
        kernel(x, factor, shift, y)
        stream, words = device.launches[-1]
        bits = int(np.float32(factor).view(np.uint32))
        assert stream == 0x50 and addresses(x, y) <= set(words)
        assert any(word & 0xFFFFFFFF == bits for word in words) and any(word & 0xFFFFFFFF == shift for word in words)
        seen.append(len(kernel.plans))
    assert seen == [1, 1, 2, 3, 3]


def test_addresses_pick_variants(device):
    kernel = compiled(scaled())
    memory = np.zeros(256, np.float32)
    start = -(memory.ctypes.data // 4) % 4
    for offset in (0, 1, 2, 1, 0, 2):
        x, y = (memory[begin + offset :][:32].reshape(4, 8) for begin in (start, start + 128))
        kernel(x, 2.0, 1, y)
        assert addresses(x, y) <= set(device.launches[-1][1])
    assert sorted(kernel._variants) == [(4, 4), (8, 8), (16, 16)] and len(device.launches) == 6
    for offset in (0, 1, 2):  # none of them has made another one's launch forgotten
        assert (
            kernel.plans.launch(
                memory[start + offset :][:32].reshape(4, 8), 2.0, 1, memory[start + 128 + offset :][:32].reshape(4, 8)
            )
            is not None
        )


def test_outputs_are_new_each_time(device):
    kernel = compiled(scaled(), out_idx=-1)
    x = np.ones((4, 8), np.float32)
    made = [kernel(x, 2.0, 1) for _ in range(3)]
    assert len(addresses(*made)) == 3
    for array, (_, words) in zip(made, device.launches, strict=True):
        assert addresses(x, array) <= set(words)


def test_tensors_of_another_device_are_worked_on_there(device):
    kernel = compiled(scaled())
    x, y = np.ones((4, 8), np.float32), np.empty((4, 8), np.float32)
    device.current = 1
    for _ in range(3):
        kernel(x, 2.0, 1, y)
    assert [stream for stream, _ in device.launches] == [0x50] * 3 and device.contexts[-2:] == [0, 0]
    assert device.current == 1


def test_the_same_tensor_twice_is_no_promise(device):
    @tilewright.jit(target="cuda -arch=sm_80")
    def added(A, B, twice: bool = False):
        N = T.const("N")
        A: T.Tensor((N,), "float32")
        B: T.Tensor((N,), "float32")
        C = T.empty((N,), "float32")
        with T.Kernel(T.ceildiv(N, 128), threads=128) as block:
            for i in T.Parallel(128):
                C[block * 128 + i] = A[block * 128 + i] + B[block * 128 + i]
        return C

    a, b = np.ones(128, np.float32), np.zeros(128, np.float32)
    added.compile(a, b)._binder.device = "cpu"
    for left, right in ((a, a), (a, a), (a, b), (b, a)):
        made = added(left, right)
        assert addresses(left, right, made) <= set(device.launches[-1][1])


def test_wrong_calls_are_named_after_right_ones(device):
    kernel = compiled(scaled())
    x, y = np.ones((4, 8), np.float32), np.empty((4, 8), np.float32)
    kernel(x, 2.0, 1, y)
    for wrong in ((x, 2.0, 1), (x, 2.0, 1, y[:, :4]), (x, 2.0, 1.5, y), (x, 2.0, 1, x), (x, "2", 1, y)):
        with pytest.raises(tilewright.TilewrightError):
            kernel(*wrong)
    assert len(device.launches) == 1


def test_torch_tensors_too(device):
    torch = pytest.importorskip("torch")
    kernel, returning = compiled(scaled()), compiled(scaled(), out_idx=-1)
    for rows, factor, shift in ((4, 2.0, 1), (4, 3.0, 1), (5, 3.0, 1), (4, -3.0, 1), (4, 3.0, 2), (4, 3, 1)):
        x, y = torch.ones(rows, 8), torch.empty(rows, 8)
        kernel(x, factor, shift, y)
        bits = int(np.float32(factor).view(np.uint32))
        words = device.launches[-1][1]
        assert {x.data_ptr(), y.data_ptr()} <= set(words)
        assert any(word & 0xFFFFFFFF == bits for word in words) and any(word & 0xFFFFFFFF == shift for word in words)
        made = returning(x, factor, shift)
        assert {x.data_ptr(), made.data_ptr()} <= set(device.launches[-1][1]) and made.shape == x.shape
    count = len(device.launches)
    for wrong in ((x, 2.0, 1), (x, 2.0, 1, y[:, :4]), (x, 2.0, 1, x), (x.T, 2.0, 1, y), (x.double(), 2.0, 1, y)):
        with pytest.raises(tilewright.TilewrightError):
            kernel(*wrong)
    assert len(device.launches) == count


@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_tensors_of_a_call_are_not_kept(device, target):
    """A plan knows what a call's tensors are like, and holds none of them: memory of results is free when their users are done."""
    torch = pytest.importorskip("torch")
    make = compiled if target == "cuda" else lambda *of: tilewright.compile(*of, target="cpu")
    kernel, returning = make(scaled()), make(scaled(), -1)
    held = []
    for rows in (4, 4, 5):
        x, y = torch.ones(rows, 8), torch.empty(rows, 8)
        kernel(x, 2.0, 1, y)
        held += [weakref.ref(one) for one in (x, y, returning(x, 2.0, 1))]
    del x, y
    gc.collect()
    assert [one() is None for one in held] == [True] * 9


@pytest.mark.parametrize("dtype, quick", [("float32", True), ("bfloat16", False)])
def test_addresses_of_arrays_that_may_be_written_or_not(dtype, quick):
    @T.prim_func
    def double(A: T.Tensor((8,), dtype), B: T.Tensor((8,), dtype)):
        with T.Kernel(1, threads=1) as _:
            for i in T.Parallel(8):
                B[i] = A[i] + A[i]

    kernel = tilewright.compile(double, target="cpu")
    a, b = (np.arange(8).astype(tilewright.dtype(dtype).numpy) for _ in range(2))
    for _ in range(2):
        kernel(a, b)
        assert ("first_byte" in kernel.plans.get(a, b).__code__.co_names) == quick
        assert np.array_equal(b.astype(np.float32), 2.0 * np.arange(8))
    a.flags.writeable = False  # its memory can only be had the other way
    for _ in range(2):
        b[:] = 0
        kernel(a, b)
        assert np.array_equal(b.astype(np.float32), 2.0 * np.arange(8))


def test_calls_without_tensors_make_their_outputs_on_the_current_device(device):
    @T.prim_func
    def numbers(O: T.Tensor((8,), "float32"), first: T.int32):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                O[i] = T.cast(first + i, "float32")

    kernel = compiled(numbers, out_idx=[0])
    for current, count in ((0, 1), (0, 1), (1, 1)):
        device.current, before = current, len(device.launches)
        made = kernel(3)
        assert len(device.launches) == before + count and addresses(made) <= set(device.launches[-1][1])
