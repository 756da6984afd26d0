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
from types import ModuleType
from typing import Any

from tilewright.compat.tilelang.elsewhere import ELSEWHERE

HERE = __package__
OTHER = "tilelang"

LANGUAGE = (
    "annotations", "atomic", "common", "copy_op", "customize", "experimental", "fill_op", "frame", "gemm_op", "kernel",
    "logical", "loop",
    "math_intrinsics", "meta", "reduce_op", "scan_op", "symbolics", "tile_schedule", "utils", "warp_specialize",
    "tir.op", "tir.ir", "eager.builder",
)  # fmt: skip
"""Parts of the language, each of which has all words."""

MODULES: dict[str, tuple[str, ...]] = {
    "language": ("tilewright.language",),  # the very module, so that its errors name the author's line
    "language.dtypes": ("tilewright.language",), "language.fp8": (f"{HERE}.targets",),
    "language.eager": ("tilewright.language",), "language.proxy": ("tilewright.language",),
    "language.tir": ("tilewright.language",), "language.builtin": ("tilewright.language",),
    "language.ast": ("tilewright.language",), "language.v2": ("tilewright.language",),
    "cuda": (), "cuda.language": ("tilewright.language",), "cpu": (), "cpu.language": ("tilewright.language",),
    "autotuner.param": (f"{HERE}.autotuner", f"{HERE}.tensors"), "autotuner.tuner": (f"{HERE}.autotuner",),
    "autotuner.capture": (f"{HERE}.autotuner",),
    "carver.arch": (f"{HERE}.carver",), "carver.arch.driver": (f"{HERE}.carver",),
    "carver.arch.cuda": (f"{HERE}.carver",), "carver.arch.cdna": (f"{HERE}.carver",),
    "carver.arch.arch_base": (f"{HERE}.carver",), "carver.utils": (f"{HERE}.templates",),
    "carver.roller.hint": (f"{HERE}.templates",),
    "carver.arch.driver.cuda_driver": (f"{HERE}.carver",), "carver.template": (f"{HERE}.templates", f"{HERE}.carver"),
    "carver.roller": (f"{HERE}.templates", f"{HERE}.carver"),
    "contrib": (), "contrib.nvcc": (f"{HERE}.targets",), "backend": (), "backend.target": (f"{HERE}.targets",),
    "engine.callback": (f"{HERE}.engine",), "engine.param": (f"{HERE}.tensors", f"{HERE}.engine"),
    "env": (f"{HERE}.environment",),
    "intrinsics": (f"{HERE}.emitters", f"{HERE}.layout"),
    "intrinsics.mma_layout": (f"{HERE}.layout",),
    "jit.kernel": (f"{HERE}.kernels",), "layout.swizzle": (f"{HERE}.layout",), "layout.layout": (f"{HERE}.layout",),
    "math": (HERE,), "profiler.bench": (f"{HERE}.profiler",), "transform": (f"{HERE}.kernels",),
    "transform.pass_config": (f"{HERE}.kernels",),
    "utils": (f"{HERE}.tensors", f"{HERE}.targets", f"{HERE}.buffers"), "utils.tensor": (f"{HERE}.tensors",),
    "utils.target": (f"{HERE}.targets",),
    "utils.sparse": (f"{HERE}.sparse",), "utils.language": (f"{HERE}.buffers", "tilewright.language"),
    "utils.device": (f"{HERE}.devices", f"{HERE}.targets"),
    "tools": (f"{HERE}.estimates", f"{HERE}.drawings"),
    "cache": (f"{HERE}.environment", f"{HERE}.kernels"), "common": (),
    "primitives.gemm": ("tilewright.language",),
    "primitives.gemm.base": ("tilewright.language",),
    "contrib.nvrtc": (f"{HERE}.targets",), "intrinsics.mma_macro_generator": (f"{HERE}.emitters",),
    "intrinsics.wgmma_macro_generator": (),
    "intrinsics.mfma_macro_generator": (),
    "intrinsics.mma_sp_macro_generator": (), "intrinsics.utils": (f"{HERE}.emitters", "tilewright.language"),
    "quantize.quantization": (f"{HERE}.quantize",),
    "transform.simplify": (f"{HERE}.kernels",), "carver.roller.rasterization": (f"{HERE}.templates",),
    "carver.roller.policy": (),
    "utils.deprecated": (f"{HERE}.buffers",),
    "utils.profiler": (f"{HERE}.profiler",),
    "dtypes": ("tilewright.language",), "analysis": (), "ir": (), "libinfo": (), "rocm": (),
    "rocm.language": ("tilewright.language",), "metal": (), "metal.language": ("tilewright.language",), "webgpu": (),
    "cuda.intrinsics": (f"{HERE}.emitters", f"{HERE}.layout"),
    "cuda.target": (f"{HERE}.targets",), "jit.adapter": (),
    "jit.adapter.utils": (), "jit.adapter.wrapper": (), "jit.exceptions": (f"{HERE}.kernels",),
    "jit.param": (f"{HERE}.kernels",),
    "errors": ("tilewright.errors",), "utils.version": (HERE,), "tools.Analyzer": (f"{HERE}.estimates",),
    "tools.plot_layout": (f"{HERE}.drawings",),
    "profiler.wall": (f"{HERE}.profiler",), "layout.fragment": (f"{HERE}.layout",),
    **{f"language.{part}": ("tilewright.language",) for part in LANGUAGE},
    "tileop": ("tilewright.language",), "tileop.base": ("tilewright.language",), "primitives": ("tilewright.language",),
}  # fmt: skip
"""For each module of TileLang's that is no file here, the modules whose names it has; none whose import would hide a
word (``T.copy``)."""

