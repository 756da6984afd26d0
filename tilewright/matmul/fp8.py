"""`fp8_scaled_matmul`: matrices of 8-bit floats with scales, multiplied on the machine that they are on."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import Unsupported, WrongArgumentDType, WrongArgumentKind, WrongArgumentShape
from tilewright.ir.dtypes import dtype
from tilewright.kernels.dense_matmul import SCALES_AT, scaled_matmul
from tilewright.kernels.few_rows_matmul import few_rows_matmul, room_for
from tilewright.kernels.fp8_matmul import fp8_matmul
from tilewright.kernels.roofline import speed_of
from tilewright.kernels.tile_choice import DenseProduct, parts_for
from tilewright.kernels.tiles import BLOCK, FEW_ROWS
from tilewright.language.scaled_products import OPERANDS
from tilewright.libraries import is_compiling
from tilewright.machine import Arch, MatrixInstruction
from tilewright.matmul.arrays import (
    check_device,
    check_strided,
    contiguous,
    device_of,
    element_type,
    empty_like,
    torch_type,
    with_numbers,
    with_rows_at,
)
from tilewright.matmul.fp8_operator import register_fp8
from tilewright.matmul.known_calls import check_transforms, is_watched, wants_gradients
from tilewright.matmul.tiers.dispatch import quantizing_kernel
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.tensors import Array, as_float32, is_torch
from tilewright.targets.registry import resolve, resolve_device

RESULTS = ("float32", "float16", "bfloat16")

Scale = tuple[str, int, int]
"""Kind of an operand's scales, the columns of K that one serves, and the rows of A or columns of B."""


def fp8_scaled_matmul(
    a: Any,
    a_scale: Array,
    b: object,
    b_scale: object,
    *,
    transpose_B: bool = False,
    block_N: int | None = None,
    out_dtype: object = "float32",
    exact: bool = False,
    fast: bool = False,
    target: object = None,
) -> Array:
    """``(a * a_scale) @ (b * b_scale)`` of torch tensors or NumPy arrays.

    Parameters
    ----------
    a : ``[..., K]`` of an 8-bit float; or float16, bfloat16 or float32 with `a_scale` None, whose rows are quantised to
        b's type first, each with a scale of its own: its gradient is then that of the product with what it was.
    b : ``[K, N]``, or ``[N, K]`` with `transpose_B`; 8-bit floats of a's type or another one.
    a_scale : one number, one a row ``[..., 1]``, or one for each of G equal parts of a row ``[..., G]``.
    b_scale : one number, one for each column of b ``[N]``, or for each block ``[ceil(N / n), G]`` (of ``[K, N]`` too: a
        line for each n columns), where n is `block_N`, else K / G. Scales are floats of any type.
    out_dtype : of the result; float32, float16 or bfloat16.
    exact, fast : as for `T.fp8_scaled_matmul`: sums beyond the matrix unit's, or the matrix unit's alone.
    target : compile for another machine and emulate it; by default that of `a`.

    Returns
    -------
    ``[..., N]`` of `out_dtype`.

    Raises
    ------
    ArgumentError : an array of a wrong shape, type or device, named.

    Examples
    --------
    >>> a, b = (np.ones(shape, dtype("e4m3").numpy) for shape in ((2, 32), (32, 3)))
    >>> fp8_scaled_matmul(a, np.float32(0.5).reshape(1), b, np.ones(3, np.float32))[1]
    array([16., 16., 16.], dtype=float32)
    """
    torch: Any = sys.modules.get("torch")
    compiling = is_compiling()
    if exact and fast:
        raise Unsupported("exact=True and fast=True together", ("one of the two: they ask for opposite sums",))
    for name, given in (("b", b), ("b_scale", b_scale)):
        if given is None:
            raise WrongArgumentKind(f"{name} is None", hint="only a_scale may be None, for a that is to be quantised")
    if compiling or is_torch(a):
        if not compiling:
            register_fp8(_multiply, _width)
            check_transforms(a, a_scale, b, b_scale, of="fp8_scaled_matmul")  # type: ignore[arg-type]
        if compiling or is_watched() or a.is_meta or wants_gradients(a, a_scale, b, b_scale):
            if target is not None:
                raise Unsupported("target= in a call that torch follows", ("kernels for the device of a",))
            of = out_dtype if isinstance(out_dtype, torch.dtype) else torch_type(dtype(out_dtype))
            return torch.ops.tilewright.fp8_scaled_matmul(a, a_scale, b, b_scale, transpose_B, block_N, of, exact, fast)
    return _multiply(a, a_scale, b, b_scale, transpose_B, block_N, out_dtype, exact, fast, target)


