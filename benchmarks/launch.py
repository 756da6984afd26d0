"""What a call costs its host: whole calls beside ``torch.add`` in the same run, and the parts they are made of.

    python benchmarks/launch.py

Microseconds of one call among many that are not waited for, the least of several rounds in turn.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import torch

import tilewright
import tilewright.language as T
from tilewright.targets.cuda.driver import find_driver


@tilewright.jit(out_idx=-1)
def add_factory(size: int, dtype: str = "float32"):
    @T.prim_func
    def add(A: T.Tensor((size,), dtype), B: T.Tensor((size,), dtype), C: T.Tensor((size,), dtype)):
        with T.Kernel(T.ceildiv(size, 1024), threads=256) as block:
            for i in T.Parallel(1024):
                C[block * 1024 + i] = A[block * 1024 + i] + B[block * 1024 + i]

    return add


@tilewright.jit
def add_direct(A, B):
    N = T.const("N")
    A: T.Tensor((N,), "float32")
    B: T.Tensor((N,), "float32")
    C = T.empty((N,), "float32")
    with T.Kernel(T.ceildiv(N, 1024), threads=256) as block:
        for i in T.Parallel(1024):
            C[block * 1024 + i] = A[block * 1024 + i] + B[block * 1024 + i]
    return C


def microseconds(cases: dict[str, Callable[[], Any]], count: int = 200, rounds: int = 25) -> dict[str, float]:
    """Host time of one call of each, in turn: the queue is empty at the start of a round and never full in it."""
    best = dict.fromkeys(cases, 1e9)
    for _ in range(rounds):
        for name, call in cases.items():
            for _ in range(10):
                call()
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(count):
                call()
            best[name] = min(best[name], (time.perf_counter() - started) / count)
    return {name: seconds * 1e6 for name, seconds in best.items()}


def driver_calls() -> dict[str, Callable[[], Any]]:
    """The bare driver call: through ctypes with and without releasing the interpreter's lock, and cuda-bindings."""
    driver = find_driver()
    assert driver is not None
    context = ctypes.c_void_p()
    calls: dict[str, Callable[[], Any]] = {}
    for name, library in (("ctypes", ctypes.CDLL("libcuda.so.1")), ("ctypes, lock held", ctypes.PyDLL("libcuda.so.1"))):
        function, pointer = library.cuCtxGetCurrent, ctypes.byref(context)
        calls[f"cuCtxGetCurrent by {name}"] = lambda function=function, pointer=pointer: function(pointer)
    try:
        from cuda.bindings import driver as bindings
    except ImportError:
        return calls
    calls["cuCtxGetCurrent by cuda-bindings"] = bindings.cuCtxGetCurrent
    return calls


def main() -> None:
    size = 4096
    a, b = (torch.randn(size, device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    kernel = add_factory(size)
    given = tilewright.compile(add_factory.trace(size))
    assert torch.equal(kernel(a, b), a + b) and torch.equal(add_direct(a, b), a + b)
    given(a, b, out)
    cases: dict[str, Callable[[], Any]] = {
        "torch.add(a, b)": lambda: torch.add(a, b),
        "torch.add(a, b, out=c)": lambda: torch.add(a, b, out=out),
        "kernel(a, b), allocates": lambda: kernel(a, b),
        "jit function(a, b), allocates": lambda: add_direct(a, b),
        "kernel(a, b, c)": lambda: given(a, b, out),
    }
    plan = given.plans.get(a, b, out)
    assert plan is not None
    launch = plan.__globals__["launch"]
    pointers = (a.data_ptr(), b.data_ptr(), out.data_ptr())
    cases |= {
        "  its plan alone": lambda: plan(a, b, out),
        "  its launch alone": lambda: launch(*pointers),
        "  looking the plan up": lambda: given.plans.get(a, b, out),
        "torch.empty": lambda: torch.empty((size,), dtype=torch.float32, device="cuda"),
        "torch.empty_strided": lambda: torch.empty_strided((size,), (1,), dtype=torch.float32, device="cuda"),
        "torch._C._dynamo.guards._empty_strided_cuda": lambda: torch._C._dynamo.guards._empty_strided_cuda(
            (size,), (1,), torch.float32
        ),
        "torch's current stream": lambda: torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice()),
        "an empty call": lambda: None,
    } | driver_calls()
    for name, found in microseconds(cases).items():
        print(f"{name:48s} {found:7.2f} us", flush=True)


if __name__ == "__main__":
    main()