TVM: dict[str, tuple[str, ...]] = {
    "tvm": (), "tvm.target": (f"{HERE}.targets",), "tvm.tir": ("tilewright.language",),
    "tvm.tirx": ("tilewright.language",),
}  # fmt: skip
"""The same for the modules of TVM's that programs take types and targets from, where TVM itself is not installed."""


class _Shared(Loader):
    """Gives a module that is there already, or one made of the names of others."""

    def __init__(self, real: ModuleType | None, sources: Sequence[str]) -> None:
        self.real, self.sources = real, sources
        self.spec = None if real is None else real.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.real

    def exec_module(self, module: ModuleType) -> None:
        if self.real is not None:
            module.__spec__ = self.spec  # its own again
            return
        found = [importlib.import_module(name) for name in self.sources]

        def lookup(name: str) -> Any:
            if not name.startswith("__"):
                for source in found:
                    if name in vars(source):
                        return vars(source)[name]
                if name in ELSEWHERE:
                    return ELSEWHERE[name]
                if found and hasattr(found[0], "__getattr__"):
                    return getattr(found[0], name)
            raise AttributeError(f"tilewright has no {module.__name__}.{name}")

        module.__getattr__ = lookup  # type: ignore[method-assign]
        module.__path__ = []


def with_names_elsewhere(module: ModuleType, *sources: ModuleType) -> None:
    """Let a module of ours be a package, as TileLang's is, and have the names of others, and those that only say what
    to write."""

    def lookup(name: str) -> Any:
        for source in sources:
            if not name.startswith("_") and name in vars(source):
                return vars(source)[name]
        if name in ELSEWHERE:
            return ELSEWHERE[name]
        raise AttributeError(f"tilewright has no {module.__name__}.{name}")

    module.__path__ = []
    module.__getattr__ = lookup  # type: ignore[method-assign]


class Finder(MetaPathFinder):
    """Answers the names of the table, and `tilelang` (and `tvm`, which is installed with it) where that is asked
    for."""

    answers_tilelang = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if self.answers_tilelang and name in TVM:
            targets = f"{HERE}.targets"
            return ModuleSpec(
                name,
                _Shared(importlib.import_module(targets).tvm if name == "tvm" else None, TVM[name]),
                is_package=True,
            )
        if self.answers_tilelang and (name == OTHER or name.startswith(OTHER + ".")):
            real = importlib.import_module(HERE + name[len(OTHER) :])
            return ModuleSpec(name, _Shared(real, ()), is_package=True)
        inner = name[len(HERE) + 1 :] if name.startswith(HERE + ".") else None
        if inner in MODULES:
            sources = MODULES[inner]
            same = inner == "language"
            return ModuleSpec(
                name, _Shared(importlib.import_module(sources[0]) if same else None, sources), is_package=True
            )
        return None


FINDER = Finder()


def install() -> None:
    """Answer the names of the table from here on."""
    if FINDER not in sys.meta_path:
        sys.meta_path.insert(0, FINDER)


def answer_tilelang() -> None:
    """Let ``import tilelang``, and that of its modules, give these."""
    install()
    if importlib.util.find_spec("tvm") is not None:
        TVM.clear()
    Finder.answers_tilelang = True
    for name, module in list(sys.modules.items()):
        if name == HERE or name.startswith(HERE + "."):
            sys.modules[OTHER + name[len(HERE) :]] = module
