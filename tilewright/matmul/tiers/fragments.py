"""The tier of Hopper for 16-bit activations: low-bit weights in the order of matrix fragments, decoded in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.formats import unpack_plain
from tilewright.ir.dtypes import ALL, dtype
from tilewright.kernels.hopper_quant_medium import medium_quant_choice, medium_quant_matmul
from tilewright.kernels.hopper_quant_small import small_quant_choice, small_quant_matmul
from tilewright.machine.arch import Arch
from tilewright.machine.fragment_records import COLUMNS, FragmentRecords
from tilewright.matmul.arrays import as_numpy, placed_like
from tilewright.matmul.facts import Request, WeightFacts
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.tiers.base import Machine, Prepared
from tilewright.runtime.tensors import is_torch
from tilewright.specialization import compile

KERNELS: tuple[tuple[int, Any, Callable[..., dict[str, int]]], ...] = (
    (16, small_quant_matmul, small_quant_choice),
    (1 << 30, medium_quant_matmul, medium_quant_choice),
)
"""Most rows, kernel, and the sizes that it is called with."""


class Fragments:
    """A stream of records from memory to tensor cores; scales and zero points enter sums of groups."""

    name = "fragments"

    def refuses(self, facts: WeightFacts, request: Request, arch: Arch) -> str | None:
        """See `Tier`."""
        of = facts.format
        epilogue = request.bias or request.residual or request.function
        reasons = (
            (not arch.has("wgmma"), f"it is for Hopper, not {arch.target} {arch.name}"),
            (request.activations not in ("float16", "bfloat16"), f"activations of {request.activations}"),
            (of.kind not in ("int", "uint") or of.bits not in (1, 2, 4, 8), f"it decodes integers of 1, 2, 4 and 8 bits, not {of}"),
            (facts.scale is None, "there are no scales"),
            (request.activations not in facts.exact_in, f"scales or zeros that are no {request.activations} numbers"),
            (facts.groups > 1 and facts.group % COLUMNS != 0 and facts.group not in (16, 32, 64), f"groups of {facts.group}"),
            (facts.zeros not in ("none", "one", "groups", "rescale"), f"zeros of mode {facts.zeros}"),
            (of.name == "int1" and facts.zeros != "none", "zeros of -1 and 1"),
            (of.name == "int1" and request.rows > KERNELS[0][0], "codes of -1 and 1 have an offset of one half"),
            (facts.gather or facts.divisors or facts.multiplier is not None, "act-order, divisors or second-level scales"),
            (bool(facts.slots), "codes in another order"),
            (request.activation_scales != "none" or request.quantize is not None, "scaled activations"),
            (bool(epilogue), "the call has an epilogue"),
            (not dtype(request.out).is_float, f"results of {request.out}"),
            (facts.K % 8 != 0, "rows that do not begin at multiples of 16 bytes"),
        )  # fmt: skip
        return next((reason for holds, reason in reasons if holds), None)

    def prepare(self, weight: PackedWeight, request: Request, machine: Machine, example: Any) -> Prepared:
        """See `Tier`."""
        facts, operand = weight.facts, ALL[request.activations]
        group = facts.group if facts.groups > 1 and facts.group in (16, 32, 64) else COLUMNS
        mode = {"groups": "original", "rescale": "rescale"}.get(facts.zeros)
        form = FragmentRecords(facts.format.bits, operand, operand, operand if mode else None, group)
        factory, sizes = next((factory, sizes) for most, factory, sizes in KERNELS if request.rows <= most)
        function = factory.trace(
            facts.N, facts.K, form, out=request.out, offset=_offset(facts),
            **({"zeros_mode": mode} if mode else {}),
            **sizes(facts.N, facts.K, request.rows, form),
        )  # fmt: skip
        records = weight.derived((self.name, str(form), type(example)), lambda: _records(weight, form, example))
        kernel = compile(function, target=machine.arch)
        return Prepared(self.name, kernel, [records], lambda call, held: (held[0], call.activations, call.out))


def _offset(facts: WeightFacts) -> float:
    """What unsigned codes are too large by: those of signed formats are taken with their highest bit turned."""
    if facts.format.name == "int1":
        return 0.5
    if facts.zeros in ("groups", "rescale"):
        return 0.0
    return float(1 << facts.format.bits - 1) if facts.format.kind == "int" else facts.zero


def _records(weight: PackedWeight, form: FragmentRecords, example: Any) -> Any:
    """A weight's records, packed where the weight is."""
    facts = weight.facts
    plain = weight.arrays["codes"]
    codes = _unpacked(plain, facts.K, facts.format.bits) if is_torch(plain) else unpack_plain(plain, facts.K, form.bits)
    if facts.format.kind == "int" and facts.format.name != "int1":
        codes = codes ^ (1 << facts.format.bits - 1)
    factor = weight.tensor_scale * (2.0 if facts.format.name == "int1" else 1.0)
    parts = {"scales": _by_row(weight, "scales", factor)}
    if form.zero is not None:
        parts["zeros"] = _by_row(weight, "zeros", 1.0)
    if not is_torch(codes):
        return placed_like(form.pack({"codes": codes, **parts}), example)
    return _pack_on_device(form, codes, parts)


