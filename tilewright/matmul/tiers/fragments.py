"""The tier of NVIDIA's tensor cores for 16-bit activations: low-bit weights in fragment order, decoded in registers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.ir.dtypes import ALL
from tilewright.kernels import Epilogue, Request, WeightFacts, speed_of
from tilewright.kernels.fragment_matmul import FragmentCandidates, fragment_matmul
from tilewright.kernels.hopper_quant import FACTORIES, candidates
from tilewright.kernels.hopper_quant_wgmma import wgmma_quant_matmul
from tilewright.machine import Arch, FragmentRecords
from tilewright.matmul.packed import PackedWeight
from tilewright.matmul.tiers.base import Machine, Operands, Prepared, Ready, Tier, arranged, begun, with_all_operands
from tilewright.matmul.tiers.records import (
    can_be_lifted,
    coding_of,
    form_of,
    has_factor,
    packing_begun,
    point_of,
    records_of,
)
from tilewright.runtime.tensors import Array
from tilewright.tuning import Candidate

WHOLE = 8
"""Elements that the rows of activations are multiples of: 16 bytes, which the copy engine wants."""


class Fragments(Tier):
    """A stream of records from memory to tensor cores; scales and zero points enter codes or sums of groups.

    Hopper has two kernels of its own (`kernels.hopper_quant`), everything from Ampere on `kernels.fragment_matmul`.
    Activations whose columns the weight has in another order (act-order), whose rows do not begin at multiples of 16
    bytes or that are divided by the weight's divisors are arranged by a kernel of their own, beside whose end the
    stream begins.
    """

    name = "fragments"
    version = 3
    machines = "NVIDIA's tensor cores"

    def runs_on(self, arch: Arch) -> bool:
        return arch.has("mma_sync")

    def reasons(self, facts: WeightFacts, request: Request, arch: Arch) -> Iterator[tuple[bool, str]]:
        of = facts.format
        decoded = request.activations in ("float16", "bfloat16") and coding_of(of, ALL[request.activations]) is not None
        yield from (
            (request.activations not in ("float16", "bfloat16"), f"activations of {request.activations}"),
            (not decoded, f"it decodes integers, small floats and tables of 16 numbers, not {of}"),
            (facts.groups > 1 and facts.group % 16 != 0, f"groups of {facts.group}"),
            (bool(facts.slots or facts.tiles[1]), "codes in another order"),
            (facts.factor and facts.zeros == "rescale", "a factor beside zeros that are subtracted behind it"),
            (request.activation_scales != "none", "scaled activations"),
        )

    def candidates(self, weight: PackedWeight, request: Request, machine: Machine) -> Iterator[Candidate]:
        facts, arch = weight.facts, machine.arch
        form = form_of(facts, request.activations)
        assert form is not None
        columns, rows = -(-facts.K // WHOLE) * WHOLE, request.rows or 1 << 30
        if arch.starts_products:
            yield from candidates(
                facts.N, columns, rows, form, request.out, _epilogue(weight, form, request), speed_of(arch)
            )
            return
        yield from FragmentCandidates(facts.N, columns, form, speed_of(arch), arch.shared_bytes).ranked(rows)

    def prepare(
        self, weight: PackedWeight, request: Request, machine: Machine, example: Array, options: Candidate
    ) -> Ready:
        facts = weight.facts
        operand = ALL[request.activations]
        form, coding = form_of(facts, request.activations), coding_of(facts.format, operand)
        assert form is not None and coding is not None
        point = point_of(facts, coding, request.activations)
        epilogue = _epilogue(weight, form, request)
        columns, completed = -(-facts.K // WHOLE) * WHOLE, with_all_operands(request, example)
        mode = "rescale" if facts.zeros == "rescale" else "original"
        sizes = dict(options)
        factory = FACTORIES[sizes.pop("kernel")] if machine.arch.starts_products else fragment_matmul
        offset = coding.offset if point is None else point
        if factory is wgmma_quant_matmul and not sizes["promoted"] and form.zero is None:
            sizes["lifted"] = form.is_liftable(offset) and can_be_lifted(weight, form)
        plain = epilogue.is_plain and factory is not fragment_matmul
        kernel = factory.for_target(
            machine.arch,
            facts.N,
            columns,
            form,
            out=request.out,
            offset=offset,
            epilogue=epilogue,
            **({} if form.zero is None else {"zeros_mode": mode}),
            **sizes,
        )
        begun(kernel, example)
        packing_begun(weight, form)
        records = weight.derived(
            (self.name, str(form), type(example)), lambda: records_of(weight, form, coding, example)
        )

        def arguments(call: Operands, held: Sequence[object]) -> Sequence[object]:
            if plain:
                return held[0], call.activations, call.out
            call = completed(call)
            return held[0], call.activations, held[1], call.bias, call.residual, call.out

        prepared = Prepared(self.name, kernel, [records.words, records.factor], arguments)
        return arranged(weight, request, columns, machine, example, prepared)


def _epilogue(weight: PackedWeight, form: FragmentRecords, request: Request) -> Epilogue:
    """What becomes of the sums of a call."""
    return Epilogue(has_factor(weight, form), request.bias, request.function, request.residual)
