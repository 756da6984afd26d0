"""TileLang's modules, each once, however a program imports them: under this package's name, and as ``tilelang`` where
that is answered.

One table says which of our modules has the names of which of TileLang's.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from tilewright.compat.tilelang.elsewhere import ELSEWHERE, inside

HERE = __package__
OTHER = "tilelang"
CHILDREN = Path(__file__).parent / "children"
"""Where processes that a program starts find ``tilelang``."""

NAMES_OF: dict[str, str] = {
    "language": "language language.ast language.builtin language.dtypes language.eager language.proxy language.tir "
    "language.v2 language.annotations language.atomic language.common language.copy_op language.customize "
    "language.experimental language.fill_op language.frame language.gemm_op language.kernel language.logical "
    "language.loop language.math_intrinsics language.meta language.reduce_op language.scan_op language.symbolics "
    "language.tile_schedule language.utils language.warp_specialize language.tir.op language.tir.ir "
    "language.eager.builder cpu.language cuda.language metal.language rocm.language dtypes primitives primitives.gemm "
    "primitives.gemm.base tileop tileop.base",
    "": "cuda cpu contrib backend common intrinsics.wgmma_macro_generator intrinsics.mfma_macro_generator "
    "intrinsics.mma_sp_macro_generator carver.roller.policy analysis ir libinfo rocm metal webgpu jit.adapter "
    "jit.adapter.utils jit.adapter.wrapper tvm tvm.arith tvm.contrib tvm.ffi tvm.ir tvm.ir.transform tvm.relax "
    "tvm.runtime tvm.script tvm.script.ir tvm.script.parser tvm.te tvm.testing tvm.tir.analysis tvm.tir.expr "
    "tvm.tir.stmt tvm.tir.stmt_functor tvm.tir.transform tvm.tirx.analysis tvm.tirx.expr tvm.tirx.stmt "
    "tvm.tirx.stmt_functor tvm.tirx.transform tvm.topi tvm.transform",
    "autotuner": "autotuner.tuner autotuner.capture",
    "autotuner tensors": "autotuner.param",
    "buffers": "utils.deprecated",
    "buffers language": "utils.language",
    "carver": "carver.arch carver.arch.driver carver.arch.cuda carver.arch.cdna carver.arch.arch_base "
    "carver.arch.driver.cuda_driver",
    "devices targets": "utils.device",
    "drawings": "tools.plot_layout",
    "emitters": "intrinsics.mma_macro_generator cuda.intrinsics.macro.mma_macro_generator",
    "emitters language": "intrinsics.utils",
    "emitters layout": "intrinsics cuda.intrinsics",
    "engine": "engine.callback",
    "environment": "env",
    "environment kernels": "cache",
    "estimates": "tools.Analyzer",
    "estimates drawings": "tools",
    "expressions fragments language": "tvm.tir tvm.tirx tvm.tir.op",
    "fragments": "intrinsics.mfma_layout rocm.intrinsics.mfma_layout",
    "fragments layout": "intrinsics.mma_layout",
    "fragments layout emitters": "cuda.intrinsics.layout",
    "hints": "carver.utils carver.roller.hint carver.roller.rasterization",
    "hints templates carver": "carver.template carver.roller",
    "kernels": "jit.kernel jit.exceptions jit.param transform.simplify",
    "kernels pass_configs": "transform transform.pass_config",
    "layout": "layout.swizzle layout.layout layout.fragment",
    "nvcc": "contrib.rocm",
    "nvcc targets": "contrib.nvcc contrib.nvrtc",
    "profiler": "profiler.bench profiler.wall utils.profiler",
    "quantize": "quantize.quantization quantize.utils quantize.lop3 quantize.mxfp",
    "sparse": "utils.sparse",
    "targets": "language.fp8 backend.target utils.target cuda.target metal.target rocm.target tvm.target",
    "tensors": "utils.tensor",
    "tensors engine": "engine.param",
    "tensors targets buffers": "utils",
    "tilelang": "math utils.version",
    "tilewright.errors": "errors",
}  # fmt: skip
"""Modules of ours, and those of TileLang's (and of TVM's, which are ours where TVM itself is not installed) that are no
files here and have their names; none whose import would hide a word (``T.copy``)."""

_PLACES = {"language": "tilewright.language", "tilelang": HERE, "tilewright.errors": "tilewright.errors"}

MODULES: dict[str, tuple[str, ...]] = {
    name: tuple(_PLACES.get(one, f"{HERE}.{one}") for one in ours.split())
    for ours, theirs in NAMES_OF.items()
    for name in theirs.split()
}
"""For each module of TileLang's that is no file here, the modules whose names it has; ``language`` is the very module,
so that its errors name the author's line."""

