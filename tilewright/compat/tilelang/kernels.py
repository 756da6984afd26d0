"""``tilelang.jit`` and ``tilelang.compile``, and the kernel object that both give."""

from __future__ import annotations

import functools
import inspect
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tilewright import specialization
from tilewright.compat.tilelang.engine import CompiledArtifact, has_changes, postprocessed, source_of
from tilewright.compat.tilelang.profiler import Profiler
from tilewright.compat.tilelang.targets import request
from tilewright.compat.tilelang.tensors import KernelParam, TensorSupplyType, as_torch
from tilewright.ir.nodes import Function
from tilewright.ir.visitor import kernels as kernels_of
from tilewright.language import PrimFunc
from tilewright.runtime.kernel import Kernel
from tilewright.specialization import InvalidUse, JITFunction
from tilewright.texts import write_text

if TYPE_CHECKING:
    pass


class PassConfigKey(str, Enum):
    """Keys of ``pass_configs``.  All of them say how something is made, which tilewright decides for itself."""

    CUDA_KERNELS_OUTPUT_DIR = "cuda.kernels_output_dir"
    TIR_ADD_LOWER_PASS = "tirx.add_lower_pass"
    TIR_DISABLE_CSE = "tirx.disable_cse_tir"
    TIR_DISABLE_STORAGE_REWRITE = "tirx.disable_storage_rewrite"
    TIR_DISABLE_VECTORIZE = "tirx.disable_vectorize"
    TIR_ENABLE_DEBUG = "tirx.enable_debug"
    TIR_ENABLE_EQUIV_TERMS_IN_CSE = "tir.enable_equiv_terms_in_cse_tir"
    TIR_MERGE_STATIC_SMEM = "tirx.merge_static_smem"
    TIR_NOALIAS = "tirx.noalias"
    TIR_SIMPLIFY = "tirx.Simplify"
    TIR_USE_ASYNC_COPY = "tirx.use_async_copy"
    TL_AST_PRINT_ENABLE = "tl.ast_print_enable"
    TL_CONFIG_INDEX_BITWIDTH = "tl.config_index_bitwidth"
    TL_CUDA_COMPILER = "tl.cuda_compiler"
    TL_DEBUG_MERGE_SHARED_MEMORY_ALLOCATIONS = "tl.debug_merge_shared_memory_allocations"
    TL_DEVICE_COMPILE_FLAGS = "tl.device_compile_flags"
    TL_DISABLE_BUFFER_INIT_CHECK = "tl.disable_buffer_init_check"
    TL_DISABLE_DATA_RACE_CHECK = "tl.disable_data_race_check"
    TL_DISABLE_DYNAMIC_TAIL_SPLIT = "tl.disable_dynamic_tail_split"
    TL_DISABLE_FAST_MATH = "tl.disable_fast_math"
    TL_DISABLE_LOOP_UNSWITCHING = "tl.disable_loop_unswitching"
    TL_DISABLE_OUT_OF_BOUND_WARNING = "tl.disable_out_of_bound_warning"
    TL_DISABLE_PRELOWER_SEMANTIC_CHECK = "tl.disable_prelower_semantic_check"
    TL_DISABLE_SAFE_MEMORY_ACCESS = "tl.disable_safe_memory_legalize"
    TL_DISABLE_SHARED_MEMORY_REUSE = "tl.disable_shared_memory_reuse"
    TL_DISABLE_SHUFFLE_ELECT = "tl.disable_shuffle_elect"
    TL_DISABLE_THREAD_STORAGE_SYNC = "tl.disable_thread_storage_sync"
    TL_DISABLE_TMA_LOWER = "tl.disable_tma_lower"
    TL_DISABLE_VECTORIZE_256 = "tl.disable_vectorize_256"
    TL_DISABLE_WARP_SPECIALIZED = "tl.disable_warp_specialized"
    TL_DISABLE_WGMMA = "tl.disable_wgmma"
    TL_DUMP_IR_DIR = "tl.dump_ir_path"
    TL_DYNAMIC_ALIGNMENT = "tl.dynamic_alignment"
    TL_EMIT_LINE_DIRECTIVES = "tl.emit_line_directives"
    TL_ENABLE_AGGRESSIVE_SHARED_MEMORY_MERGE = "tl.enable_aggressive_shared_memory_merge"
    TL_ENABLE_ASYNC_COPY = "tl.enable_async_copy"
    TL_ENABLE_AUTO_SCHEDULE = "tl.enable_auto_schedule"
    TL_ENABLE_AUTO_WARP_SPECIALIZATION = "tl.enable_auto_warp_specialization"
    TL_ENABLE_DUMP_IR = "tl.enable_dump_ir"
    TL_ENABLE_FAST_MATH = "tl.enable_fast_math"
    TL_ENABLE_FP32X2_REDUCTION = "tl.enable_fp32x2_reduction"
    TL_ENABLE_LOWER_LDGSTG = "tl.enable_lower_ldgstg"
    TL_ENABLE_LOWER_LDGSTG_PREDICATED = "tl.enable_lower_ldgstg_predicated"
    TL_ENABLE_PTXAS_VERBOSE_OUTPUT = "tl.enable_ptxas_verbose_output"
    TL_ENABLE_REDUCER_PLAN_VERBOSE = "tl.enable_reducer_plan_verbose"
    TL_ENABLE_VECTORIZE_PLANNER_VERBOSE = "tl.enable_vectorize_planner_verbose"
    TL_FORCE_LET_INLINE = "tl.force_let_inline"
    TL_IF_STMT_BINDING_INLINE_REPLAYABLE_BINDS = "tl.if_stmt_binding_inline_replayable_binds"
    TL_LAYOUT_COST_MODEL = "tl.layout_cost_model"
    TL_LAYOUT_VISUALIZATION_ENABLE = "tl.layout_visualization_enable"
    TL_LAYOUT_VISUALIZATION_FORMATS = "tl.layout_visualization_formats"
    TL_LOOP_UNSWITCHING_ALLOW_NON_TRIVIAL_ELSE = "tl.loop_unswitching_allow_non_trivial_else"
    TL_PASS_PROFILE = "tl.pass_profile"
    TL_PASS_PROFILE_THRESHOLD_MS = "tl.pass_profile_threshold_ms"
    TL_PTXAS_REGISTER_USAGE_LEVEL = "tl.ptxas_register_usage_level"
    TL_REDUCER_FORCE_BASELINE = "tl.reducer_force_baseline"
    TL_SIMPLIFY = "tl.Simplify"
    TL_SIMPLIFY_APPLY_CONSTRAINTS_TO_BOOLEAN_BRANCHES = "apply_constraints_to_boolean_branches"
    TL_SIMPLIFY_CONVERT_BOOLEAN_TO_AND_OF_ORS = "convert_boolean_to_and_of_ors"
    TL_SIMPLIFY_ENABLE_LET_INLINE = "enable_simplify_let_inline"
    TL_SIMPLIFY_PROPAGATE_KNOWNS_TO_PROVE_CONDITIONAL = "propagate_knowns_to_prove_conditional"
    TL_SIMPLIFY_PROPAGATE_KNOWNS_TO_SIMPLIFY_EXPRESSIONS = "propagate_knowns_to_simplify_expressions"
    TL_SIMPLIFY_TRANSITIVELY_PROVE_INEQUALITIES = "transitively_prove_inequalities"
    TL_STORAGE_REWRITE_DETECT_INPLACE = "tl.storage_rewrite_detect_inplace"


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
        self, func: object, out_idx: Any = None, execution_backend: object = None, target: object = "auto",
        target_host: object = None, verbose: bool = False, pass_configs: Mapping[object, object] | None = None,
        from_database: bool = False, compile_flags: object = None, *, latency: float | None = None,
        config: Mapping[str, object] | None = None,
    ) -> None:  # fmt: skip
        made = func if isinstance(func, Kernel) else compile(func, out_idx, target=target, pass_configs=pass_configs)
        self.kernel: Kernel = made if isinstance(made, Kernel) else made.kernel
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
        """The emitted text, with CUDA's own words for the head of a kernel; the host's part is in it where there is
        one."""
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
    """What `jit` makes of a `T.prim_func`: called without arguments it gives its kernel, as factories do; with them it
    runs."""

    def __call__(self, *arguments: object, **named: object) -> Any:
        return super().__call__(*arguments, **named) if arguments or named else JITKernel(self.kernel)

    def compile(self) -> JITKernel:
        """The kernel."""
        return JITKernel(self.kernel)

    def get_tir(self) -> PrimFunc:
        """The traced program."""
        return self.prim_func


