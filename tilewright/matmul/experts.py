"""Products with several weights: runs of rows with one weight each (mixture of experts), and batches."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from tilewright.errors import NotPrepared, WrongArgumentDevice, WrongArgumentShape
from tilewright.ir.dtypes import ALL, FLOAT32, INT32, dtype
from tilewright.kernels.epilogue import Epilogue
from tilewright.kernels.grouped_matmul import GroupTiles, group_tiles
from tilewright.kernels.grouped_matmul import grouped_matmul as grouped_kernel
from tilewright.kernels.hopper_quant_medium import medium_quant_matmul
from tilewright.kernels.hopper_quant_medium_choice import medium_quant_choice
from tilewright.machine.arch import Arch
from tilewright.machine.fragment_records import FragmentRecords
from tilewright.matmul.arrays import (
    contiguous,
    device_of,
    element_type,
    empty_like,
    is_capturing,
    is_row_major,
    placed_like,
    wait_for_copies,
)
from tilewright.matmul.facts import Request, WeightFacts, bucket
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.product import quant_matmul
from tilewright.matmul.tiers.base import begun
from tilewright.matmul.tiers.dispatch import after_quantisation, quantizing_kernel
from tilewright.matmul.tiers.fragments import WHOLE, Fragments
from tilewright.matmul.tiers.records import Coding, coding_of, form_of, packing_begun, point_of, records_of
from tilewright.matmul.tiers.scaled import Scaled, as_float32, channel_scales, is_scaled
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.tensors import is_torch
from tilewright.specialization import compile
from tilewright.targets.registry import resolve
from tilewright.tuning import Candidate, Database

VERSION = 1
"""Changes when what was tuned says nothing of the kernels any more."""


class PackedExperts(Sequence[PackedWeight]):
    """Weights of one shape and form with their arrays stacked, so that one launch serves all of them.

    Parameters
    ----------
    weights : on one device; what they hold is copied.

    Raises
    ------
    WrongArgumentShape : there are none, or they differ in shape, format, groups or the arrays that they have.

    Notes
    -----
    Each entry is a `PackedWeight` whose arrays are parts of the stacked ones.
    """

    def __init__(self, weights: Sequence[PackedWeight]) -> None:
        if not weights:
            raise WrongArgumentShape("no weights were given to stack")
        first = weights[0]
        for number, weight in enumerate(weights):
            if _form(weight) != _form(first):
                raise WrongArgumentShape(
                    f"weight {number} is {weight!r}, weight 0 {first!r}", hint="experts that are stacked have one form"
                )
        self.held = {
            name: _stacked([weight.codes if name == "codes" else weight.held[name] for weight in weights])
            for name in first.held
        }
        """Codes row by row (gone where there are records instead), scales and the like, stacked."""
        self._weights = tuple(
            PackedWeight(
                one.format, one.shape, {name: array[number] for name, array in self.held.items()}, block=one.block,
                zeros_mode=one.zeros_mode, tensor_scale=one.tensor_scale,
            )
            for number, one in enumerate(weights)
        )  # fmt: skip
        self._derived: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self._weights)

    def __getitem__(self, number: Any) -> Any:
        return self._weights[number]

    def __iter__(self) -> Iterator[PackedWeight]:
        return iter(self._weights)

    @property
    def codes(self) -> Any:
        """Codes row by row, stacked: made again, once, where kernels hold them otherwise."""
        held = self.held.get("codes")
        return self._once("codes", lambda: _stacked([one.codes for one in self._weights])) if held is None else held

    @property
    def shape(self) -> tuple[int, int]:
        """Of one of them, ``[N, K]``."""
        return self._weights[0].shape

    @property
    def device(self) -> str:
        return self._weights[0].device

    def to(self, device: Any) -> PackedExperts:
        """The same weights as torch tensors on a device."""
        return PackedExperts([weight.to(device) for weight in self._weights])

    def channel_scales(self, example: Any) -> Any:
        """Scales of all channels, ``[experts, N]`` float32."""
        return self._once("scales", lambda: _stacked([channel_scales(weight, example) for weight in self._weights]))

    def records(self, form: FragmentRecords, coding: Coding, example: Any) -> tuple[Any, Any]:
        """Records of all weights, one below the other, and a float32 factor of each."""

        def made() -> tuple[Any, Any]:
            each = [records_of(weight, form, coding, example) for weight in self._weights]
            words, factors = _stacked([one.words for one in each]), _stacked([one.factor for one in each])
            for weight, own in zip(self._weights, words):
                if weight.order is not None:
                    weight.become(weight.order, own)
                    self.held.pop("codes", None)
            return words.reshape(-1, *words.shape[2:]), factors.reshape(-1)

        return self._once(str(form), made)  # type: ignore[no-any-return]

    def _once(self, key: str, make: Callable[[], Any]) -> Any:
        if key not in self._derived:
            if any(map(is_capturing, self.held.values())):
                raise NotPrepared(
                    "experts are packed while a graph is captured", hint="call once with such activations before"
                )
            self._derived[key] = make()
            wait_for_copies(self._weights[0].held["codes"])
        return self._derived[key]


def _form(weight: PackedWeight) -> Any:
    others = [(name, array) for name, array in weight.held.items() if name != "codes"]
    arrays = sorted((name, tuple(array.shape), str(array.dtype)) for name, array in others)
    return weight.format, weight.shape, weight.block, weight.zeros_mode, weight.device, arrays


def _stacked(arrays: Sequence[Any]) -> Any:
    if isinstance(arrays[0], np.ndarray):
        return np.stack(arrays)
    import torch

    return torch.stack(list(arrays))


def grouped_matmul(
    x: Any,
    weights: Sequence[PackedWeight],
    sizes: Any,
    *,
    activation_scales: Any = None,
    quantize: str | None = None,
    out_dtype: Any = None,
    **options: Any,
) -> Any:
    """Rows of `x` in consecutive runs, run i times ``weights[i]``.

    Parameters
    ----------
    x : ``[rows, K]``.
    weights : of one shape ``[N, K]``; `PackedExperts` for one launch, any others for one launch a run.
    sizes : rows of each run, 0 for none: numbers, or a tensor of integers on the device of `x`, which is read there.
    activation_scales : one a token, ``[rows, 1]``.
    quantize, out_dtype, options : as in `quant_matmul`; tensors of rows (`residual`) are not taken.

    Returns
    -------
    ``[rows, N]``.  Rows behind the last run are not written.

    Raises
    ------
    WrongArgumentShape : sizes that do not add up to the rows (where they are numbers), weights of different shapes.
    WrongArgumentDevice : sizes on another device.

    Notes
    -----
    One launch on Hopper serves weights that are multiplied as they are (16-bit floats, and int8 or 8-bit floats with scales
    of channels by activations of the same type, which `quantize` makes), and low-bit weights by 16-bit activations.
    `explain_grouped` says what keeps others from it.
    Elsewhere, and for all other forms, there is a launch for each run that has rows; sizes on the device are then waited for.
    """
    on_device = is_torch(sizes)
    if on_device and device_of(sizes) != device_of(x):
        raise WrongArgumentDevice(f"the sizes are on {device_of(sizes)}, the activations on {device_of(x)}")
    _check_sizes(x, weights, sizes, on_device)
    if x.shape[0] and isinstance(weights, PackedExperts) and not options:
        call = GroupedCall.of(x, weights, sizes, activation_scales, quantize, out_dtype)
        if isinstance(call, GroupedCall):
            return call.run()
    given = sizes.tolist() if on_device else [int(size) for size in sizes]
    return _one_by_one(x, weights, given, activation_scales, out_dtype, {**options, "quantize": quantize})


def _check_sizes(x: Any, weights: Sequence[PackedWeight], sizes: Any, on_device: bool) -> None:
    if on_device:
        whole = not (sizes.dtype.is_floating_point or sizes.dtype.is_complex)
        if tuple(sizes.shape) != (len(weights),) or not whole:
            raise WrongArgumentShape(
                f"the sizes are {list(sizes.shape)} of {element_type(sizes)}, expected [{len(weights)}] integers"
            )
    else:
        numbers = [int(size) for size in sizes]
        if len(numbers) != len(weights) or sum(numbers) != x.shape[0] or min(numbers, default=0) < 0:
            raise WrongArgumentShape(
                f"{len(numbers)} runs of {sum(numbers)} rows were given for {len(weights)} weights and {x.shape[0]} rows",
                hint="one size for each weight, together all rows of x",
            )
    shapes = sorted({weight.shape for weight in weights})
    if len(shapes) != 1:
        raise WrongArgumentShape(f"the weights have {len(shapes)} different shapes, expected one: {shapes[:2]}")
    if len(x.shape) != 2:
        raise WrongArgumentShape(f"x has shape {list(x.shape)}, expected [rows, K]")


def explain_grouped(weights: PackedExperts, request: Request, arch: Arch) -> tuple[str, list[str]]:
    """What serves such a call in one launch, ``"scaled"`` or ``"fragments"`` (``""`` for neither), and what keeps it from the ones before."""
    facts = weights[0].facts
    reasons: list[str] = []
    own = facts.format.dtype
    if request.quantize is not None and facts.divisors:
        reason: str | None = "divisors of activations, which are each expert's own"
    else:
        reason = Scaled().refuses(facts, after_quantisation(request), arch)
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


class GroupedCall:
    """A grouped product in one launch: its kernels and their arguments."""

    def __init__(self, launches: Sequence[tuple[Kernel, Sequence[Any]]], out: Any) -> None:
        self.launches, self.out = launches, out
        self.kind: Any = None

    def run(self) -> Any:
        """Launch; returns the result."""
        for kernel, arguments in self.launches:
            kernel(*arguments)
        return self.out

    def emulate(self) -> Any:
        """Run the device text on this machine; returns the result."""
        for kernel, arguments in self.launches:
            kernel.emulate(*arguments)
        return self.out

    @staticmethod
    def of(
        x: Any, weights: PackedExperts, sizes: Any, activation_scales: Any = None, quantize: str | None = None,
        out_dtype: Any = None, target: Any = None, chosen: Candidate | None = None,
    ) -> GroupedCall | str:  # fmt: skip
        """A call that is ready, or what keeps one launch from serving it.

        `target` compiles for another machine, to emulate; `chosen` are options for the kernel, of this call alone.
        """
        facts, source = weights[0].facts, element_type(x).name
        if weights.device != device_of(x):
            raise WrongArgumentDevice(f"the weights are on {weights.device}, the activations on {device_of(x)}")
        if x.shape[1] != facts.columns:
            raise WrongArgumentShape(f"x has shape {list(x.shape)}, expected [rows, {facts.columns}]")
        scaled = "none" if activation_scales is None else "token"
        if activation_scales is not None and tuple(activation_scales.shape) not in ((x.shape[0],), (x.shape[0], 1)):
            raise WrongArgumentShape(
                f"activation_scales have shape {list(activation_scales.shape)}, expected [{x.shape[0]}, 1]"
            )
        wide = dtype(source).is_float and dtype(source).bits >= 16
        out = dtype(out_dtype).name if out_dtype is not None else source if wide else "float32"
        request = Request(source, out, scaled, quantize=quantize, rows=bucket(x.shape[0]))
        arch = resolve(target or device_of(x).split(":")[0])[1]
        tier, reasons = explain_grouped(weights, request, arch)
        if not tier:
            return "; ".join(reasons)
        of_one = dataclasses.replace(request, rows=bucket(-(-x.shape[0] // len(weights))))
        kind = tier, len(weights), facts, of_one, arch
        options = chosen or _options(*kind)
        if tier == "fragments":
            call = _fragments(contiguous(x), weights, sizes, request, arch, options)
        else:
            call = _scaled(contiguous(x), weights, sizes, activation_scales, request, arch, options)
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


@functools.lru_cache(maxsize=256)
def _options(tier: str, experts: int, facts: WeightFacts, request: Request, arch: Arch) -> Candidate:
    """What tuning found for calls of a kind, else the model's choice."""
    kind = tier, experts, facts, request, arch
    return Database().get(_tuning_key(*kind)) or _candidates(*kind)[0]


