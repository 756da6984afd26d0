"""One launch for rows in runs, one weight of `PackedExperts` each: what serves such a call, with which options, its
kernels and arguments."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.errors import WrongArgumentDevice, WrongArgumentShape
from tilewright.ir.dtypes import ALL, FLOAT32, INT32, DType, dtype
from tilewright.kernels import Epilogue, Request, WeightFacts, speed_of
from tilewright.kernels.grouped_matmul import expert_epilogue, group_tiles
from tilewright.kernels.grouped_matmul import grouped_matmul as grouped_kernel
from tilewright.kernels.hopper_quant_wgmma import wgmma_quant_matmul
from tilewright.kernels.hopper_quant_wgmma_choice import expert_quant_choices
from tilewright.machine.arch import Arch
from tilewright.matmul import arrays
from tilewright.matmul.packed_experts import PackedExperts
from tilewright.matmul.planning import result_columns
from tilewright.matmul.tiers.base import begun, kept_under, kernel_of
from tilewright.matmul.tiers.dispatch import after_quantisation, quantizing_kernel
from tilewright.matmul.tiers.fragments import WHOLE, Fragments
from tilewright.matmul.tiers.records import coding_of, form_of, packing_begun, point_of
from tilewright.matmul.tiers.scaled import Scaled, as_options, is_scaled, tiles_of
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.tensors import Array, as_float32, is_torch
from tilewright.targets.registry import resolve, resolve_device
from tilewright.tuning import Candidate, Database

VERSION = 4
"""Changes when what was tuned says nothing of the kernels any more."""


class GroupedCall:
    """A grouped product in one launch: its kernels and their arguments."""

    def __init__(self, launches: Sequence[tuple[Kernel, Sequence[object]]], result: Array) -> None:
        self.launches, self.result = launches, result
        self.kind: Any = None

    def run(self) -> Array:
        """Launch; returns the result."""
        for kernel, arguments in self.launches:
            kernel(*arguments)
        return self.result

    def emulate(self) -> Array:
        """Run the device text on this machine; returns the result."""
        for kernel, arguments in self.launches:
            kernel.emulate(*arguments)
        return self.result

    @staticmethod
    def of(
        x: Any,
        weights: PackedExperts,
        sizes: object,
        activation_scales: Array | None = None,
        quantize: str | None = None,
        out_dtype: object = None,
        bias: Any = None,
        function: str | None = None,
        target: object = None,
        chosen: Candidate | None = None,
    ) -> GroupedCall | str:
        """A call that is ready, or what keeps one launch from serving it.

        `target` compiles for another machine, to emulate; `chosen` are options for the kernel, of this call alone.
        """
        facts, source = weights[0].facts, arrays.element_type(x).name
        if weights.device != arrays.device_of(x):
            raise WrongArgumentDevice(f"the weights are on {weights.device}, the activations on {arrays.device_of(x)}")
        if x.shape[1] != facts.columns:
            raise WrongArgumentShape(f"x has shape {list(x.shape)}, expected [rows, {facts.columns}]")
        scaled = "none" if activation_scales is None else "token"
        check_token_scales(x, activation_scales)
        out = result_type(x, out_dtype).name
        request = Request(
            source,
            out,
            scaled,
            quantize=quantize,
            bias=None if bias is None else arrays.element_type(bias).name,
            function=function,
            rows=x.shape[0],
        )
        arch = (resolve(target) if target else resolve_device(arrays.device_of(x)))[1]
        tier, reasons = explain_grouped(weights, request, arch)
        if not tier:
            return "; ".join(reasons)
        of_one = dataclasses.replace(request, rows=-(-x.shape[0] // len(weights)))
        kind = tier, len(weights), facts, of_one, arch
        options = chosen or _options(*kind)
        if tier == "fragments":
            call = _fragment_call(arrays.contiguous(x), weights, sizes, request, arch, options, bias)
        else:
            call = _scaled_call(arrays.contiguous(x), weights, sizes, activation_scales, request, arch, options, bias)
        call.kind = kind
        return call

    @property
    def candidates(self) -> list[Candidate]:
        """The options to choose among, the model's choice first."""
        return _candidates(*self.kind)

    def choose(self, options: Candidate) -> None:
        """Remember options for all calls of this kind, in later processes too."""
        Database().put(_tuning_key(*self.kind), options)
        _options.cache_clear()


