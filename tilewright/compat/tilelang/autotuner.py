"""``tilelang.autotune``: the fastest of several configurations of a decorated function."""

from __future__ import annotations

import functools
import inspect
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.compat.tilelang.kernels import JITImpl, JITKernel, compile, jit
from tilewright.compat.tilelang.pass_configs import check_pass_configs
from tilewright.compat.tilelang.profiler import Profiler, do_bench
from tilewright.compat.tilelang.tensors import ResultsDiffer, TensorSupplyType
from tilewright.errors import TilewrightError
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.options import options
from tilewright.specialization import InvalidUse
from tilewright.texts import read_text, write_text
from tilewright.tuning.search import search

Configs = Iterable[Mapping[str, Any]] | Mapping[str, Sequence[Any]] | Callable[..., Any]

_INPUTS: list[Sequence[object]] = []


def get_autotune_inputs() -> Sequence[object] | None:
    """What candidates are measured on here, None where nobody said."""
    return _INPUTS[-1] if _INPUTS else None


@contextmanager
def set_autotune_inputs(*tensors: object) -> Iterator[None]:
    """What candidates are measured on inside."""
    _INPUTS.append(tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors)
    try:
        yield
    finally:
        _INPUTS.pop()


@dataclass(frozen=True, slots=True)
class Measuring:
    """How candidates are measured and checked."""

    warmup: float = 25
    rep: float = 100
    supply_type: TensorSupplyType = TensorSupplyType.Auto
    supply_prog: Callable[..., Iterable[object]] | None = None
    ref_prog: Callable[..., object] | None = None
    rtol: float = 1e-2
    atol: float = 1e-2
    max_mismatched_ratio: float = 0.01
    skip_check: bool = False
    manual_check_prog: Callable[..., object] | None = None
    cache_input_tensors: bool = True
    made: dict[object, Sequence[object]] = field(default_factory=dict, compare=False, repr=False)
    """Inputs by the shapes and types of parameters: candidates of one problem are measured on the same."""

    def inputs(self, kernel: JITKernel) -> Sequence[object]:
        """Arguments for a candidate."""
        if _INPUTS:
            return _INPUTS[-1]
        key = (kernel.kernel.target.name, *(str(param) for param in kernel.params), kernel.kernel.out_idx)
        if key not in self.made or not self.cache_input_tensors:
            if self.supply_prog is not None:
                self.made[key] = list(self.supply_prog(kernel.params))
            else:
                self.made[key] = Profiler(kernel.kernel, self.supply_type).arguments()
        return self.made[key]

    def reference_milliseconds(self, kernel: JITKernel) -> float | None:
        """The reference's time on a kernel's inputs, where there is one."""
        if self.ref_prog is None:
            return None
        reference, given = self.ref_prog, self.inputs(kernel)
        return float(do_bench(lambda: reference(*given), self.warmup, self.rep))

    def milliseconds(self, kernel: JITKernel) -> float:
        """The time of a candidate; endless where its results are wrong."""
        given = self.inputs(kernel)
        if self.ref_prog is not None and not self.skip_check:
            try:
                Profiler(kernel.kernel).assert_allclose(
                    self.ref_prog, given, self.atol, self.rtol, self.max_mismatched_ratio
                )
            except ResultsDiffer:
                return float("inf")
        if self.manual_check_prog is not None and not self.skip_check:
            try:
                self.manual_check_prog(kernel.kernel(*given), self.ref_prog(*given) if self.ref_prog else None)
            except AssertionError:
                return float("inf")
        return float(do_bench(lambda: kernel.kernel(*given), self.warmup, self.rep))


def _listed(configs: Configs, arguments: tuple[object, ...], named: Mapping[str, object]) -> list[Mapping[str, object]]:
    given: Any = configs
    if callable(configs):
        together = list(inspect.signature(configs).parameters) == ["args", "kwargs"]
        given = configs(arguments, named) if together else configs(*arguments, **named)
    if isinstance(given, Mapping):
        return [dict(zip(given, values, strict=True)) for values in itertools.product(*given.values())]
    return list(given)


