"""Launches through torch's MPS backend, against a stand-in for ``torch.mps.compile_shader`` that runs texts in the emulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from stand_in_mlx import DTYPES, array
from stand_in_torch import Library, MpsTensor, on_mps, torch_with_mps

import tilewright
import tilewright.language as T
from tilewright.errors import MissingCapability, TilewrightError
from tilewright.matmul import arrays
from tilewright.matmul.packed import PackedWeight
from tilewright.runtime import tensors
from tilewright.targets.metal import runtime

METAL = "metal -arch=apple7"


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine whose torch has an MPS device."""
    found = torch_with_mps()
    monkeypatch.setattr(runtime, "_torch_with_mps", lambda name: found)
    monkeypatch.setattr(
        tensors, "_torch_allocator", lambda device: lambda shape, dtype: on_mps(torch.full(shape, 77, dtype=getattr(torch, dtype.carrier)))
    )  # fmt: skip
    return found


N = T.dynamic("N")


@T.prim_func
def scaled(X: T.Tensor((N,), "float16"), scale: T.float32, shift: T.int8, big: T.uint64, Y: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 64), threads=64) as block:
        for i in T.Parallel(64):
            more = T.if_then_else(big > T.cast(1 << 62, "uint64"), 1.0, 0.0)
            Y[block * 64 + i] = T.cast(X[block * 64 + i], "float32") * scale + T.cast(shift, "float32") + more


def test_tensors_scalars_and_sizes_arrive(mac: Any) -> None:
    kernel = tilewright.compile(scaled, target=METAL)
    x, y = on_mps(torch.arange(150).to(torch.float16)), on_mps(torch.full((150,), torch.nan))
    kernel(x, 0.5, -3, (1 << 63) + 5, y)
    assert kernel.launcher.library.launches == [("scaled_kernel", (3, 1, 1), (64, 1, 1))]
    torch.testing.assert_close(torch.Tensor(y), x.float() * 0.5 - 3 + 1, rtol=0, atol=0, check_device=False)
    assert kernel.launcher.notes == []


SCALARS: dict[str, tuple[Any, ...]] = {
    "bool": (False, True), "int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (65535,),
    "int32": (-(1 << 31), (1 << 31) - 1), "uint32": ((1 << 32) - 1,), "int64": (-(1 << 63), (1 << 63) - 1),
    "uint64": ((1 << 63) + 1, (1 << 64) - 1), "float16": (2.0**-24, -65504.0, np.inf), "bfloat16": (2.0**-126, -3.0e38),
    "float32": (2.0**-126, -3.4e38, np.nan), "float8_e4m3fn": (-448.0, 2.0**-9),
}  # fmt: skip
"""Numbers at the ends of each type that a scalar may have."""


