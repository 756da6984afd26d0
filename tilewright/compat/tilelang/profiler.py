"""``tilelang.profiler``: arguments for a kernel, comparison with a reference, times."""

from __future__ import annotations

import copy
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import numpy as np

from tilewright.compat.tilelang.tensors import KernelParam, ResultsDiffer, TensorSupplyType, as_torch, filled
from tilewright.ir import Buffer, Var, evaluate, size_variables
from tilewright.language.dtypes import NumberType
from tilewright.libraries import torch
from tilewright.runtime import profiler
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.tensors import is_torch
from tilewright.specialization import InvalidUse
from tilewright.tuning.measure import call_times

MODES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean, "median": statistics.median, "min": min, "max": max,
}  # fmt: skip


def do_bench(
    fn: Callable[[], object],
    warmup: float = 25,
    rep: float = 100,
    _n_warmup: int = 0,
    _n_repeat: int = 0,
    quantiles: Sequence[float] | None = None,
    fast_flush: bool = True,
    backend: str = "event",
    return_mode: str = "median",
    **options: object,
) -> Any:
    """Milliseconds of ``fn()``; on a GPU, of launches with the second-level cache flushed before each.

    Parameters
    ----------
    quantiles : give these of the times, a list, in place of one number.
    return_mode : ``"median"``, ``"mean"``, ``"min"`` or ``"max"`` of the times.
    fast_flush, backend, options : accepted for TileLang's sake.
    """
    if return_mode not in MODES:
        raise InvalidUse(f"there is no return_mode {return_mode!r}", hint=", ".join(map(repr, MODES)))
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        times = call_times(fn, "cuda", _n_repeat or 20)
    else:
        times = profiler.samples(fn, warmup=float(warmup), rep=float(rep))
    return _told(times, quantiles, return_mode)


def _told(times: Sequence[float], quantiles: Sequence[float] | None, return_mode: str) -> float | list[float]:
    if quantiles is not None:
        return [float(one) for one in np.quantile(times, list(quantiles))]
    return float(MODES[return_mode](times))


def bench_with_wall(
    fn: Callable[[], object],
    n_repeat: int,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
    synchronize: Callable[[], object] | None = None,
) -> float | list[float]:
    """Milliseconds of ``fn()`` by the clock; see `do_bench`. `synchronize` is called before each start and each end."""
    times = []
    for _ in range(n_repeat):
        if synchronize is not None:
            synchronize()
        begun = time.perf_counter()
        fn()
        if synchronize is not None:
            synchronize()
        times.append((time.perf_counter() - begun) * 1e3)
    return _told(times, quantiles, return_mode)


def bench_with_cuda_events(
    fn: Callable[[], object],
    cache: object,
    n_repeat: int,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
    device_idx: object = None,
) -> float | list[float]:
    """`do_bench` with a number of launches; `cache` is what TileLang flushes with."""
    return do_bench(fn, _n_repeat=n_repeat, quantiles=quantiles, return_mode=return_mode)


bench_with_cupti = bench_with_cudagraph = bench_with_cuda_events


