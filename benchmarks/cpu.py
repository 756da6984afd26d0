"""Every kernel of the library on this CPU beside its peers: NumPy, torch and ONNX Runtime where installed, llama.cpp where built.

    python benchmarks/cpu.py [--threads 1,2,8,16] [--only quant] [--markdown] [--clock cpu] [--llama-cpp DIRECTORY]
    python benchmarks/cpu.py --to results.jsonl --minutes 8        # and again, until it says that nothing is left

Each result is printed as it comes, and written to the file of ``--to``: a later run goes on behind those that are there.
``--minutes`` begins no case after so many, so that the whole can be measured where a command may not take long.  All cores
compile the kernels first, which are kept on disk.

``--only layer`` are layers of random shapes through the public entry, in the caches and out, with a summary of means and worst cases
(`cpu_layers.py`); `llama_cpp.py` builds what ``--llama-cpp`` asks for.

A case is one line of `CASES`: a name and a function that makes the callables to compare.  Rivals are measured in
bouts, in turn, so that all of them meet the same moods of a shared machine; times are medians.  Before a bout
there is a rest: threads of torch and ONNX Runtime wait for more work by spinning, and a rival called right
behind them would find its second core taken.  Each number of threads runs in a process of its own, since
some libraries read theirs only once.  On a machine that others keep busy,
``--clock cpu`` counts processor time instead of the clock on the wall (meaningful for one thread only, and there
too others take their share of caches and memory).
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import itertools
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cpu_layers
import numpy as np

import tilewright
from tilewright.kernels.activation_quantization import quantize_activations
from tilewright.kernels.attention import flash_attention
from tilewright.kernels.elementwise import elementwise
from tilewright.kernels.matmul import linear, matmul
from tilewright.kernels.quant_matmul import quant_matmul
from tilewright.kernels.rms_norm import rms_norm_of_long_rows, rms_norm_of_short_rows
from tilewright.kernels.rows import rows_at_once
from tilewright.kernels.softmax import softmax_of_long_rows, softmax_of_short_rows

LLAMA_CPP: Path | None = None
"""Where `llama_cpp.py` has built what it calls."""
HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_ONNX = importlib.util.find_spec("onnxruntime") is not None and importlib.util.find_spec("onnx") is not None


@dataclass
class Rivals:
    """Callables that do the same work.

    Attributes
    ----------
    operations, bytes : of one call; the table shows GOP/s for the first, GB/s where it is 0.
    ours : the kernel of this library; `peers` by name.
    """

    operations: float
    ours: Callable[[], Any]
    peers: dict[str, Callable[[], Any]] = field(default_factory=dict)
    bytes: float = 0.0
    layer: cpu_layers.Layer | None = None


Maker = Callable[[int], Rivals]
"""Makes the rivals for a number of threads."""


def matmul_cases() -> Iterator[tuple[str, Maker]]:
    for n, k in ((4096, 4096), (14336, 4096)):
        for m in (1, 4, 16, 128):
            yield f"fp32 linear {n}x{k} M={m}", lambda t, m=m, n=n, k=k: dense(m, n, k, "float32")
            yield f"bf16 linear {n}x{k} M={m}", lambda t, m=m, n=n, k=k: dense(m, n, k, "bfloat16")
            yield f"int8 linear {n}x{k} M={m}", lambda t, m=m, n=n, k=k: dense(m, n, k, "int8")
    for dtype in ("float32", "bfloat16", "int8"):
        yield f"{dtype} matmul 1024^3", lambda t, d=dtype: square(1024, d)
    yield "int8 matmul 2048^3", lambda t: square(2048, "int8")


def quant_cases() -> Iterator[tuple[str, Maker]]:
    for n, k in ((4096, 4096), (14336, 4096)):
        for bits in (4, 2):
            for m in (1, 4, 16, 128):
                yield (
                    f"quant int{bits} g128 {n}x{k} M={m}",
                    lambda t, m=m, n=n, k=k, b=bits: quantised(m, n, k, b, 128, t),
                )
    for m in (1, 16, 128):
        yield f"quant int4 g32 4096x4096 M={m}", lambda t, m=m: quantised(m, 4096, 4096, 4, 32, t)


def attention_cases() -> Iterator[tuple[str, Maker]]:
    for dtype in ("float32", "bfloat16"):
        for causal in (False, True):
            name = f"attention {dtype}{' causal' if causal else ''} 1x8x1024x64"
            yield name, lambda t, d=dtype, c=causal: attention((1, 8, 1024, 64), d, c)
    yield "attention float32 1x8x777x128", lambda t: attention((1, 8, 777, 128), "float32", False)


def stream_cases() -> Iterator[tuple[str, Maker]]:
    for m, n in ((4096, 4096), (4095, 4001)):
        yield f"stream 2x+1 {m}x{n}", lambda t, m=m, n=n: affine(m, n, t)
        yield f"stream softmax {m}x{n}", lambda t, m=m, n=n: softmax_of(m, n, t)
        yield f"stream rms_norm {m}x{n}", lambda t, m=m, n=n: rms_norm_of(m, n, t)
        yield f"stream quantise int8 {m}x{n}", lambda t, m=m, n=n: token_quantisation(m, n, t)


def layer_cases() -> Iterator[tuple[str, Maker]]:
    for layer in cpu_layers.layers():
        yield layer.title, lambda t, one=layer: layer_of(one, t)


CASES: list[Callable[[], Iterator[tuple[str, Maker]]]] = [
    layer_cases, quant_cases, matmul_cases, attention_cases, stream_cases,
]  # fmt: skip
"""Add a function here to add its cases."""


# Rivals -----------------------------------------------------------------------------------------


def _random(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype == "int8":
        return rng.integers(-127, 128, shape, dtype=np.int8)
    return rng.standard_normal(shape, dtype=np.float32).astype(tilewright.dtype(dtype).numpy)


def _sums(dtype: str) -> dict[str, str]:
    return {"accumulate": "int32", "out": "int32"} if dtype == "int8" else {"accumulate": "float32", "out": "float32"}


def _torch_tensor(array: np.ndarray, dtype: str) -> Any:
    import torch

    if dtype == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def dense(m: int, n: int, k: int, dtype: str) -> Rivals:
    """Activations times a weight that was prepared beforehand."""
    a, w = _random((m, k), dtype), _random((n, k), dtype, 1)
    kernel = linear(n, k, dtype, **_sums(dtype))
    packed = kernel.pack(W=w)
    c = np.empty((m, n), np.int32 if dtype == "int8" else np.float32)
    peers: dict[str, Callable[[], Any]] = {}
    if dtype == "float32":
        peers["numpy"] = lambda: a @ w.T
    if HAS_TORCH:
        import torch

        left, right = _torch_tensor(a, dtype), _torch_tensor(w, dtype)
        if dtype == "int8":
            peers["torch._int_mm"] = lambda: torch._int_mm(left, right.T)
            dynamic = torch.ao.quantization.quantize_dynamic(
                torch.nn.Sequential(torch.nn.Linear(k, n, bias=False)), {torch.nn.Linear}, torch.qint8
            )
            floats = left.float()
            peers["torch dynamic int8"] = lambda: dynamic(floats)
        else:
            peers["torch"] = lambda: torch.nn.functional.linear(left, right)
    return Rivals(2.0 * m * n * k, lambda: kernel(a, packed, c), peers)


def square(n: int, dtype: str) -> Rivals:
    """Two matrices met for the first time."""
    a, b = _random((n, n), dtype), _random((n, n), dtype, 1)
    kernel = matmul.compile(a, b, dtype=dtype, **_sums(dtype))
    peers: dict[str, Callable[[], Any]] = {}
    if dtype == "float32":
        peers["numpy"] = lambda: a @ b
    if HAS_TORCH:
        import torch

        left, right = _torch_tensor(a, dtype), _torch_tensor(b, dtype)
        name, function = ("torch._int_mm", torch._int_mm) if dtype == "int8" else ("torch", torch.mm)
        peers[name] = lambda: function(left, right)
    return Rivals(2.0 * n**3, lambda: kernel(a, b), peers)


def quantised(m: int, n: int, k: int, bits: int, group: int, threads: int) -> Rivals:
    """float32 activations, codes with a scale a group and one zero point, int8 arithmetic on both sides."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 1 << bits, (n, k), dtype=np.uint8)
    scales = (rng.random((k // group, n), dtype=np.float32) + 0.1) * 0.01
    a = _random((m, k), "float32")
    dtype = tilewright.dtype(f"uint{bits}")
    kernel = quant_matmul(n, k, dtype.name, group, zero=1 << (bits - 1))
    packed = kernel.pack(W=tilewright.pack(codes, dtype))
    c = np.empty((m, n), np.float32)
    peers: dict[str, Callable[[], Any]] = {}
    if HAS_ONNX:
        peers["ORT MatMulNBits"] = _onnx_quantised(codes, scales, bits, group, a, threads)
    if HAS_TORCH and bits == 4:
        peers["torch int4pack"] = _torch_int4(codes, scales, group, a)
    return Rivals(2.0 * m * n * k, lambda: kernel(a, packed, scales, c), peers)


def layer_of(layer: cpu_layers.Layer, threads: int) -> Rivals:
    """A layer of a random shape through the public entry."""
    ours, peers = cpu_layers.rivals(layer, threads, _onnx_quantised if HAS_ONNX else None, LLAMA_CPP)
    return Rivals(2.0 * layer.m * layer.n * layer.k * layer.count, ours, peers, layer=layer)


def _onnx_quantised(
    codes: np.ndarray, scales: np.ndarray, bits: int, group: int, a: np.ndarray, threads: int, count: int = 1
) -> Callable[[], Any]:
    """A run of a model of `count` products with weights of the same rows, each from another one on, so that no optimiser finds two alike."""
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    n, k = codes.shape
    weight = tilewright.pack(codes, tilewright.dtype(f"uint{bits}")).reshape(n, k // group, group * bits // 8)
    initial, nodes, results = [], [], []
    for one in range(count):
        initial += [numpy_helper.from_array(np.roll(weight, one, axis=0), f"W{one}")]
        initial += [numpy_helper.from_array(np.roll(scales.T, one, axis=0).copy(), f"S{one}")]
        nodes.append(helper.make_node("MatMulNBits", ["A", f"W{one}", f"S{one}"], [f"Y{one}"], domain="com.microsoft",
                                      K=k, N=n, bits=bits, block_size=group, accuracy_level=4))  # fmt: skip
        results.append(helper.make_tensor_value_info(f"Y{one}", onnx.TensorProto.FLOAT, ["M", n]))
    left = helper.make_tensor_value_info("A", onnx.TensorProto.FLOAT, ["M", k])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph(nodes, "matmul", [left], results, initial), opset_imports=opsets)
    model.ir_version = 9
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"A": a})


def _torch_int4(codes: np.ndarray, scales: np.ndarray, group: int, a: np.ndarray) -> Callable[[], Any]:
    import torch

    weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(torch.from_numpy(codes.astype(np.int32)), 1)
    scale = torch.from_numpy(scales).to(torch.bfloat16)
    both = torch.stack([scale, torch.zeros_like(scale)], dim=-1).contiguous()
    left = torch.from_numpy(a).to(torch.bfloat16)
    return lambda: torch.ops.aten._weight_int4pack_mm_for_cpu(left, weight, group, both)


def attention(shape: tuple[int, int, int, int], dtype: str, causal: bool) -> Rivals:
    """Softmax(Q K^T) V, every head by itself."""
    batch, heads, length, dim = shape
    q, k, v = (_random(shape, dtype, seed) for seed in range(3))
    kernel = flash_attention.compile(q, k, v, causal=causal, dtype=dtype)
    peers: dict[str, Callable[[], Any]] = {}
    if HAS_TORCH:
        import torch

        tensors = [_torch_tensor(array, dtype) for array in (q, k, v)]
        peers["torch SDPA"] = lambda: torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal)
    operations = 4.0 * batch * heads * length * length * dim / (2 if causal else 1)
    return Rivals(operations, lambda: kernel(q, k, v), peers)