def check_pass_configs(pass_configs: Mapping[object, object] | None) -> None:
    """Refuse keys that TileLang has not."""
    known = {key.value for key in PassConfigKey}
    for key in pass_configs or {}:
        if getattr(key, "value", key) not in known and not str(key).startswith(("tirx.", "tir.")):
            raise InvalidUse(f"pass_configs has no key {key!r}", hint="tilelang.PassConfigKey lists the keys")


def compile(
    func: Any, out_idx: int | Sequence[int] | None = None, execution_backend: object = None, target: object = "auto",
    target_host: object = None, verbose: bool | None = None, pass_configs: Mapping[object, object] | None = None,
    compile_flags: object = None,
) -> JITKernel:  # fmt: skip
    """`tilewright.compile`.

    Parameters
    ----------
    execution_backend, target_host, verbose, pass_configs, compile_flags : accepted; keys of `pass_configs` are checked.
    """
    check_pass_configs(pass_configs)
    return JITKernel(postprocessed(specialization.compile(func, out_idx, request(target))))


cached = compile
"""``tilelang.cache.cached``: kernels are kept however they are compiled."""


def par_compile(funcs: Iterable[object], *arguments: Any, ignore_error: bool = False, **options: Any) -> list[object]:
    """`compile` of several functions, whose binaries are built side by side.

    Parameters
    ----------
    ignore_error : give None in place of a kernel that cannot be compiled.
    """
    options.pop("num_workers", None)
    return _side_by_side([functools.partial(compile, one, *arguments, **options) for one in funcs], ignore_error)


