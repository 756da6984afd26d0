"""`T.CUDASourceCodeKernel`: a kernel that its author wrote in CUDA, launched as other kernels are."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from tilewright.ir import Buffer, Var, find
from tilewright.language.buffers import BufferProxy
from tilewright.language.external import access_ptr, call_extern, import_source
from tilewright.language.kernel import Kernel
from tilewright.language.mistakes import NumberExpected
from tilewright.language.proxies import Scalar
from tilewright.language.recording import current, word
from tilewright.texts import read_text


@word
def CUDASourceCodeKernel(
    *blocks: object,
    threads: object = None,
    source_code_or_path: object,
    entry_name: str = "main_kernel",
    cluster_dims: object = None,
    prelude: str | None = None,
) -> AbstractContextManager[None]:
    """A grid of blocks whose threads run a `__global__` function of CUDA source code.

    The function gets the program's parameters in their order, tensors as pointers, and behind them the sizes of
    `T.dynamic` if it has so many parameters.

    Parameters
    ----------
    blocks, threads, cluster_dims, prelude : as those of `Kernel`.
    source_code_or_path : the text, or the name of its file.
    entry_name : of the function.

    Examples
    --------
    >>> @T.prim_func
    ... def example(A: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
    ...     text = "__global__ void twice(const float* a, float* c) { c[threadIdx.x] = 2 * a[threadIdx.x]; }"
    ...     T.CUDASourceCodeKernel(1, threads=64, source_code_or_path=text, entry_name="twice")
    """
    what = "T.CUDASourceCodeKernel"
    if not isinstance(source_code_or_path, (str, Path)):
        raise NumberExpected(
            f"source_code_or_path of {what}", "a text, or the name of a file", repr(source_code_or_path)
        )
    text = str(source_code_or_path)
    if "\n" not in text and "{" not in text:
        if not Path(text).is_file():
            raise NumberExpected(f"source_code_or_path of {what}", "a text, or a file that is there", repr(text))
        text = read_text(Path(text))
    head = re.compile(
        r'(?:extern\s+"C"\s+)?__global__\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?void\s+'
        rf"(?:__launch_bounds__\s*\([^)]*\)\s*)?{re.escape(entry_name)}\s*\(([^)]*)\)"
    )
    found = head.search(text)
    if found is None:
        raise NumberExpected(f"entry_name of {what}", "the name of a __global__ function of the text", repr(entry_name))
    builder = current(what)
    passed = [one for one in builder.params.values() if one is not None]
    extents = (extent for one in passed if isinstance(one, Buffer) for extent in one.shape)
    sizes = list(dict.fromkeys(size for extent in extents if not isinstance(extent, int) for size in find(extent, Var)))
    wanted = len([one for one in found[1].split(",") if one.strip()])
    if wanted not in (len(passed), len(passed) + len(sizes)):
        raise NumberExpected(
            f"{entry_name} of {what}", f"{len(passed)} parameters, as the program has", f"one with {wanted}"
        )
    of_text = head.sub(f"__device__ void {entry_name}({found[1]})", text)
    with Kernel(*blocks, threads=threads, cluster_dims=cluster_dims, prelude=prelude):
        arguments = [
            access_ptr(BufferProxy(one), "rw") if isinstance(one, Buffer) else Scalar(one)
            for one in (*passed, *sizes)[:wanted]
        ]
        import_source(of_text)
        call_extern("void", entry_name, *arguments)
    return nullcontext()
