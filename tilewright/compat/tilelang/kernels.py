"""``tilelang.jit`` and ``tilelang.compile``, and the kernel object that both give."""

from __future__ import annotations

import functools
import inspect
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tilewright import specialization
from tilewright.compat.tilelang.engine import CompiledArtifact, has_changes, postprocessed, source_of
from tilewright.compat.tilelang.pass_configs import check_pass_configs, texts_before
from tilewright.compat.tilelang.profiler import Profiler
from tilewright.compat.tilelang.targets import request
from tilewright.compat.tilelang.tensors import KernelParam, TensorSupplyType, as_torch
from tilewright.ir.nodes import Function
from tilewright.ir.walking import kernels as kernels_of
from tilewright.language import PrimFunc
from tilewright.language.compiler_flags import said_before
from tilewright.runtime.kernel import Kernel
from tilewright.specialization import InvalidUse, JITFunction
from tilewright.texts import write_text


class JITKernel:
    """A compiled kernel with TileLang's methods; what is not here is `tilewright.Kernel`'s.

    Parameters
    ----------
    func : a kernel of tilewright's, or a traced function, which `compile` takes with the others.

    Attributes
    ----------
    latency, config, ref_latency : milliseconds, options and the reference's milliseconds, where it was tuned.
    """

    def __init__(
        self,
        func: object,
        out_idx: int | Sequence[int] | None = None,
        execution_backend: object = None,
        target: object = "auto",
        target_host: object = None,
        verbose: bool = False,
        pass_configs: Mapping[object, object] | None = None,
        from_database: bool = False,
        compile_flags: object = None,
        *,
        latency: float | None = None,
        config: Mapping[str, object] | None = None,
    ) -> None:
        if not isinstance(func, Kernel):
            func = compile(func, out_idx, target=target, pass_configs=pass_configs, compile_flags=compile_flags).kernel
        self.kernel: Kernel = func
        self.latency, self.config = latency, config
        self.ref_latency: float | None = None

    def __call__(self, *arguments: object, **named: object) -> Any:
        return as_torch(self.kernel(*arguments, **named), (*arguments, *named.values()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)

    @property
    def out_idx(self) -> list[int]:
        """Positions of the parameters that a call makes and returns."""
        return list(self.kernel.out_idx)

    @property
    def params(self) -> list[KernelParam]:
        """The parameters, in the author's order."""
        return KernelParam.of(self.kernel.params)

    @property
    def kernel_source(self) -> str:
        """The emitted text."""
        return self.get_kernel_source()

    @property
    def prim_func(self) -> PrimFunc:
        """The traced program."""
        return PrimFunc(self.kernel.function, self.kernel.function.span)

    @property
    def artifact(self) -> CompiledArtifact:
        """The text and the parameters."""
        return CompiledArtifact(self.kernel_source, self.params, self.kernel.program)

    @property
    def torch_function(self) -> JITKernel:
        """What runs: the kernel itself."""
        return self

    adapter = torch_function
    execution_backend, verbose, target_host = "auto", False, None
    """Of `compile`: accepted, and nothing that this kernel was made by."""

    @property
    def host_source(self) -> str:
        """The program of the host, as text."""
        return self.get_host_source()

    @property
    def resource_usage(self) -> dict[str, dict[str, int]]:
        """What each kernel of the text takes: registers, spilled bytes, shared memory."""
        return self.kernel.resources()

    @property
    def n_regs(self) -> int:
        """Registers of a thread, of the kernel that takes most."""
        return max(one["registers"] for one in self.kernel.resources().values())

    @property
    def n_spills(self) -> int:
        """Bytes that a thread keeps in memory for want of registers, of the kernel that does most."""
        return max(one.get("spill_store_bytes", 0) for one in self.kernel.resources().values())

    @property
    def n_max_threads(self) -> int:
        """Threads of a block, of the largest kernel."""
        return max((one.num_threads for one in kernels_of(self.kernel.program.final)), default=1)

    @classmethod
    def from_tilelang_function(cls, tilelang_func: Any, **options: Any) -> JITKernel:
        """`compile` under another name."""
        return compile(tilelang_func, **options)

    def update_tuner_result(
        self, latency: float, config: Mapping[str, object] | None, ref_latency: float | None
    ) -> JITKernel:
        """Say what tuning found."""
        self.latency, self.config, self.ref_latency = latency, config, ref_latency
        return self

    def get_tuner_result(self) -> dict[str, object]:
        """What tuning found."""
        if self.latency is None:
            raise InvalidUse(
                "this kernel was not tuned", hint="put @tilelang.autotune(configs=...) above @tilelang.jit"
            )
        return {"latency": self.latency, "config": self.config, "ref_latency": self.ref_latency}

    def print_source_code(self, which: str = "kernel", file: str | None = None) -> None:
        """Print the emitted text, or write it to a file."""
        if file is None:
            self.show_source(which)
        else:
            write_text(Path(file), self._source(which))

    def _source(self, which: str) -> str:
        texts = {"kernel": self.get_kernel_source, "host": self.get_host_source}
        if which not in (*texts, "both"):
            raise InvalidUse(f"there is no source {which!r}", hint="'kernel', 'host' or 'both'")
        return "\n".join(text() for name, text in texts.items() if which in (name, "both"))

    def export_library(self, kernel_file: str) -> None:
        """Copy the binary to a file."""
        files = [one for one in self.kernel.path.iterdir() if one.suffix in (".so", ".cubin", ".hsaco", ".metallib")]
        if not files:
            raise InvalidUse("this kernel has no binary of its own", hint="kernel.export_sources writes its text")
        shutil.copyfile(files[0], kernel_file)

    def show_ptx(self) -> None:
        """Print the assembly."""
        print(self.kernel.ptx())

    def show_sass(self) -> None:
        """Print the machine code."""
        print(self.kernel.sass())

    def export_sass(self, path: str) -> None:
        """Write the machine code to a file."""
        write_text(Path(path), self.kernel.sass())

    def export_ptx(self, path: str) -> None:
        """Write the assembly to a file."""
        write_text(Path(path), self.kernel.ptx())

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        """The emitted text, with CUDA's own words for the head of a kernel, and the host's part where there is one."""
        return source_of(self.kernel)

    def get_host_source(self) -> str:
        """The program of the host, as text."""
        return self.kernel.show_program()

    def show_source(self, which: str = "kernel") -> None:
        """Print the emitted text: ``"kernel"``, ``"host"`` or ``"both"``."""
        print(self._source(which))

    def export_sources(self, kernel_path: str | None = None, host_path: str | None = None) -> None:
        """Write the emitted text to a file."""
        for path, text in ((kernel_path, self.get_kernel_source()), (host_path, self.get_host_source())):
            if path is not None:
                write_text(Path(path), text)

    def get_profiler(self, tensor_supply_type: TensorSupplyType = TensorSupplyType.Auto) -> Profiler:
        """A profiler on arguments of a kind."""
        return Profiler(self.kernel, tensor_supply_type)

    def run_once(self, func: Callable[..., object] | None = None) -> object:
        """Run on arguments that are made for it."""
        return self.get_profiler().run_once(func)


class Decorated(JITKernel):
    """What `jit` makes of a `T.prim_func`: calls without arguments give its kernel, as factories do; others run it."""

    def __call__(self, *arguments: object, **named: object) -> Any:
        return super().__call__(*arguments, **named) if arguments or named else JITKernel(self.kernel)

    def compile(self) -> JITKernel:
        """The kernel."""
        return JITKernel(self.kernel)

    def get_tir(self) -> PrimFunc:
        """The traced program."""
        return self.prim_func


def compile(
    func: Any,
    out_idx: int | Sequence[int] | None = None,
    execution_backend: object = None,
    target: object = "auto",
    target_host: object = None,
    verbose: bool | None = None,
    pass_configs: Mapping[object, object] | None = None,
    compile_flags: object = None,
) -> JITKernel:
    """`tilewright.compile`.

    Parameters
    ----------
    compile_flags : files and names that come before the text, ``-include FILE`` and ``-D NAME=VALUE``; others are
        accepted.
    execution_backend, target_host, verbose, pass_configs : accepted; keys of `pass_configs` are checked.
    """
    texts = texts_before(compile_flags, pass_configs)
    if texts and isinstance(func, PrimFunc):
        attributes = dict(func.function.attributes)
        attributes["sources"] = (*texts, *attributes.get("sources", ()))
        func = replace(func, function=replace(func.function, attributes=tuple(attributes.items())))
    return JITKernel(postprocessed(specialization.compile(func, out_idx, request(target))))


cached = compile
"""``tilelang.cache.cached``: kernels are kept however they are compiled."""


def par_compile(
    funcs: Iterable[object], *arguments: Any, ignore_error: bool = False, **options: Any
) -> list[JITKernel | None]:
    """`compile` of several functions, whose binaries are built side by side; with `ignore_error` None in place of a
    kernel that cannot be compiled."""
    options.pop("num_workers", None)
    return _side_by_side([functools.partial(compile, one, *arguments, **options) for one in funcs], ignore_error)


Made = TypeVar("Made")


def _side_by_side(makers: Sequence[Callable[[], JITKernel]], ignore_error: bool) -> list[JITKernel | None]:
    """Kernels whose binaries are built together; None for those that fail, where that is asked for."""

    def attempt(step: Callable[[], Made]) -> Made | None:
        with suppress(*[Exception] if ignore_error else []):
            return step()
        return None

    made = [attempt(make) for make in makers]
    for one in filter(None, made):
        one.kernel.begin()
    if not ignore_error:
        return made
    return [one and attempt(functools.partial(getattr, one.kernel, "path")) and one for one in made]


class JITImpl:
    """A decorated function: a factory gives kernels, a direct function runs."""

    def __init__(
        self, function: Callable[..., object], out_idx: int | Sequence[int] | None, target: object, **options: object
    ) -> None:
        functools.update_wrapper(self, function)
        self.jitted = specialization.jit(function, out_idx=out_idx, target=target)
        self.out_idx, self.target, self.func, self.options = out_idx, target, function, options
        self.signature = inspect.signature(function)
        self.is_direct = isinstance(self.jitted, JITFunction)
        self.texts = texts_before(options.get("compile_flags"), options.get("pass_configs"))
        self._wrapped: dict[int, JITKernel] = {}
        """The object of each kernel, which `jitted` keeps."""

    def __call__(self, *arguments: object, **named: object) -> Any:
        if not self.is_direct:
            return self.compile(*arguments, **named)
        if has_changes():
            self.compile(*arguments, **named)  # whose text a registered function changes before it is built
        with said_before(self.texts):
            return as_torch(self.jitted(*arguments, **named), (*arguments, *named.values()))

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("options", ()):
            return self.options[name]
        raise AttributeError(f"a function under @tilelang.jit has no {name!r}")

    @property
    def func_source(self) -> str:
        """The text of the function."""
        return inspect.getsource(self.func)

    def compile(self, *arguments: object, **named: object) -> JITKernel:
        """The kernel, without running it; ``target=`` says for which machine, as the decorator's does."""
        if "target" in named and "target" not in self.signature.parameters:
            named["target"] = request(named["target"])
        with said_before(self.texts):
            made = self.jitted.compile(*arguments, **named)
        if id(made) not in self._wrapped:
            self._wrapped[id(made)] = JITKernel(postprocessed(made))
        return self._wrapped[id(made)]

    def get_tir(self, *arguments: object, **named: object) -> PrimFunc:
        """The traced program."""
        with said_before(self.texts):
            return self.jitted.trace(*arguments, **named)

    def get_kernel_source(self, *arguments: object, **named: object) -> str:
        """The emitted text."""
        return self.compile(*arguments, **named).get_kernel_source()

    def par_compile(self, configs: Iterable[Any], num_workers: int | None = None, ignore_error: bool = False) -> object:
        """A kernel for each set of arguments (dicts or tuples)."""
        named = (one if isinstance(one, Mapping) else dict(zip(self.signature.parameters, one)) for one in configs)
        return _side_by_side([functools.partial(self.compile, **one) for one in named], ignore_error)

    def initialize_jit_mode(self, *arguments: object, **named: object) -> str:
        """``"lazy"`` for a function that returns a traced one, ``"eager"`` for one that is traced itself."""
        return "eager" if self.is_direct else "lazy"

    @property
    def mode(self) -> str:
        """The same."""
        return self.initialize_jit_mode()

    def is_lazy_mode(self) -> bool:
        """Whether a call gives a kernel."""
        return not self.is_direct

    def parse_cache_key(self, *arguments: object, **named: object) -> object:
        """What tells the kernels of this function apart."""
        bound = self.signature.bind(*arguments, **named)
        bound.apply_defaults()
        given = bound.arguments.values()
        shapes = ((tuple(one.shape), str(one.dtype)) if hasattr(one, "shape") else one for one in given)
        return tuple(zip(bound.arguments, map(str, shapes)))


def jit(
    func: Callable[..., object] | None = None,
    *,
    out_idx: int | Sequence[int] | None = None,
    target: object = "auto",
    target_host: object = None,
    execution_backend: object = None,
    verbose: bool | None = None,
    pass_configs: Mapping[object, object] | None = None,
    debug_root_path: object = None,
    compile_flags: object = None,
    mode: str = "auto",
) -> Any:
    """`tilewright.jit`, bare or with arguments; see `compile` for those that are only accepted."""
    check_pass_configs(pass_configs)
    if mode not in ("auto", "lazy", "eager"):
        raise InvalidUse(f"there is no mode {mode!r}", hint="'auto', 'lazy' or 'eager'")

    def decorate(function: Any) -> object:
        if isinstance(function, (PrimFunc, Function)):
            return Decorated(function, out_idx, target=target, pass_configs=pass_configs, compile_flags=compile_flags)
        said = {"target_host": target_host, "execution_backend": execution_backend, "verbose": verbose}
        said |= {"debug_root_path": debug_root_path, "compile_flags": compile_flags}
        return JITImpl(function, out_idx, request(target), pass_configs=dict(pass_configs or {}), **said)

    return decorate if func is None else decorate(func)


lazy_jit = jit


def simplify_prim_func(func: Callable[..., object] | None) -> object:
    """The function as it is, or what makes functions: every kernel is simplified when it is compiled."""
    return func


def apply_simplify(stmt: object, *_: object) -> object:
    """The program as it is."""
    return stmt