Made = TypeVar("Made")


def _side_by_side(makers: Sequence[Callable[[], JITKernel]], ignore_error: bool) -> list[Any]:
    """Kernels whose binaries are built together; None for those that fail, where that is asked for."""

    def attempt(step: Callable[[], Made]) -> Made | None:
        try:
            return step()
        except Exception:
            if not ignore_error:
                raise
            return None

    made = [attempt(make) for make in makers]
    for one in made:
        if one is not None:
            one.kernel.begin()
    if not ignore_error:
        return made
    return [
        one if one is not None and attempt(functools.partial(getattr, one.kernel, "path")) is not None else None
        for one in made
    ]


class JITImpl:
    """A decorated function: a factory gives kernels, a direct function runs."""

    def __init__(self, function: Callable[..., object], out_idx: Any, target: object, **options: object) -> None:
        functools.update_wrapper(self, function)
        self.jitted = specialization.jit(function, out_idx=out_idx, target=target)
        self.out_idx, self.target, self.func, self.options = out_idx, target, function, options
        self.signature = inspect.signature(function)
        self.is_direct = isinstance(self.jitted, JITFunction)
        self._wrapped: dict[int, JITKernel] = {}
        """The object of each kernel, which `jitted` keeps."""

    def __call__(self, *arguments: object, **named: object) -> Any:
        if not self.is_direct:
            return self.compile(*arguments, **named)
        if has_changes():
            self.compile(*arguments, **named)  # whose text a registered function changes before it is built
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
        made = self.jitted.compile(*arguments, **named)
        if id(made) not in self._wrapped:
            self._wrapped[id(made)] = JITKernel(postprocessed(made))
        return self._wrapped[id(made)]

    def get_tir(self, *arguments: object, **named: object) -> PrimFunc:
        """The traced program."""
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
        shapes = (
            (tuple(one.shape), str(one.dtype)) if hasattr(one, "shape") else one for one in bound.arguments.values()
        )
        return tuple(zip(bound.arguments, map(str, shapes)))


def jit(
    func: Callable[..., object] | None = None, *, out_idx: Any = None, target: object = "auto",
    target_host: object = None, execution_backend: object = None, verbose: bool | None = None,
    pass_configs: Mapping[object, object] | None = None,
    debug_root_path: object = None, compile_flags: object = None, mode: str = "auto",
) -> Any:  # fmt: skip
    """`tilewright.jit`, bare or with arguments; see `compile` for those that are only accepted."""
    check_pass_configs(pass_configs)
    if mode not in ("auto", "lazy", "eager"):
        raise InvalidUse(f"there is no mode {mode!r}", hint="'auto', 'lazy' or 'eager'")

    def decorate(function: Any) -> object:
        if isinstance(function, (PrimFunc, Function)):
            return Decorated(compile(function, out_idx, target=target, pass_configs=pass_configs).kernel)
        return JITImpl(
            function, out_idx, request(target), target_host=target_host, execution_backend=execution_backend,
            verbose=verbose, pass_configs=dict(pass_configs or {}), debug_root_path=debug_root_path,
            compile_flags=compile_flags,
        )  # fmt: skip

    return decorate if func is None else decorate(func)


lazy_jit = jit


def simplify_prim_func(func: Callable[..., object] | None) -> object:
    """The function as it is, or what makes functions: every kernel is simplified when it is compiled."""
    return func


def apply_simplify(stmt: object, *_: object) -> object:
    """The program as it is."""
    return stmt