def _multiply(
    a: Array,
    a_scale: Array,
    b: Any,
    b_scale: Any,
    transpose_B: bool,
    block_N: int | None,
    out_dtype: object,
    exact: bool,
    fast: bool,
    target: object = None,
) -> Array:
    """See `fp8_scaled_matmul`; nobody follows what is computed."""
    device = device_of(a, "a")
    arrays = {"a": a, "a_scale": a_scale, "b": b, "b_scale": b_scale}
    for name, array in arrays.items():
        if array is None:
            continue
        check_device(name, array, "a is", device)
        if is_torch(array):
            check_strided(f"the elements of {name}", array)
            arrays[name] = with_numbers(array)
    a, a_scale, b, b_scale = arrays.values()
    if not a.ndim:
        raise WrongArgumentShape("a has no dimensions", hint="a is [..., K]")
    if dtype(out_dtype).name not in RESULTS:
        raise WrongArgumentDType(f"out_dtype is {dtype(out_dtype)}", hint=f"one of {', '.join(RESULTS)}")
    arch = (resolve(target) if target else resolve_device(device))[1]
    leading, K = tuple(a.shape[:-1]), int(a.shape[-1])
    flat = contiguous(a.reshape(int(np.prod(leading)), K))
    of_b = element_type(b).name
    made = empty_like(flat, (*leading, _width(a, b, transpose_B)), dtype(out_dtype))
    out = made.reshape(flat.shape[0], made.shape[-1])
    run = _runner(target)
    if a_scale is None:
        own = element_type(a)
        if own.is_float and own.bits <= 8:
            raise WrongArgumentKind(
                f"a is {own} and has no scale", hint="pass a_scale, one number [1] where there is one for all"
            )
        flat, a_scale = _quantised(flat, of_b, arch, run)
    of_a = element_type(flat).name
    for name, given in (("a", of_a), ("b", of_b)):
        if given not in OPERANDS:
            raise WrongArgumentDType(
                f"{name} is {given}, expected an 8-bit float", hint=f"one of {', '.join(OPERANDS)}"
            )
    M, N = out.shape
    if not out.size if isinstance(out, np.ndarray) else not out.numel():
        return made
    if not K:
        out[...] = 0
        return made
    kind_a = kind_of_scale("a_scale", a_scale, M, K)
    kind_b = kind_of_scale("b_scale", b_scale, N, K, block_N, kind_a)
    call = Call(M, N, K, of_a, of_b, dtype(out_dtype).name, kind_a, kind_b, transpose_B, exact, fast)
    kernel, order = kernel_for(call, arch)
    scales = _scale(a_scale, call.scale_a), _scale(b_scale, call.scale_b)
    run(kernel, order(contiguous(flat), contiguous(b), *scales, out))
    return made


def _width(a: Array, b: Array, transpose_B: bool) -> int:
    """Columns of the result.  Raises WrongArgumentShape."""
    K = a.shape[-1] if a.ndim else 1
    if b.ndim != 2 or b.shape[1 if transpose_B else 0] != K:
        raise WrongArgumentShape(
            f"b has shape {list(b.shape)}, but a has K = {K}",
            hint=f"b is {'[N, K]' if transpose_B else '[K, N]; transpose_B=True takes [N, K]'}",
        )
    return int(b.shape[0 if transpose_B else 1])


@dataclass(frozen=True, slots=True)
class Call:
    """What a call's kernel depends on."""

    M: int
    N: int
    K: int
    A_dtype: str
    B_dtype: str
    out: str
    scale_a: Scale
    scale_b: Scale
    transpose_B: bool
    exact: bool
    fast: bool

    @property
    def types(self) -> tuple[str, str, str]:
        """Of the operands and the result."""
        return self.A_dtype, self.B_dtype, self.out


def _runner(target: object) -> Callable[[Kernel, tuple[object, ...]], None]:
    def run(kernel: Kernel, arguments: tuple[object, ...]) -> None:
        (kernel if target is None else kernel.emulate)(*arguments)

    return run


def _quantised(x: Array, to: str, arch: Arch, run: Callable[..., object]) -> tuple[Array, Array]:
    """Rows in 8 bits, and their scales."""
    codes, scales = empty_like(x, tuple(x.shape), dtype(to)), empty_like(x, (x.shape[0], 1), dtype("float32"))
    if x.shape[0] and x.shape[1]:
        run(quantizing_kernel(x.shape[1], element_type(x).name, to, False, arch), (x, codes, scales))
    return codes, scales