def given_back(kind: str) -> Any:
    """A program that writes its scalar to a tensor of its type, beside another tensor."""

    @T.prim_func
    def program(number: getattr(T, kind), X: T.Tensor((8,), "float16"), Y: T.Tensor((64,), kind)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                Y[i] = number

    return program


@pytest.mark.parametrize("kind", SCALARS)
def test_scalars_of_every_type_arrive(mac: Any, kind: str) -> None:
    """Torch hands over int64 and float32 alone."""
    kernel = tilewright.compile(given_back(kind), target=METAL)
    for number in SCALARS[kind]:
        y = on_mps(torch.zeros(64, dtype=getattr(torch, kind)))
        kernel(number, on_mps(torch.zeros(8, dtype=torch.float16)), y)
        held = y.as_subclass(torch.Tensor)
        found = held.float().numpy() if "float" in kind else held.numpy()
        assert np.array_equal(found, rounded(number, kind), equal_nan="float" in kind)


def rounded(number: Any, kind: str) -> np.ndarray:
    """64 times a number of a type, floats as float32."""
    held = np.full(64, number).astype(tilewright.dtype(kind).numpy)
    return held.astype(np.float32) if "float" in kind else held


def test_outputs_are_made_and_memory_that_begins_off_a_vector_has_its_own_variant(mac: Any) -> None:
    kernel = tilewright.compile(scaled, target=METAL, out_idx=[-1])
    whole = on_mps(torch.arange(151).to(torch.float16))
    for first in (0, 1, 3):
        found = kernel(whole[first : first + 148], 1.0, 0, 0)
        assert isinstance(found, MpsTensor)
        assert np.array_equal(np.array(found.tolist()), np.arange(first, first + 148))
    assert len(kernel._variants) > 1


def test_a_grid_without_blocks_launches_nothing(mac: Any) -> None:
    kernel = tilewright.compile(scaled, target=METAL)
    kernel(on_mps(torch.zeros(0, dtype=torch.float16)), 1.0, 0, 0, on_mps(torch.zeros(0)))
    libraries = [one.launcher.library for one in kernel._variants.values()]
    assert all(one is None or one.launches == [] for one in libraries) and any(libraries)


def test_what_atomics_count_in_stays_from_call_to_call(mac: Any) -> None:
    @T.prim_func
    def counts(X: T.Tensor((64,), "int32"), Y: T.Tensor((64,), "int32")):
        calls = T.alloc_global((1,), "int32")
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                Y[i] = X[i]
            if T.get_thread_binding() == 0:
                Y[0] = T.atomic_add(calls[0], 1, return_prev=True)

    kernel = tilewright.compile(counts, target=METAL)
    x, y = on_mps(torch.ones(64, dtype=torch.int32)), on_mps(torch.zeros(64, dtype=torch.int32))
    seen = []
    for _ in range(3):
        kernel(x, y)
        seen.append(y.tolist()[:2])
    assert seen == [[0, 1], [1, 1], [2, 1]]


def test_arrays_beside_tensors_take_one_copy_that_explain_names(mac: Any) -> None:
    kernel = tilewright.compile(scaled, target=METAL, out_idx=[-1])

    @T.prim_func
    def added(X: T.Tensor((64,), "bfloat16"), Y: T.Tensor((64,), "float32"), Z: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                Z[i] = T.cast(X[i], "float32") + Y[i]

    kernel = tilewright.compile(added, target=METAL)
    x = array(np.arange(64) / 4, DTYPES["bfloat16"])
    y, z = on_mps(torch.ones(64)), on_mps(torch.zeros(64))
    mac.uint8, sys_core = torch.uint8, __import__("stand_in_mlx").core()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "mlx.core", sys_core)
        kernel(x, y, z)
        kernel(x, y, z)
        assert np.array_equal(np.array(z.tolist()), np.arange(64) / 4 + 1)
        assert kernel.explain().count("X is copied at each call: torch does not take the memory of a array") == 1
        mac.from_dlpack = lambda value: on_mps(torch.from_numpy(value.flat.view(np.int16)).view(torch.bfloat16))
        shared = tilewright.compile(added, target="metal -arch=apple8")
        shared(x, y, z)  # where torch takes Metal's capsules nothing is copied
        assert "copied" not in shared.explain() and np.array_equal(np.array(z.tolist()), np.arange(64) / 4 + 1)
        del mac.from_dlpack
        with pytest.raises(MissingCapability, match="writes its argument 'Z', and torch cannot share"):
            kernel(on_mps(torch.zeros(64, dtype=torch.bfloat16)), y, array(np.zeros(64, np.float32)))


def test_tensors_of_a_table_are_handed_over_as_they_are(mac: Any) -> None:
    @T.prim_func
    def gathered(table: T.Tensor((3,), T.ptr), Y: T.Tensor((3, 64), "float32")):
        with T.Kernel(3, threads=64) as block:
            one = T.make_tensor(table[block], (64,), "float32")
            for i in T.Parallel(64):
                Y[block, i] = one[i] * 2

    kernel = tilewright.compile(gathered, target=METAL)
    parts, y = [on_mps(torch.full((64,), float(i + 1))) for i in range(3)], on_mps(torch.zeros(3, 64))
    kernel(parts, y)
    assert [row[0] for row in y.tolist()] == [2, 4, 6]


def test_without_a_mac_a_launch_says_what_it_takes() -> None:
    kernel = tilewright.compile(scaled, target=METAL)
    with pytest.raises(MissingCapability, match="takes a Mac and a torch"):
        kernel.launcher


TEXT = """#include <metal_stdlib>
using namespace metal;
[[max_total_threads_per_threadgroup(64)]]
kernel void f(device float* a [[buffer(0)]], constant int64_t* n [[buffer(1)]], uint t [[thread_index_in_threadgroup]]) {
  a[t] = float(n[0]);
}
"""


def tensor() -> Any:
    return on_mps(torch.zeros(64))


WRONG: dict[str, Callable[[], Any]] = {
    "letters outside ASCII": lambda: Library(TEXT + "// ä"),
    "a text that does not compile": lambda: Library(TEXT.replace("float(n[0])", "double(n[0])")),
    "a reference instead of a pointer": lambda: Library(TEXT.replace("constant int64_t* n", "constant int64_t& n")),
    "a name that no kernel has": lambda: Library(TEXT).g(tensor(), 1, threads=64, group_size=64),
    "an argument too few": lambda: Library(TEXT).f(tensor(), threads=64, group_size=64),
    "an argument too many": lambda: Library(TEXT).f(tensor(), 1, 2, threads=64, group_size=64),
    "a tensor of the host": lambda: Library(TEXT).f(torch.zeros(64), 1, threads=64, group_size=64),
    "a number of NumPy's": lambda: Library(TEXT).f(tensor(), np.uint64(1), threads=64, group_size=64),
    "a number that int64 does not have": lambda: Library(TEXT).f(tensor(), 1 << 63, threads=64, group_size=64),
    "an array of NumPy's": lambda: Library(TEXT).f(np.zeros(64, np.float32), 1, threads=64, group_size=64),
    "blocks instead of threads": lambda: Library(TEXT).f(tensor(), 1, threads=1, group_size=64),
    "sizes of two lengths": lambda: Library(TEXT).f(tensor(), 1, threads=(64, 1), group_size=64),
    "four dimensions": lambda: Library(TEXT).f(tensor(), 1, threads=(64, 1, 1, 1), group_size=(64, 1, 1, 1)),
    "more threads than the kernel declares": lambda: Library(TEXT).f(tensor(), 1, threads=128, group_size=128),
    "a grid without threads": lambda: Library(TEXT).f(tensor(), 1, threads=0, group_size=64),
    "a cast that there is not": lambda: Library(TEXT).f(tensor(), 1, threads=64, group_size=64, arg_casts="uint32"),
}


@pytest.mark.parametrize("call", WRONG)
def test_the_stand_in_refuses_wrong_calls(call: str) -> None:
    with pytest.raises((RuntimeError, SyntaxError, TypeError, AssertionError, OverflowError)):
        WRONG[call]()


def test_the_stand_in_takes_a_right_one() -> None:
    given = tensor()
    Library(TEXT).f(given, 7, threads=(64,), group_size=(64,))
    assert given.tolist() == [7.0] * 64


@pytest.mark.parametrize(
    "given",
    [
        lambda: (torch.zeros(64, dtype=torch.float16), 1.0, 0, 0, tensor()),  # on the host
        lambda: (on_mps(torch.zeros(64)), 1.0, 0, 0, tensor()),  # of another type
        lambda: (on_mps(torch.zeros(64, dtype=torch.float16)), 1.0, 300, 0, tensor()),  # a scalar out of range
        lambda: (on_mps(torch.zeros(65, dtype=torch.float16)), 1.0, 0, 0, tensor()),  # of other sizes
        lambda: (on_mps(torch.zeros(64, dtype=torch.float16)), 1.0, 0, 0),  # an argument too few
        lambda: (on_mps(torch.zeros(64, dtype=torch.float16)), "1", 0, 0, tensor()),  # no number
    ],
)
def test_wrong_calls_launch_nothing(mac: Any, given: Callable[[], tuple[Any, ...]]) -> None:
    kernel = tilewright.compile(scaled, target=METAL)
    with pytest.raises(TilewrightError):
        kernel(*given())
    assert kernel.launcher.library is None


def test_memory_is_compared_within_its_own(mac: Any) -> None:
    """Addresses of MPS tensors are handles of their memory: near ones are no overlap, parts of one memory are."""
    kernel = tilewright.compile(scaled, target=METAL)
    bytes_ = on_mps(torch.zeros(4096, dtype=torch.uint8))
    with pytest.raises(TilewrightError, match="shares memory"):
        kernel(bytes_[:128].view(torch.float16), 1.0, 0, 0, bytes_[64:320].view(torch.float32))
    view = tensors.tensor_view(bytes_[64:])
    assert view.device == ("metal", 0) and view.handle == bytes_.untyped_storage().data_ptr() != view.pointer


@pytest.mark.parametrize("rows", [2, 70])
def test_products_with_quantised_weights_run_where_torchs_tensors_are(
    mac: Any, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """The library's own entry, whose device is ``mps`` in torch's words."""
    made, moved, rng = torch.empty, arrays.as_torch, np.random.default_rng(rows)
    monkeypatch.setattr(torch, "empty", lambda *sizes, device=None, **named: on_mps(made(*sizes, **named)))
    monkeypatch.setattr(arrays, "as_torch", lambda array, device: on_mps(moved(array, "cpu")))
    dense = tilewright.quantize(rng.standard_normal((48, 128)).astype(np.float32), "w4a16")
    weight = PackedWeight.pack(dense)
    weight.held = {name: on_mps(torch.from_numpy(of)) if of is not None else None for name, of in weight.held.items()}
    x = on_mps(torch.from_numpy(rng.standard_normal((rows, 128)).astype(np.float16)))
    found = tilewright.quant_matmul(x, weight, out_dtype="float32")
    assert isinstance(found, MpsTensor)
    exact = np.array(x.tolist()) @ dense.to_dense().T
    assert np.abs(np.array(found.tolist()) - exact).max() < 1e-4
