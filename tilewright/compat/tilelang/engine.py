"""``tilelang.lower`` and the functions that may change an emitted text before it is compiled."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass

from tilewright import specialization
from tilewright.compat.tilelang.targets import Target, request
from tilewright.compat.tilelang.tensors import KernelParam
from tilewright.language import PrimFunc
from tilewright.runtime.kernel import Kernel

Change = Callable[[str, Target], str]

_CHANGES: dict[str, Change] = {}


def has_changes() -> bool:
    """Whether any function is registered."""
    return bool(_CHANGES)


def postprocessed(kernel: Kernel) -> Kernel:
    """The kernel, with its text as a registered function makes it."""
    change = _CHANGES.get(kernel.target.name)
    if change is not None:
        program = kernel.program
        text = change(program.source.text, Target(f"{kernel.target.name} -arch={kernel.arch.name}"))
        kernel.program = dataclasses.replace(program, source=dataclasses.replace(program.source, text=text))
    return kernel


def _registers(name: str) -> Callable[..., object]:
    def register(func: Change | None = None, override: bool = True) -> object:
        if func is None or isinstance(func, bool):
            return lambda found: register(found, override if func is None else func)
        if override or name not in _CHANGES:
            _CHANGES[name] = func
        return func

    register.__doc__ = (
        f"Let ``function(text, target)`` change each {name} text before it is compiled; a decorator, too."
    )
    return register


register_cuda_postproc = register_cuda_postproc_callback = _registers("cuda")
register_c_postproc = register_c_postproc_callback = _registers("cpu")
register_hip_postproc = register_hip_postproc_callback = _registers("hip")
register_metal_postproc = register_metal_postproc_callback = _registers("metal")


@dataclass(frozen=True, slots=True)
class CompiledArtifact:
    """What lowering gives.

    Attributes
    ----------
    kernel_source : the emitted text.
    params : of the function.
    program : the lowered program, in place of TVM's modules.
    """

    kernel_source: str
    params: list[KernelParam]
    program: object

    @property
    def device_mod(self) -> object:
        """The lowered program."""
        return self.program

    host_mod = rt_mod = device_mod


def source_of(kernel: Kernel) -> str:
    """The emitted text, with CUDA's own words for the head of a kernel, which the device header has a macro for."""
    head = r'extern "C" __global__ void __launch_bounds__(\1)' if kernel.target.name == "cuda" else r"\g<0>"
    return re.sub(r"\bTW_KERNEL\(([^()]*)\)", head, kernel.get_kernel_source())


def lower(
    func_or_mod: PrimFunc,
    target: object = "auto",
    target_host: object = None,
    runtime_only: bool = False,
    enable_host_codegen: bool = False,
    enable_device_compile: bool = False,
    **_: object,
) -> CompiledArtifact:
    """Lower a traced function to the text of a target, without compiling that.

    Parameters
    ----------
    func_or_mod : made by `T.prim_func`.
    target_host, runtime_only, enable_host_codegen, enable_device_compile : accepted for TileLang's sake.
    """
    kernel = postprocessed(specialization.compile(func_or_mod, None, request(target)))
    made = func_or_mod if isinstance(func_or_mod, PrimFunc) else PrimFunc(func_or_mod, func_or_mod.span)
    return CompiledArtifact(source_of(kernel), KernelParam.of(made.params), kernel.program)