def copying(bytes_: int, threads: int) -> Callable[[], Any]:
    """memcpy of half as many bytes, so that as many are read and written: what a kernel bound by memory could reach."""
    half = bytes_ // 2 // threads
    pairs = [(np.ones(half, np.uint8), np.ones(half, np.uint8)) for _ in range(threads)]
    places = [(to.ctypes.data, source.ctypes.data) for to, source in pairs]
    if threads == 1:
        return lambda _=pairs: ctypes.memmove(*places[0], half)
    pool = ThreadPoolExecutor(threads)
    return lambda _=pairs: list(pool.map(lambda place: ctypes.memmove(*place, half), places))


def into_given_memory(kernel: tilewright.Kernel) -> tilewright.Kernel:
    """The kernel with its outputs as arguments: fresh memory would cost more than the kernel."""
    return tilewright.compile(replace(kernel.function, outputs=()))


def affine(m: int, n: int, threads: int) -> Rivals:
    """The cheapest function of every element."""
    x, y = _random((m, n), "float32"), np.empty((m, n), np.float32)
    kernel = into_given_memory(elementwise(lambda a: a * 2.0 + 1.0, [(m, n)], ["float32"], "float32"))
    return Rivals(0, lambda: kernel(x, y), {"memcpy": copying(2 * x.nbytes, threads)}, 2.0 * x.nbytes)