def _tuning_key(tier: str, experts: int, facts: WeightFacts, request: Request, arch: Arch) -> str:
    where = f"{arch.target} {arch.name} {arch.cores} cores"
    return f"grouped {tier} {VERSION} {where} {experts} experts {facts} {request}"


def _candidates(tier: str, experts: int, facts: WeightFacts, request: Request, arch: Arch) -> list[Candidate]:
    """Options of the kernel for runs of about ``request.rows`` rows, the model's choice first, then those for other numbers."""
    rows = request.rows
    found: list[Candidate] = []
    if tier == "scaled":
        found = [asdict(group_tiles(each, facts.N, arch.cores)) for each in (rows, 8, 16, 32, 64, 128, 256)]
    else:
        form = form_of(facts, request.activations)
        assert form is not None
        for columns in (facts.N * experts, 4 * facts.N * experts):
            # There are blocks for all multiprocessors: those of many experts run at once.
            most = max(columns, 256 * arch.cores)
            for each in (rows, 16, 32, 64, 128, 256):
                found.append(medium_quant_choice(most, facts.K, each, form, request.out, Epilogue(factor=True)))
    return list({repr(options): options for options in found}.values())


def _scaled(
    x: Any, weights: PackedExperts, sizes: Any, activation_scales: Any, request: Request, arch: Arch,
    options: Candidate,
) -> GroupedCall:  # fmt: skip
    """Operands that are multiplied as they are."""
    facts, rows, launches = weights[0].facts, x.shape[0], []
    own = facts.format.dtype
    assert own is not None
    if request.quantize is not None:
        codes, scales = empty_like(x, tuple(x.shape), own), empty_like(x, (rows, 1), FLOAT32)
        first = quantizing_kernel(facts.columns, request.activations, request.quantize, False, arch)
        launches.append((begun(first, x), (x, codes, scales)))
        x, activation_scales = codes, scales
    asked = after_quantisation(request)
    scaled = is_scaled(facts, asked)
    held = weights.codes
    if element_type(held) != own:
        held = held.view(own.numpy) if isinstance(held, np.ndarray) else held.view(_torch_type(own.name))
    kernel = _kernel(len(weights), facts.N, facts.K, own.name, request.out, scaled, GroupTiles(**options), arch)
    factors: tuple[Any, ...] = ()
    if scaled:
        ones = np.ones(rows, np.float32)
        of_tokens = placed_like(ones, x) if activation_scales is None else as_float32(activation_scales.reshape(-1))
        factors = (contiguous(of_tokens), weights.channel_scales(x))
    out = empty_like(x, (rows, facts.N), dtype(request.out))
    launches.append((begun(kernel, x), (x, held, *factors, _sizes_like(sizes, x), out)))
    return GroupedCall(launches, out)