@contextmanager
def suppress_stdout_stderr() -> Iterator[None]:
    """Print nothing inside."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


class Profiler:
    """Runs and times one kernel on arguments of a kind: tensors of torch where a program has imported it, else of
    NumPy."""

    def __init__(self, kernel: Kernel, supply: TensorSupplyType = TensorSupplyType.Auto) -> None:
        self.kernel, self.supply = kernel, TensorSupplyType.Auto if supply is None else supply

    def _run(self, *given: object) -> Any:
        """What a call of the program's gives: tensors of torch where it has torch."""
        return as_torch(self.kernel(*given), given)

    __call__ = _run

    def with_default_adapter(self, adapter: object) -> Profiler:
        """Itself: it has its kernel."""
        return self

    def arguments(self, known: Mapping[str, int] | None = None) -> list[object]:
        """Inputs of the declared shapes, made where the kernel runs; the same for every kernel of these parameters.
        Sizes that only a call says are `known` by name; others are 1024."""
        given = dict(known or {})
        if sys.modules.get("torch") is None:
            rng = np.random.default_rng(0)
            return [self._filled(one, rng) for one in self.kernel.get_profiler(sizes=given).arguments()]
        return self._made(self.kernel.function.inputs, given)

    def _get_inputs(
        self, with_output: bool = False, dynamic_symbolic_constraints: Mapping[str, int] | None = None
    ) -> list[object]:
        """`arguments` under TileLang's name; with the tensors that a call returns, where they are asked for."""
        given, function = self.arguments(dynamic_symbolic_constraints), self.kernel.function
        if not with_output:
            return given
        results, inputs = iter(self._made(function.outputs, dynamic_symbolic_constraints or {})), iter(given)
        return [next(results if one in function.outputs else inputs) for one in function.params]

    def _made(self, params: Sequence[Buffer | Var], known: Mapping[str, int]) -> list[object]:
        """Tensors of torch's of the declared shapes, and 1 for numbers."""
        device = "cuda" if self.kernel.arch.has_threads else "cpu"
        sizes = {var: known.get(var.name, 1024) for var in size_variables(self.kernel.function)}

        def of(param: Buffer | Var) -> object:
            if isinstance(param, Var):
                return 1
            shape = tuple(int(evaluate(extent, sizes)) for extent in param.shape)
            return filled(NumberType(param.dtype), shape, self.supply, device)

        return [of(param) for param in params]

    def _filled(self, value: object, rng: np.random.Generator) -> object:
        if not isinstance(value, np.ndarray) or value.dtype.kind == "b":
            return value
        if self.supply is TensorSupplyType.Zero:
            return np.zeros_like(value)
        if self.supply is TensorSupplyType.One:
            return np.ones_like(value)
        if self.supply is TensorSupplyType.Integer or value.dtype.kind in "iu":
            return rng.integers(0 if value.dtype.kind == "u" else -2, 3, value.shape).astype(value.dtype)
        if self.supply in (TensorSupplyType.Normal, TensorSupplyType.Randn):
            return value
        return np.asarray(rng.uniform(-1, 1, value.shape)).astype(value.dtype)

    def run_once(self, func: Callable[..., object] | None = None) -> object:
        """One call."""
        return (func or self._run)(*self.arguments())

    def do_bench(
        self,
        func: Callable[..., object] | None = None,
        warmup: float = 25,
        rep: float = 100,
        n_warmup: int = 0,
        n_repeat: int = 0,
        input_tensors: Sequence[object] | None = None,
        backend: str = "event",
        quantiles: Sequence[float] | None = None,
        return_mode: str = "median",
        dynamic_symbolic_constraints: Mapping[str, int] | None = None,
        **options: object,
    ) -> float | list[float]:
        """Milliseconds of the kernel, or of another function of the same arguments.

        Parameters
        ----------
        dynamic_symbolic_constraints : sizes that only a call says, by name.
        quantiles, return_mode, n_warmup, n_repeat, backend, options : as those of `do_bench`.
        """
        given = self.arguments(dynamic_symbolic_constraints) if input_tensors is None else list(input_tensors)
        called = func or self.kernel
        return do_bench(
            lambda: called(*given), warmup, rep, n_warmup, n_repeat, quantiles, backend=backend, return_mode=return_mode
        )

    def assert_allclose(
        self,
        reference_program: Callable[..., object],
        input_tensors: Sequence[object] | None = None,
        atol: float = 1e-2,
        rtol: float = 1e-2,
        max_mismatched_ratio: float = 0.01,
    ) -> None:
        """Compare what the kernel returns with what a reference does; where neither returns anything, what each made of
        the arguments. Raises ResultsDiffer where more than a part of the elements are too far off."""
        given = self.arguments() if input_tensors is None else list(input_tensors)
        own = copy.deepcopy(given)
        found, expected = self._run(*given), reference_program(*own)
        if found is None and expected is None:
            found, expected = given, own
        if found is None:
            raise InvalidUse(
                "this kernel returns nothing to compare",
                hint="name its outputs with out_idx, or let the reference change its arguments",
            )
        for number, (a, b) in enumerate(zip(_results(found), _results(expected), strict=True)):
            left, right = _as_float(a), _as_float(b)
            wrong = ~np.isclose(left, right, rtol=rtol, atol=atol, equal_nan=True)
            if wrong.mean() > max_mismatched_ratio:
                place = tuple(int(index) for index in np.argwhere(wrong)[0])
                raise ResultsDiffer(
                    f"result {number}: {wrong.sum()} of {wrong.size} elements differ, at {place} {left[place]}, "
                    f"not {right[place]}"
                )

    def assert_consistent(self, repeat: int = 10) -> None:
        """Compare several runs on the same arguments with the first. Raises ResultsDiffer where any element of any
        result differs."""
        given = self.arguments()
        first, *others = (self._run(*given) for _ in range(repeat))
        for other in others:
            for number, (a, b) in enumerate(zip(_results(first), _results(other), strict=True)):
                if not np.array_equal(_as_float(a), _as_float(b), equal_nan=True):
                    raise ResultsDiffer(f"result {number} differs from one run to the next")

    def manual_assert_close(
        self,
        reference_program: Callable[..., object],
        input_tensors: Sequence[object] | None = None,
        manual_check_prog: Callable[..., None] | None = None,
    ) -> None:
        """Let a function of two lists of results compare what the kernel returns with what a reference does."""
        given = self.arguments() if input_tensors is None else list(input_tensors)
        if manual_check_prog is None:
            raise InvalidUse("nothing says how to compare", hint="pass manual_check_prog=, or call assert_allclose")
        manual_check_prog(_results(self._run(*given)), _results(reference_program(*given)))

    @property
    def func(self) -> Kernel:
        """The kernel."""
        return self.kernel

    @property
    def params(self) -> list[KernelParam]:
        """The parameters, in the author's order."""
        return KernelParam.of(self.kernel.params)

    @property
    def result_idx(self) -> list[int]:
        """Positions of the results among the parameters."""
        return list(self.kernel.out_idx)


def _results(returned: object) -> list[Any]:
    return list(returned) if isinstance(returned, (list, tuple)) else [returned]


def _as_float(value: torch.Tensor) -> np.ndarray:
    return np.asarray(value.detach().cpu().double() if is_torch(value) else value).astype(np.float64)