def softmax_of(m: int, n: int, threads: int) -> Rivals:
    x, y = _random((m, n), "float32"), np.empty((m, n), np.float32)
    rows = rows_at_once(n, x)
    made = softmax_of_short_rows.compile(x, block_M=rows) if rows else softmax_of_long_rows.compile(x)
    kernel = into_given_memory(made)
    peers: dict[str, Callable[[], Any]] = {"memcpy": copying(2 * x.nbytes, threads)}
    if HAS_TORCH:
        import torch

        tensor, result = torch.from_numpy(x), torch.empty(m, n)
        peers["torch"] = lambda: torch.softmax(tensor, -1, out=result)
    return Rivals(0, lambda: kernel(x, y), peers, 2.0 * x.nbytes)


def rms_norm_of(m: int, n: int, threads: int) -> Rivals:
    x, weight, y = _random((m, n), "float32"), _random((n,), "float32", 1), np.empty((m, n), np.float32)
    rows = rows_at_once(n, x)
    short = rms_norm_of_short_rows.compile(x, weight, block_M=rows) if rows else None
    kernel = into_given_memory(short or rms_norm_of_long_rows.compile(x, weight))
    peers: dict[str, Callable[[], Any]] = {"memcpy": copying(2 * x.nbytes, threads)}
    if HAS_TORCH:
        import torch

        tensor, scale = torch.from_numpy(x), torch.from_numpy(weight)
        peers["torch (allocates)"] = lambda: torch.nn.functional.rms_norm(tensor, (n,), scale, 1e-6)
    return Rivals(0, lambda: kernel(x, weight, y), peers, 2.0 * x.nbytes)