INSIDES: dict[str, str] = {
    "": "autodd instrumentation _typing",
    "analysis": "ast_printer fragment_loop_checker layout_visual nested_loop_checker parallel_local_index_checker",
    "autotuner": "grouped_compile", "backend": "device_codegen execution_backend host_codegen module pass_pipeline",
    "backend.pass_pipeline": "pipeline pipeline_utils", "cache": "binary_cache cuda_binary_cache kernel_cache",
    "carver": "analysis common_schedules matmul_analysis", "carver.arch": "cpu metal rdna",
    "carver.roller": "bestfit node shape_inference", "carver.roller.policy": "common default tensorcore",
    "carver.roller.shape_inference": "tir",
    "carver.template": "base conv elementwise flashattention gemv general_reduce matmul",
    "contrib": "cc hip_resource_info hipcc rocm",
    "cpu": "backend codegen execution_backend op pipeline transform", "cpu.language": "kernel", "cpu.op": "gemm",
    "cpu.op.gemm": "gemm_scalar",
    "cuda": "backend codegen cutedsl_backend debug execution_backend op pipeline transform",
    "cuda.intrinsics": "layout macro sparse_layout",
    "cuda.intrinsics.layout": "mma_layout mma_sm100_layout mma_sm70_layout mma_sp_layout utils",
    "cuda.intrinsics.macro": "mma_macro_generator mma_sm120_macro_generator mma_sm70_macro_generator "
    "mma_sm75_macro_generator mma_sp_macro_generator tcgen05_macro_generator wgmma_macro_generator "
    "wgmma_sp_macro_generator",
    "cuda.language": "atomic cluster copy_op gemm_op intrinsics kernel loop math pdl print random reduce_op tir "
    "warpgroup",
    "cuda.op": "gemm gemm_sp", "cuda.op.gemm": "gemm_fma gemm_mma gemm_mma_sm120 gemm_mma_sm70 gemm_mma_sm75 "
    "gemm_tcgen05 gemm_tcgen05_blockscaled gemm_wgmma", "cuda.op.gemm_sp": "gemm_sp_mma gemm_sp_wgmma",
    "engine": "semantic_check", "instrumentation": "events session", "jit": "abi diagnostics",
    "jit.adapter": "base cutedsl cython kernel_cache libgen nvrtc torch tvm_ffi",
    "jit.adapter.cutedsl": "adapter checks kernel_cache libgen wrapper",
    "jit.adapter.cython": "adapter kernel_cache",
    "jit.adapter.nvrtc": "adapter include_paths kernel_cache libgen wrapper", "jit.adapter.torch": "kernel_cache metal",
    "language": "allocate overrides parser", "language.ast": "ir", "language.eager": "ast utils",
    "language.experimental": "gemm_sp_op", "language.overrides": "buffer parser",
    "language.parser": "entry operation parser", "language.tir": "common entry exports",
    "layout": "cute gemm_sp partial_fragment swizzle_mode",
    "metal": "backend codegen execution_backend intrinsics op pipeline target transform utils",
    "metal.intrinsics": "metal_macro_generator", "metal.language": "kernel tir", "metal.op": "gemm",
    "metal.op.gemm": "gemm_metal", "metal.transform": "mark_host_metal_context metal_fragment_to_simdgroup",
    "profiler": "torch_bench", "rocm": "backend codegen execution_backend intrinsics op pipeline target",
    "rocm.intrinsics": "mfma_layout mfma_macro_generator utils wmma_layout wmma_macro_generator",
    "rocm.language": "gemm_op intrinsics kernel tir", "rocm.op": "gemm", "rocm.op.gemm": "gemm_mfma gemm_wmma",
    "testing": "perf_regression", "tileop": "gemm gemm_blockscaled gemm_sp", "tileop.gemm": "gemm_base registry",
    "tileop.gemm_blockscaled": "gemm_blockscaled_base", "tileop.gemm_sp": "gemm_sp_base registry",
    "tools": "compile_only cuda lower_trace pass_timing pass_visualizer", "tools.cuda": "iket",
    "tools.cuda.iket": "cli codegen frontend metadata session", "tools.lower_trace": "core diff html",
    "tools.pass_visualizer": "core viewer",
    "transform": "add_bufstore_wrapper decouple_type_cast hoist_broadcast_values",
    "utils": "pass_diff pass_diff_hook",
}  # fmt: skip
"""The other modules of TileLang's, by their parents; those of parents that are `OPEN` have the parent's names.  All
others are the insides of its compiler, whose names import and say so when a program uses them."""

OPEN = {
    "carver.arch", "carver.template", "cpu.language", "cuda.language", "cuda.intrinsics.layout", "language",
    "language.ast", "language.eager", "language.experimental", "language.tir", "layout", "metal.language", "profiler",
    "rocm.language", "testing",
}  # fmt: skip

HALF_INSIDES = ("transform", "cache")
"""Modules that have names of ours, while every other name is one of the compiler's insides."""