def explain_grouped(weights: PackedExperts, request: Request, arch: Arch) -> tuple[str, list[str]]:
    """What serves such a call in one launch, ``"scaled"`` or ``"fragments"`` (``""`` for neither), and what keeps it
    from the ones before."""
    facts = weights[0].facts
    reasons: list[str] = []
    own = facts.format.dtype
    if request.quantize is not None and facts.divisors:
        reason: str | None = "divisors of activations, which are each expert's own"
    else:
        plain = dataclasses.replace(request, bias=None, function=None)  # a kernel behind it does these
        reason = Scaled().refuses(facts, after_quantisation(plain), arch)
    if reason is None and own is not None and own.bits > 16:
        reason = f"weights of {own}"
    if reason is None:
        return "scaled", reasons
    reasons.append(f"scaled: {reason}")
    reason = Fragments().refuses(facts, request, arch)
    if reason is None and (facts.gather or facts.divisors or facts.K % WHOLE):
        reason = "activations that are arranged first"
    if reason is None:
        return "fragments", reasons
    return "", [*reasons, f"fragments: {reason}"]


def check_token_scales(x: Array, scales: Array | None) -> None:
    """Scales of activations are one a token, where there are some.  Raises WrongArgumentKind, WrongArgumentShape."""
    if scales is None:
        return
    arrays.device_of(scales, "activation_scales")
    if tuple(scales.shape) not in ((x.shape[0],), (x.shape[0], 1)):
        raise WrongArgumentShape(f"activation_scales have shape {list(scales.shape)}, expected [{x.shape[0]}, 1]")


def result_type(x: Array, out_dtype: object) -> DType:
    """The type of the result: that of float activations where none is asked for."""
    if out_dtype is not None:
        return dtype(out_dtype)
    source = dtype(arrays.element_type(x).name)
    return source if source.is_float and source.bits >= 16 else FLOAT32


def epilogue_behind(
    sums: Any, sizes: object, experts: int, bias: Any, function: str | None, out: Array, arch: Arch
) -> tuple[Kernel, Sequence[object]]:
    """The kernel behind a product of plain sums, and its arguments."""
    of_bias = None if bias is None else arrays.element_type(bias).name
    kernel = kernel_of(expert_epilogue, arch, experts, sums.shape[1], arrays.element_type(out).name, of_bias, function)
    return begun(kernel, sums), (sums, _bias_of(bias, sums), _sizes_like(sizes, sums), out)


def _bias_of(bias: Array | None, like: Array) -> Array:
    """The bias as kernels take it: one element where there is none."""
    if bias is not None:
        return arrays.contiguous(bias)
    return arrays.constant("no bias", lambda: np.zeros((1, 1), np.float32), like)


@functools.lru_cache(maxsize=4096)
def _options(tier: str, experts: int, facts: WeightFacts, request: Request, arch: Arch) -> Candidate:
    """What tuning found for calls of a kind, else the model's choice."""
    kind = tier, experts, facts, request, arch
    return Database().get(_tuning_key(*kind)) or _candidates(*kind)[0]


def _tuning_key(tier: str, experts: int, facts: WeightFacts, request: Request, arch: Arch) -> str:
    model = _candidates(tier, experts, facts, request, arch)[0]
    return kept_under(f"grouped {tier} {VERSION}", f"{experts} experts {facts}", request, arch, model)


def _candidates(tier: str, experts: int, facts: WeightFacts, request: Request, arch: Arch) -> list[Candidate]:
    """Options of the kernel for runs of about ``request.rows`` rows, the model's choice first."""
    size = experts, request.rows, facts.N, facts.K
    if tier == "scaled":
        assert facts.format.dtype is not None
        return [as_options(tiles) for tiles in group_tiles(*size, facts.format.dtype.name, speed_of(arch))]
    form = form_of(facts, request.activations)
    assert form is not None
    return expert_quant_choices(*size, form, request.out, _epilogue(request), speed_of(arch))