@dataclass(eq=False)
class AutoTuneImpl:
    """A decorated function that takes the fastest of its configurations, chosen once for each set of arguments."""

    decorated: JITImpl
    configs: Configs
    measuring: Measuring

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.decorated)
        self._chosen: dict[object, tuple[Mapping[str, object], float]] = {}
        self._kernels: dict[object, JITKernel] = {}

    def __call__(self, *arguments: object, **named: object) -> object:
        configs = _listed(self.configs, () if callable(self.configs) and self.decorated.is_direct else arguments, named)
        if not configs:
            raise InvalidUse("autotune has no configurations", hint="pass configs=[{...}, ...]")
        if set(configs[0]) & set(named):
            return self.decorated(*arguments, **named)
        key = tuple(_key(one) for one in (*arguments, *sorted(named.items())))
        if key not in self._chosen:
            self._choose(key, configs, arguments, named)
        config, _ = self._chosen[key]
        if not self.decorated.is_direct:
            return self._kernels[key]
        return self.decorated(*arguments, **named, **_arguments(config))

    def compile(self, *arguments: object, **named: object) -> object:
        """The fastest kernel for these arguments, without running it on them."""
        if not self.decorated.is_direct:
            return self(*arguments, **named)
        configs = _listed(self.configs, (), named)
        if not configs or set(configs[0]) & set(named):
            return self.decorated.compile(*arguments, **named)

        def build(config: Mapping[str, object]) -> JITKernel:
            return self._built(config, arguments, named)

        best = search(configs, build, self.measuring.milliseconds, topk=len(configs))[0]
        return self._tuned(build(best.options), best.milliseconds, best.options)

    def _built(
        self, config: Mapping[str, object], arguments: tuple[object, ...], named: Mapping[str, object]
    ) -> JITKernel:
        """A candidate's kernel; whatever a function raises for its arguments leaves the candidate out."""
        try:
            return self.decorated.compile(*arguments, **named, **_arguments(config))
        except TilewrightError:
            raise
        except Exception as error:
            raise InvalidUse(f"{dict(config)} makes no kernel: {type(error).__name__}: {error}") from error

    def _tuned(self, kernel: JITKernel, milliseconds: float | None, config: Mapping[str, object]) -> JITKernel:
        made = JITKernel(kernel.kernel, latency=milliseconds, config=config)
        made.ref_latency = self.measuring.reference_milliseconds(kernel)
        return made

    def _choose(
        self,
        key: object,
        configs: Sequence[Mapping[str, object]],
        arguments: tuple[object, ...],
        named: Mapping[str, object],
    ) -> None:
        direct = self.decorated.is_direct

        def build(config: Mapping[str, object]) -> object:
            kernel = self._built(config, arguments, named)
            return functools.partial(self.decorated, *arguments, **named, **_arguments(config)) if direct else kernel

        def measure(made: Any) -> float:
            if direct:
                return float(do_bench(made, self.measuring.warmup, self.measuring.rep))
            return self.measuring.milliseconds(made)

        best = search(configs, build, measure, topk=len(configs))[0]
        assert best.milliseconds is not None
        self._chosen[key] = best.options, best.milliseconds
        if not direct:
            kernel = self._built(best.options, arguments, named)
            self._kernels[key] = self._tuned(kernel, best.milliseconds, best.options)


def _arguments(config: Mapping[str, object]) -> dict[str, object]:
    """What a configuration says to the function; ``pass_configs`` among it say how something is made."""
    check_pass_configs(config.get("pass_configs"))
    return {name: value for name, value in config.items() if name != "pass_configs"}


def _key(value: Any) -> object:
    if hasattr(value, "shape"):
        return tuple(value.shape), str(value.dtype)
    return type(value), str(value)


def autotune(func: Any = None, configs: Configs | None = None, *, timeout: float = 100, **measured: Any) -> Any:
    """Decorator above `jit`: a call without the tuned arguments gets the fastest of `configs`.

    Parameters
    ----------
    configs : dicts of arguments, a dict of lists to combine, or a function that gives either.
    measured : those of `Measuring`; others of TileLang's are accepted.
    """
    if configs is None:
        raise InvalidUse("autotune needs configs", hint="pass configs=[{...}, ...]")
    known = {name: value for name, value in measured.items() if name in Measuring.__dataclass_fields__}
    measuring = Measuring(**known)

    def decorate(decorated: Any) -> AutoTuneImpl:
        return AutoTuneImpl(decorated if isinstance(decorated, JITImpl) else jit(decorated), configs, measuring)

    return decorate if func is None else decorate(func)


@dataclass(frozen=True)
class CompileArgs:
    """Arguments of `jit` that all candidates share."""

    out_idx: Any = None
    execution_backend: str = "auto"
    target: object = "auto"
    target_host: object = None
    verbose: bool = False
    pass_configs: Mapping[object, object] | None = None

    def compile_program(self, program: object) -> JITKernel:
        """The kernel of one traced function."""
        return compile(program, self.out_idx, target=self.target, pass_configs=self.pass_configs)