def kind_of_scale(
    name: str, scale: Array, lines: int, K: int, block: int | None = None, beside: Scale | None = None
) -> Scale:
    """The kind of scales of this shape; `beside` the other operand's, which says what ``[1, N]`` is where it may be one
    for each column or one for each of N parts of K."""
    kind = element_type(scale)
    if not kind.is_float:
        raise WrongArgumentDType(f"{name} is {kind}, expected a float")
    shape = tuple(int(extent) for extent in scale.shape)
    size = int(np.prod(shape))
    if size == 1:
        return "tensor", 0, 1
    groups = shape[-1] if len(shape) >= 2 else 0
    grouped: Scale | None = None
    if groups and K % groups == 0:
        blocks = size // groups
        each = 1 if blocks == lines else block or K // groups
        grouped = ("groups", K // groups, each) if -(-lines // each) == blocks else None
    alike = grouped is not None and beside is not None and grouped[:2] == beside[:2]
    if size == lines and (len(shape) < 2 or 1 in shape[-2:]) and not alike:
        return "lines", 0, 1
    if grouped is not None:
        return grouped
    raise WrongArgumentShape(
        f"{name} has shape {list(shape)}, which is one number, {lines} of them, or [blocks, G] with G dividing K = {K}",
        hint="blocks are as wide as they are deep, where block_N says nothing else",
    )


def _scale(scale: Array, kind: Scale) -> Array:
    """Scales as kernels take them: in float32, which holds every power of two of e8m0."""
    scale = as_float32(scale)
    return scale.reshape(-1, scale.shape[-1]) if kind[0] == "groups" else scale.reshape(-1)


@functools.lru_cache(maxsize=256)
def kernel_for(call: Call, arch: Arch) -> tuple[Kernel, Callable[..., tuple[object, ...]]]:
    """The kernel for a call, and what makes its arguments of contiguous operands and of scales as they lie."""
    alike = call.A_dtype == call.B_dtype
    fed = arch.has_threads and any(
        one.asynchronous and one.a.name == call.A_dtype and one.b.name == call.B_dtype
        for one in arch.products(MatrixInstruction)
    )
    kinds = call.scale_a[0], call.scale_b[0]
    rows_whole = call.K % 16 == 0 and (call.transpose_B or call.N % 16 == 0)
    by_descriptor = fed and rows_whole and not call.exact
    if by_descriptor and "groups" not in kinds:
        return _of_lines(call, arch, alike)
    blocks = ("groups", BLOCK, 1), ("groups", BLOCK, BLOCK)
    if by_descriptor and call.transpose_B and (call.scale_a, call.scale_b) == blocks:
        product = DenseProduct(call.N, call.K, call.A_dtype, speed_of(arch), promoted=True, in_blocks=True)
        parts = parts_for(product, call.M)
        kernel = scaled_matmul.for_target(arch, call.N, call.K, *call.types, "group", "block", tiles=parts)
        return kernel, lambda a, b, of_a, of_b, out: (a, b, with_rows_at(SCALES_AT, of_a.T), contiguous(of_b), out)
    groups = {scale[1] for scale in (call.scale_a, call.scale_b) if scale[0] == "groups"}
    if len(groups) > 1 or (call.scale_a[0] == "groups" and call.scale_a[2] > 1):
        raise Unsupported(
            "scales of groups of several sizes, or of several rows of a", ("groups of one size, a line for each row",)
        )
    group, how = next(iter(groups), 0), (call.transpose_B, call.exact, call.fast)
    kernel = fp8_matmul.for_target(arch, call.N, call.K, *call.types, kinds, group, call.scale_b[2], *how)
    return kernel, lambda a, b, of_a, of_b, out: (a, contiguous(of_a), b, contiguous(of_b), out)


def _of_lines(call: Call, arch: Arch, alike: bool) -> tuple[Kernel, Callable[..., tuple[object, ...]]]:
    """A kernel of warpgroup instructions whose scales are applied to finished sums."""
    by_token, by_channel = call.scale_a[0] == "lines", call.scale_b[0] == "lines"
    how = {"transpose_B": call.transpose_B, "promote": not call.fast}
    if call.M <= FEW_ROWS and alike:
        few = few_rows_matmul.for_target(
            arch, call.N, call.K, call.A_dtype, call.out, room_for(call.M), scaled=True, **how
        )
        return few, lambda a, b, of_a, of_b, out: (a, _spread(of_a, call.M), b, _spread(of_b, call.N), out)
    swapped = None if call.transpose_B else True  # lanes transpose a weight that lies across
    product = DenseProduct(call.N, call.K, call.A_dtype, speed_of(arch), swapped, promoted=not call.fast)
    parts = parts_for(product, call.M)
    kinds = ("token" if by_token else "tensor"), ("channel" if by_channel else "tensor")
    kernel = scaled_matmul.for_target(arch, call.N, call.K, *call.types, *kinds, tiles=parts, **how)
    return kernel, lambda a, b, of_a, of_b, out: (a, b, contiguous(of_a), contiguous(of_b), out)


def _spread(scale: Array, lines: int) -> Array:
    """One scale for each line."""
    if scale.shape[0] == lines:
        return contiguous(scale)
    return np.repeat(scale, lines) if isinstance(scale, np.ndarray) else scale.expand(lines).contiguous()


if "torch" in sys.modules:
    register_fp8(_multiply, _width)  # a compiled function may be the first that calls it