def token_quantisation(m: int, n: int, threads: int) -> Rivals:
    x, codes, scales = _random((m, n), "float32"), np.empty((m, n), np.int8), np.empty((m, 1), np.float32)
    kernel, moved = quantize_activations(n, "float32"), x.nbytes + codes.nbytes
    return Rivals(0, lambda: kernel(x, codes, scales), {"memcpy": copying(moved, threads)}, moved)


# Measuring --------------------------------------------------------------------------------------


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


REST_SECONDS = 0.1
"""ONNX Runtime's threads spin for more than 20 ms after their last call."""
WARMING_SECONDS = 0.01


def measure(rivals: Rivals, seconds: float, clock: Callable[[], float], bouts: int) -> dict[str, float]:
    """Median seconds of each rival, which get `seconds` each, in so many turns."""
    functions = {"tilewright": rivals.ours, **rivals.peers}
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    for _ in range(bouts):
        for name, function in functions.items():
            samples[name] += bout(function, seconds / bouts, clock)
    return {name: statistics.median(times) for name, times in samples.items()}


def bout(function: Callable[[], Any], seconds: float, clock: Callable[[], float]) -> list[float]:
    """Times of calls in a row: a rest, calls that do not count, then at least one that does."""
    time.sleep(REST_SECONDS)
    end = time.perf_counter() + WARMING_SECONDS
    function()
    while time.perf_counter() < end:
        function()
    samples = []
    end = time.perf_counter() + seconds
    while not samples or time.perf_counter() < end:
        started = clock()
        function()
        samples.append(clock() - started)
    return samples


def report(name: str, threads: int, rivals: Rivals, times: dict[str, float], markdown: bool) -> str:
    """One line of the table: time and rate of the kernel, and of each peer with the ratio of times."""

    def rate(seconds: float) -> str:
        return (
            f"{rivals.operations / seconds / 1e9:.0f} GOP/s"
            if rivals.operations
            else f"{rivals.bytes / seconds / 1e9:.1f} GB/s"
        )

    ours = times["tilewright"]
    peers = "; ".join(f"{peer} {t * 1e3:.3f} ms (x{t / ours:.2f})" for peer, t in times.items() if peer != "tilewright")
    cells = [name, str(threads), f"{ours * 1e3:.3f} ms", rate(ours), peers]
    return (
        "| " + " | ".join(cells) + " |"
        if markdown
        else f"{name:34} {threads}t  {ours * 1e3:9.3f} ms {rate(ours):>12}   {peers}"
    )