def _by_row(weight: PackedWeight, name: str, factor: float) -> np.ndarray:
    """Scales or zeros ``[N, groups]``, one row for each of the weight."""
    facts, rows = weight.facts, weight.block[0]
    values = as_numpy(weight.arrays[name]).astype(np.float64) * factor
    full = np.broadcast_to(values, (-(-facts.N // rows), facts.groups))
    return np.repeat(full, rows, axis=0)[: facts.N]


def _unpacked(plain: Any, columns: int, bits: int) -> Any:
    """`unpack_plain` of a torch tensor on its device, for codes of 1, 2, 4 and 8 bits."""
    if bits == 8:
        return plain
    parts = [plain >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
    import torch

    return torch.stack(parts, dim=-1).reshape(plain.shape[0], -1)[:, :columns]


def _pack_on_device(form: FragmentRecords, codes: Any, parts: dict[str, np.ndarray]) -> Any:
    """`FragmentRecords.pack` by torch, where the codes are."""
    import torch

    rows, columns = codes.shape
    down, across, words = form.shape(rows, columns)
    records = torch.zeros(down, across, words * 4, dtype=torch.uint8, device=codes.device)
    operand = getattr(torch, str(form.operand))
    arrays = {"codes": codes}
    for name, values in parts.items():
        wanted = -(-columns // form.group)
        spread = (
            values
            if values.shape[1] == wanted
            else np.repeat(values, -(-wanted // values.shape[1]), axis=1)[:, :wanted]
        )
        arrays[name] = torch.from_numpy(np.ascontiguousarray(spread)).to(codes.device, operand)
    for name, array in arrays.items():
        layout, width = (form.codes(), COLUMNS) if name == "codes" else (form.lines(), form.sets)
        padded = torch.zeros(down * form.rows, across * width, dtype=array.dtype, device=codes.device)
        padded[:rows, : array.shape[1]] = array
        blocks = padded.reshape(down, form.rows, across, width).permute(0, 2, 1, 3).reshape(down, across, -1)
        order = torch.from_numpy(np.argsort(layout.permutation().reshape(-1))).to(codes.device)
        ordered = blocks[..., order].contiguous()
        if name == "codes" and form.bits < 8:
            fields = ordered.reshape(down, across, -1, 8 // form.bits)
            ordered = fields[..., 0].clone()
            for position in range(1, 8 // form.bits):
                ordered |= fields[..., position] << position * form.bits
        raw = ordered.contiguous().view(torch.uint8)
        start = form.offset(name)
        records[..., start : start + raw.shape[-1]] = raw
    return records.view(torch.uint32)
