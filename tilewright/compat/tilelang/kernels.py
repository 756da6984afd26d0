"""``tilelang.jit`` and ``tilelang.compile``, and the kernel object that both give."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from tilewright import specialization
from tilewright.compat.tilelang.profiler import Profiler, TensorSupplyType
from tilewright.runtime.kernel import Kernel
from tilewright.specialization import InvalidUse, JITFunction


class PassConfigKey(str, Enum):
    """Keys of ``pass_configs``.  All of them say how something is made, which tilewright decides for itself."""

    TL_CONFIG_INDEX_BITWIDTH = "tl.config_index_bitwidth"
    TL_DEVICE_COMPILE_FLAGS = "tl.device_compile_flags"
    TL_DISABLE_DATA_RACE_CHECK = "tl.disable_data_race_check"
    TL_DISABLE_FAST_MATH = "tl.disable_fast_math"
    TL_DISABLE_SHARED_MEMORY_REUSE = "tl.disable_shared_memory_reuse"
    TL_DISABLE_TMA_LOWER = "tl.disable_tma_lower"
    TL_DISABLE_THREAD_STORAGE_SYNC = "tl.disable_thread_storage_sync"
    TL_DISABLE_VECTORIZE_256 = "tl.disable_vectorize_256"
    TL_DISABLE_WARP_SPECIALIZED = "tl.disable_warp_specialized"
    TL_DISABLE_WGMMA = "tl.disable_wgmma"
    TL_ENABLE_AGGRESSIVE_SHARED_MEMORY_MERGE = "tl.enable_aggressive_shared_memory_merge"
    TL_ENABLE_ASYNC_COPY = "tl.enable_async_copy"
    TL_ENABLE_FAST_MATH = "tl.enable_fast_math"
    TL_ENABLE_PTXAS_VERBOSE_OUTPUT = "tl.enable_ptxas_verbose_output"
    TL_LAYOUT_VISUALIZATION_ENABLE = "tl.layout_visualization_enable"
    TL_PTXAS_REGISTER_USAGE_LEVEL = "tl.ptxas_register_usage_level"
    TL_SIMPLIFY = "tl.Simplify"


class JITKernel:
    """A compiled kernel with TileLang's methods; what is not here is `tilewright.Kernel`'s.

    Attributes
    ----------
    latency, config, ref_latency : milliseconds, options and the reference's milliseconds, where it was tuned.
    """

    def __init__(self, kernel: Kernel, latency: float | None = None, config: Mapping[str, Any] | None = None) -> None:
        self.kernel, self.latency, self.config = kernel, latency, config
        self.ref_latency: float | None = None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.kernel(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        """The emitted text."""
        return self.kernel.get_kernel_source()

    def get_profiler(self, tensor_supply_type: TensorSupplyType = TensorSupplyType.Auto) -> Profiler:
        """A profiler on arguments of a kind."""
        return Profiler(self.kernel, tensor_supply_type)


def _check(pass_configs: Mapping[Any, Any] | None) -> None:
    known = {key.value for key in PassConfigKey}
    for key in pass_configs or {}:
        if getattr(key, "value", key) not in known and not str(key).startswith(("tirx.", "tir.")):
            raise InvalidUse(f"pass_configs has no key {key!r}", hint="tilelang.PassConfigKey lists the keys")


def compile(
    func: Any, out_idx: int | Sequence[int] | None = None, execution_backend: Any = None, target: Any = "auto",
    target_host: Any = None, verbose: bool | None = None, pass_configs: Mapping[Any, Any] | None = None, compile_flags: Any = None,
) -> JITKernel:  # fmt: skip
    """`tilewright.compile`.

    Parameters
    ----------
    execution_backend, target_host, verbose, pass_configs, compile_flags : accepted; keys of `pass_configs` are checked.
    """
    _check(pass_configs)
    return JITKernel(specialization.compile(func, out_idx, "auto" if target is None else target))


def par_compile(funcs: Iterable[Any], *arguments: Any, **options: Any) -> list[JITKernel]:
    """`compile` of several functions, whose binaries are built side by side."""
    options.pop("num_workers", None), options.pop("ignore_error", None)
    made = [compile(function, *arguments, **options) for function in funcs]
    for one in made:
        one.kernel.begin()
    return made


class JITImpl:
    """A decorated function: a factory gives kernels, a direct function runs."""

    def __init__(self, function: Callable[..., Any], out_idx: Any, target: Any) -> None:
        functools.update_wrapper(self, function)
        self.jitted = specialization.jit(function, out_idx=out_idx, target=target)
        self.is_direct = isinstance(self.jitted, JITFunction)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.jitted(*arguments, **named) if self.is_direct else self.compile(*arguments, **named)

    def compile(self, *arguments: Any, **named: Any) -> JITKernel:
        """The kernel, without running it."""
        return JITKernel(self.jitted.compile(*arguments, **named))

    def get_tir(self, *arguments: Any, **named: Any) -> Any:
        """The traced program."""
        return self.jitted.trace(*arguments, **named)

    def get_kernel_source(self, *arguments: Any, **named: Any) -> str:
        """The emitted text."""
        return self.compile(*arguments, **named).get_kernel_source()

    def par_compile(self, configs: Iterable[Any], num_workers: int | None = None, ignore_error: bool = False) -> Any:
        """A kernel for each set of arguments (dicts or tuples)."""
        made = [self.compile(**one) if isinstance(one, Mapping) else self.compile(*one) for one in configs]
        for kernel in made:
            kernel.kernel.begin()
        return made


def jit(
    func: Callable[..., Any] | None = None, *, out_idx: Any = None, target: Any = "auto", target_host: Any = None,
    execution_backend: Any = None, verbose: bool | None = None, pass_configs: Mapping[Any, Any] | None = None,
    debug_root_path: Any = None, compile_flags: Any = None,
) -> Any:  # fmt: skip
    """`tilewright.jit`, bare or with arguments; see `compile` for those that are only accepted."""
    _check(pass_configs)
    target = "auto" if target is None else target
    if func is None:
        return lambda function: JITImpl(function, out_idx, target)
    return JITImpl(func, out_idx, target)