@functools.lru_cache(maxsize=256)
def _kernel(
    experts: int, N: int, K: int, of: str, out: str, scaled: bool, tiles: GroupTiles, arch: Arch
) -> Kernel:  # fmt: skip
    return compile(grouped_kernel.trace(experts, N, K, of, out, scaled, tiles), target=arch)


def _fragments(
    x: Any, weights: PackedExperts, sizes: Any, request: Request, arch: Arch, options: Candidate
) -> GroupedCall:  # fmt: skip
    """Codes that are decoded in registers."""
    facts, experts = weights[0].facts, len(weights)
    form, coding = form_of(facts, request.activations), coding_of(facts.format, ALL[request.activations])
    assert form is not None and coding is not None
    packing_begun(weights[0], form)
    point = point_of(facts, coding, request.activations)
    mode = None if form.zero is None else "rescale" if facts.zeros == "rescale" else "original"
    kernel = _fragment_kernel(
        experts, facts.N, facts.K, form, request.out, coding.offset if point is None else point, mode,
        tuple(options.items()), arch,
    )  # fmt: skip
    begun(kernel, x)
    words, factors = weights.records(form, coding, x)
    out = empty_like(x, (x.shape[0], facts.N), dtype(request.out))
    return GroupedCall([(kernel, (words, x, factors, _sizes_like(sizes, x), out))], out)