@dataclass(frozen=True)
class ProfileArgs(Measuring):
    """Arguments of `autotune`; those that `Measuring` has not are accepted."""

    timeout: float = 30
    backend: str = "event"


@dataclass(frozen=True, slots=True)
class AutotuneResult:
    """The fastest configuration.

    Attributes
    ----------
    latency, ref_latency : milliseconds of its kernel, and of the reference where that was timed.
    libcode, func : the emitted text and the traced program.
    """

    latency: float | None = None
    config: Mapping[str, Any] | None = None
    ref_latency: float | None = None
    libcode: str | None = None
    func: Any = None
    kernel: JITKernel | None = None

    def save_to_disk(self, path: Path, verbose: bool = False) -> None:
        """Write what was found to a folder: the configuration, the latencies, the traced program and its outputs."""
        if self.kernel is None:
            raise InvalidUse("this result has no kernel to save", hint="AutoTuner.run() gives one that has")
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        facts = {"latency": self.latency, "ref_latency": self.ref_latency, "config": dict(self.config or {})}
        write_text(folder / "result.json", json.dumps({**facts, "out_idx": self.kernel.out_idx}, default=str))
        write_text(folder / "program.tile", print_program(self.kernel.kernel.function))

    @classmethod
    def load_from_disk(cls, path: Path, compile_args: CompileArgs) -> AutotuneResult:
        """Read what `save_to_disk` wrote; the kernel comes out of the cache, or is compiled."""
        folder = Path(path)
        try:
            facts = json.loads(read_text(folder / "result.json"))
            program = parse(read_text(folder / "program.tile"))
        except (OSError, ValueError) as error:
            raise InvalidUse(f"{folder} holds no result of tuning", hint=f"{error}") from error
        kernel = JITKernel(program, facts["out_idx"], target=compile_args.target)
        kernel.update_tuner_result(facts["latency"], facts["config"], facts["ref_latency"])
        found = facts["latency"], facts["config"], facts["ref_latency"]
        return cls(*found, kernel.kernel_source, kernel.prim_func, kernel)


class AutoTuner:
    """The same, step by step: ``AutoTuner.from_kernel(f, configs).set_compile_args(...).run()``."""

    def __init__(self, fn: Callable[..., object], configs: Configs) -> None:
        self.fn, self.configs = fn, configs
        self._compile: dict[str, Any] = {}
        self._measure: dict[str, Any] = {}
        self._given: tuple[tuple[object, ...], dict[str, object]] = (), {}

    @classmethod
    def from_kernel(cls, kernel: Callable[..., object], configs: Configs) -> AutoTuner:
        """For a function that returns a `T.prim_func`."""
        return cls(kernel, configs)

    def set_compile_args(self, **named: object) -> AutoTuner:
        """Arguments of `jit`."""
        self._compile = named
        return self

    def set_profile_args(self, **named: object) -> AutoTuner:
        """Arguments of `autotune`."""
        self._measure = named
        return self

    def set_kernel_parameters(self, k_parameters: Any, f_parameters: Mapping[str, object]) -> AutoTuner:
        """Say what the function is called with besides a configuration.

        Parameters
        ----------
        k_parameters : positional arguments, and pairs of a name and its value.
        f_parameters : the parameters that the function has, which it says itself.
        """
        positional, named = k_parameters
        self._given = tuple(positional), dict(named)
        return self

    @property
    def cache_dir(self) -> Path:
        """Where results are kept."""
        return options().cache_dir / "autotuner"

    def __call__(self) -> AutotuneResult:
        return self.run()

    def run(
        self,
        warmup: float = 25,
        rep: float = 100,
        timeout: float = 180,
        use_pipeline: bool = False,
        enable_grouped_compile: bool = False,
        group_compile_size: int = 2,
        benchmark_devices: object = None,
        benchmark_multi_gpu: bool = False,
        early_stop: bool = False,
        early_stop_factor: float = 2.0,
    ) -> AutotuneResult:
        """Measure all configurations: they are compiled side by side and measured one after the other.

        Parameters
        ----------
        warmup, rep : milliseconds; `set_profile_args` goes before them.
        timeout, use_pipeline, enable_grouped_compile, group_compile_size, benchmark_devices, benchmark_multi_gpu,
            early_stop, early_stop_factor : accepted for TileLang's sake.
        """
        positional, named = self._given
        decorated = jit(self.fn, **self._compile)
        tuned = autotune(decorated, self.configs, **{"warmup": warmup, "rep": rep, **self._measure})
        kernel = tuned(*positional, **named)
        return AutotuneResult(
            kernel.latency, kernel.config, kernel.ref_latency, kernel.kernel_source, kernel.prim_func, kernel
        )