class Results:
    """What was measured so far on each number of threads, kept in a file where one is given: seconds by rival."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        lines = file.read_text().splitlines() if file is not None and file.exists() else []
        records = [json.loads(line) for line in lines]
        self.known = {(one["case"], one["threads"]): one["seconds"] for one in records}

    def add(self, case: str, threads: int, times: dict[str, float]) -> None:
        self.known[case, threads] = times
        if self.file is not None:
            with self.file.open("a") as file:
                print(json.dumps({"case": case, "threads": threads, "seconds": times}), file=file)


def all_cases(only: str) -> Iterator[tuple[str, Maker]]:
    """The cases whose name contains a text, by name."""
    return ((name, make) for name, make in itertools.chain.from_iterable(cases() for cases in CASES) if only in name)


def compile_ahead(names: Iterable[str]) -> None:
    """Compile the kernels of cases on all cores; a layer's once, for all its rows and places."""
    layers = {layer.title: replace(layer, m=1, outside=False) for layer in cpu_layers.layers()}
    cases = dict.fromkeys(layers.get(name, name) for name in names)
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compiled, cases))


def compiled(case: str | cpu_layers.Layer) -> None:
    """Make the callables of one case, which compiles our kernel and keeps it on disk."""
    if isinstance(case, str):
        next(make for name, make in all_cases(case) if name == case)(1)
    else:
        cpu_layers.rivals(case, 1, None, None)


def run(threads: int, results: Results, options: argparse.Namespace) -> None:
    """All cases that are not known yet in this process, whose environment already fixes the number of threads."""
    if HAS_TORCH:
        import torch

        torch.set_num_threads(threads)
    for name, make in all_cases(options.only):
        if (name, threads) in results.known:
            continue
        if time.time() > options.until:
            return
        rivals = make(threads)
        times = measure(rivals, options.seconds, CLOCKS[options.clock], options.bouts)
        results.add(name, threads, times)
        print(report(name, threads, rivals, times, options.markdown), flush=True)
    layers = {layer.title: layer for layer in cpu_layers.layers()}
    found = [
        (layers[case], times) for (case, count), times in results.known.items() if count == threads and case in layers
    ]
    for line in cpu_layers.summary(found, threads):
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    counts = ",".join(str(count) for count in (1, 2, 8, 16) if count <= (os.cpu_count() or 1))
    parser.add_argument("--threads", default=counts, help="numbers of threads, one run each")
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--seconds", type=float, default=0.3, help="of measuring each rival of a case")
    parser.add_argument("--bouts", type=int, default=5, help="in which it is measured, each behind a rest")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    parser.add_argument(
        "--shapes", type=int, default=cpu_layers.SHAPES, help="of layers, in the caches and as many outside"
    )
    parser.add_argument("--rows", default=",".join(map(str, cpu_layers.ROWS)), help="of the activations of layers")
    parser.add_argument("--llama-cpp", type=Path, help="where benchmarks/llama_cpp.py has built it")
    parser.add_argument("--to", type=Path, help="file of results, one a line; those that it has are not measured again")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which no case is begun")
    parser.add_argument("--until", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--child", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    cpu_layers.SHAPES, cpu_layers.ROWS = options.shapes, tuple(map(int, options.rows.split(",")))
    if options.child:
        global LLAMA_CPP
        LLAMA_CPP = options.llama_cpp
        run(options.child, Results(options.to), options)
        return
    until = time.time() + 60 * options.minutes
    if options.markdown:
        print(
            "| case | threads | time | rate | peers (time, their time over ours) |\n| --- | --- | --- | --- | --- |",
            flush=True,
        )
    every = list(dict.fromkeys(int(count) for count in options.threads.split(",")))
    known = Results(options.to).known
    compile_ahead(n for n, _ in all_cases(options.only) if any((n, threads) not in known for threads in every))
    for threads in every:
        names = ("TILEWRIGHT_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        environment = {**os.environ, **{name: str(threads) for name in names}}
        own = ["--child", str(threads), "--until", str(until)]
        subprocess.run([sys.executable, __file__, *sys.argv[1:], *own], env=environment, check=True)
    if options.to is not None:
        known = Results(options.to).known
        left = sum((name, threads) not in known for threads in every for name, _ in all_cases(options.only))
        print(f"{left} cases are left: run the same command again" if left else "nothing is left", flush=True)


if __name__ == "__main__":
    main()