def _scaled_call(
    x: Array,
    weights: PackedExperts,
    sizes: object,
    activation_scales: Array | None,
    request: Request,
    arch: Arch,
    options: Candidate,
    bias: Array | None,
) -> GroupedCall:
    """Operands that are multiplied as they are."""
    facts, rows = weights[0].facts, x.shape[0]
    launches: list[tuple[Kernel, Sequence[object]]] = []
    own = facts.format.dtype
    assert own is not None
    if request.quantize is not None:
        codes, scales = arrays.empty_like(x, tuple(x.shape), own), arrays.empty_like(x, (rows, 1), FLOAT32)
        first = quantizing_kernel(facts.columns, request.activations, request.quantize, False, arch)
        launches.append((begun(first, x), (x, codes, scales)))
        x, activation_scales = codes, scales
    asked = after_quantisation(request)
    scaled = is_scaled(facts, asked)
    held = weights.codes
    held = held if arrays.element_type(held) == own else arrays.viewed(held, own)
    more = bias is not None or request.function is not None
    sums = "float32" if more else request.out
    size = len(weights), facts.N, facts.K
    kernel = kernel_of(grouped_kernel, arch, *size, own.name, sums, scaled, tiles_of(options))
    factors: tuple[object, ...] = ()
    if scaled:
        of_tokens = _ones(x, rows) if activation_scales is None else as_float32(activation_scales.reshape(-1))
        factors = (arrays.contiguous(of_tokens), weights.channel_scales(x))
    sizes = _sizes_like(sizes, x)
    out = arrays.empty_like(x, (rows, facts.N), dtype(sums))
    launches.append((begun(kernel, x), (x, held, *factors, sizes, out)))
    if more:
        sums, out = out, arrays.empty_like(x, (rows, result_columns(facts.N, request.function)), dtype(request.out))
        launches.append(epilogue_behind(sums, sizes, len(weights), bias, request.function, out, arch))
    return GroupedCall(launches, out)


def _epilogue(request: Request) -> Epilogue:
    """What the kernel that decodes does to its sums."""
    return Epilogue(True, request.bias, request.function)


def _fragment_call(
    x: Array,
    weights: PackedExperts,
    sizes: object,
    request: Request,
    arch: Arch,
    options: Candidate,
    bias: Array | None,
) -> GroupedCall:
    """Codes that are decoded in registers."""
    facts, experts = weights[0].facts, len(weights)
    form, coding = form_of(facts, request.activations), coding_of(facts.format, ALL[request.activations])
    assert form is not None and coding is not None
    point = point_of(facts, coding, request.activations)
    mode = None if form.zero is None else "rescale" if facts.zeros == "rescale" else "original"
    offset = coding.offset if point is None else point
    plain = form.zero is None and not options["promoted"] and form.is_liftable(offset)
    chosen = {**options, "lower": tuple(options.get("lower", ()))}  # files give lists
    kernel = kernel_of(
        wgmma_quant_matmul,
        arch,
        facts.N,
        facts.K,
        form,
        out=request.out,
        offset=offset,
        zeros_mode=mode,
        epilogue=_epilogue(request),
        experts=experts,
        lifted=plain and weights.can_be_lifted(form),
        **chosen,
    )
    begun(kernel, x)
    packing_begun(weights[0], form)
    words, factors = weights.records(form, coding, x)
    out = arrays.empty_like(x, (x.shape[0], result_columns(facts.N, request.function)), dtype(request.out))
    return GroupedCall([(kernel, (words, x, factors, _bias_of(bias, x), _sizes_like(sizes, x), out))], out)


def _sizes_like(sizes: object, x: Array) -> Array:
    """The sizes as int32 where the activations are."""
    if is_torch(sizes):
        return arrays.contiguous(sizes.to(arrays.torch_type(INT32)))
    return arrays.placed_like(np.asarray(sizes, np.int32), x)


def _ones(like: object, rows: int) -> Array:
    """So many ones, float32, where an array is; not copied there, since a graph may be captured."""
    return like.new_ones(rows, dtype=arrays.torch_type(FLOAT32)) if is_torch(like) else np.ones(rows, np.float32)