for _parent, _children in INSIDES.items():
    for _child in _children.split():
        _sources = MODULES.get(_parent, (f"{HERE}.{_parent}",)) if _parent in OPEN else ()
        MODULES.setdefault(f"{_parent}.{_child}".lstrip("."), _sources)


class _Names(ModuleType):
    """A module with the names of others, which no module below it takes away: Python puts each that is imported into
    the one above, and ``tilelang.tools.Analyzer`` is a module and the class that it is named after."""

    __sources__: Sequence[ModuleType] = ()

    def __setattr__(self, name: str, value: object) -> None:
        words = (vars(source)[name] for source in self.__sources__ if name in vars(source))
        if not isinstance(value, ModuleType) or all(isinstance(word, ModuleType) for word in words):
            super().__setattr__(name, value)


class _Shared(Loader):
    """Gives a module that is there already, or one made of the names of others."""

    def __init__(self, real: ModuleType | None, sources: Sequence[str]) -> None:
        self.real, self.sources = real, sources
        self.spec = None if real is None else real.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.real

    def exec_module(self, module: ModuleType) -> None:
        if self.real is not None:
            module.__spec__ = self.spec or module.__spec__  # its own again
            return
        found = [importlib.import_module(name) for name in self.sources]
        module.__class__ = _Names
        vars(module)["__sources__"] = found

        def lookup(name: str) -> object:
            if not name.startswith("__"):
                for source in found:
                    if name in vars(source):
                        return vars(source)[name]
                if f"{inner}.{name}" in MODULES:
                    return importlib.import_module(f"{HERE}.{inner}.{name}")
                if name in ELSEWHERE:
                    return ELSEWHERE[name]
                halfway = inner in HALF_INSIDES or inner.startswith("tvm.")
                if not name.startswith("_") and (not found or halfway):
                    return inside(inner, name)
                if found and hasattr(found[0], "__getattr__"):
                    return getattr(found[0], name)
            raise AttributeError(f"tilewright has no {module.__name__}.{name}")

        inner = module.__name__.removeprefix(f"{HERE}.")
        module.__getattr__ = lookup  # type: ignore[method-assign]
        module.__path__ = []


def with_names_elsewhere(module: ModuleType, *sources: ModuleType) -> None:
    """Let a module of ours be a package, as TileLang's is, and have the names of others, and those that only say what
    to write."""

    def lookup(name: str) -> object:
        for source in sources:
            if not name.startswith("_") and name in vars(source):
                return vars(source)[name]
        if f"{module.__name__}.{name}".removeprefix(f"{HERE}.") in MODULES:
            return importlib.import_module(f"{module.__name__}.{name}")
        if name in ELSEWHERE:
            return ELSEWHERE[name]
        raise AttributeError(f"tilewright has no {module.__name__}.{name}")

    module.__path__ = []
    module.__getattr__ = lookup  # type: ignore[method-assign]


def _one_there(inner: str) -> ModuleType | None:
    """The module that stands for one of TileLang's whole, if there is such."""
    if inner == "language":
        return importlib.import_module("tilewright.language")
    return importlib.import_module(f"{HERE}.targets").tvm if inner == "tvm" else None


class Finder(MetaPathFinder):
    """Answers the names of the table, and `tilelang` (and `tvm`, which is installed with it) where that is asked
    for."""

    answers_tilelang = False
    answers_tvm = True

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if self.answers_tilelang and self.answers_tvm and name.partition(".")[0] == "tvm":
            if name not in MODULES:
                return None
            return ModuleSpec(name, _Shared(importlib.import_module(f"{HERE}.{name}"), ()), is_package=True)
        if self.answers_tilelang and (name == OTHER or name.startswith(OTHER + ".")):
            real = importlib.import_module(HERE + name[len(OTHER) :])
            return ModuleSpec(name, _Shared(real, ()), is_package=True)
        inner = name[len(HERE) + 1 :] if name.startswith(HERE + ".") else None
        if inner in MODULES:
            return ModuleSpec(name, _Shared(_one_there(inner), MODULES[inner]), is_package=True)
        return None


FINDER = Finder()


def install() -> None:
    """Answer the names of the table from here on."""
    if FINDER not in sys.meta_path:
        sys.meta_path.insert(0, FINDER)


def answer_tilelang() -> None:
    """Let ``import tilelang``, and that of its modules, give these."""
    install()
    if not Finder.answers_tilelang:
        found = importlib.util.find_spec("tvm")
        Finder.answers_tvm = found is None or str(found.origin).startswith(str(CHILDREN))
    Finder.answers_tilelang = True
    for name, module in list(sys.modules.items()):
        if name == HERE or name.startswith(HERE + "."):
            sys.modules[OTHER + name[len(HERE) :]] = module