@functools.lru_cache(maxsize=256)
def _fragment_kernel(
    experts: int, N: int, K: int, form: FragmentRecords, out: str, offset: int, zeros_mode: str | None,
    sizes: tuple[tuple[str, Any], ...], arch: Arch,
) -> Kernel:  # fmt: skip
    function = medium_quant_matmul.trace(
        N, K, form, out=out, offset=offset, zeros_mode=zeros_mode, epilogue=Epilogue(factor=True), experts=experts,
        **dict(sizes),
    )  # fmt: skip
    return compile(function, target=arch)


def _sizes_like(sizes: Any, x: Any) -> Any:
    """The sizes as int32 where the activations are."""
    if is_torch(sizes):
        return contiguous(sizes.to(_torch_type(INT32.name)))
    return placed_like(np.asarray(sizes, np.int32), x)


def _torch_type(name: str) -> Any:
    import torch

    return getattr(torch, name)


def _one_by_one(
    x: Any, weights: Sequence[PackedWeight], sizes: Sequence[int], activation_scales: Any, out_dtype: Any,
    options: dict[str, Any],
) -> Any:  # fmt: skip
    """A launch for each run that has rows."""
    if sum(sizes) > x.shape[0]:
        raise WrongArgumentShape(f"the sizes add up to {sum(sizes)}, but there are {x.shape[0]} rows")

    def product(weight: PackedWeight, rows: slice, **also: Any) -> Any:
        scales = None if activation_scales is None else activation_scales.reshape(-1, 1)[rows]
        return quant_matmul(x[rows], weight, activation_scales=scales, **options, **also)

    out, start = None, 0
    for weight, size in zip(weights, sizes):
        if size == 0:
            continue
        rows = slice(start, start + size)
        start += size
        if out is None:
            first = product(weight, rows, out_dtype=out_dtype)
            if size == x.shape[0]:
                return first
            out = empty_like(x, (x.shape[0], weight.shape[0]), dtype(first.dtype))
            out[rows] = first
        elif is_row_major(out[rows]):
            product(weight, rows, out=out[rows])
        else:
            out[rows] = product(weight, rows, out_dtype=out.dtype)
    return product(weights[0], slice(0, 0), out_dtype=out_dtype) if out is None else out


def quant_bmm(x: Any, weights: Sequence[PackedWeight], *, out_dtype: Any = None, **options: Any) -> Any:
    """``y[b] = x[b] W_b^T`` for a batch of weights of one shape.

    Parameters
    ----------
    x : ``[B, M, K]``.
    weights : B of them; `PackedExperts` for one launch where there is one.
    out_dtype, options : as in `grouped_matmul`.

    Returns
    -------
    ``[B, M, N]``.
    """
    if len(x.shape) != 3 or x.shape[0] != len(weights):
        raise WrongArgumentShape(f"x has shape {list(x.shape)}, expected [{len(weights)}, M, K]")
    batch, rows, width = x.shape
    found = grouped_matmul(x.reshape(batch * rows, width), weights, [rows] * batch, out_dtype=out_dtype, **options)
    return found.reshape(batch, rows, found.shape[-1])
