"""The products of a segment of K in `byte_quant_matmul`: one sum of all, or a sum for each group that is scaled into a
total."""

from __future__ import annotations

from dataclasses import dataclass

import tilewright.language as T
from tilewright.kernels.hopper_quant_bytes_plan import BytePlan
from tilewright.kernels.hopper_quant_bytes_rings import Rings, SumsOfA
from tilewright.kernels.running_sums import RUN, end_run, enter
from tilewright.kernels.values import Tile, Value


@T.macro
def decode(plan: BytePlan, source: Tile, codes: Tile, first: int) -> None:
    """Columns of a record as operands."""
    if plan.in_codes:
        zeros_mode = "original" if plan.zeros == "codes" else None
        offset, scaled = plan.offset, plan.multiplied
        T.unpack(source, plan.form, codes, first=first, offset=offset, scaled=scaled, zeros_mode=zeros_mode)
    else:
        T.unpack(source, plan.form, codes, first=first)


@T.macro
def multiply_chunk(
    plan: BytePlan, rings: Rings, codes: list[Tile], totals: list[list[Tile]], chunk: Value, done: Value, before: int
) -> None:
    """The products of a copy of weights, of which `done` went before in the tile, `before` products since the first set
    of registers."""
    w_slot = rings.of_w.receive(chunk)
    for step in list(range(plan.records * plan.tiles)):
        record, tile = step // plan.tiles, step % plan.tiles
        number = chunk * plan.records + record
        own = codes[(before + step) % 2]
        decode(plan, rings.w[w_slot, tile * plan.parts : (tile + 1) * plan.parts, record, :], own, 0)
        if tile == 0:
            rings.of_a.receive(number)
        for half in list(range(plan.halves)):
            T.wgmma_gemm(own, rings.a[number % plan.stages, half, 0, :, :], totals[tile][half], transpose_B=True)
        T.wait_wgmma(plan.halves)
        if tile == 0 and (record > 0 or done > 0):
            rings.of_a.release(number - 1)
    rings.of_w.release(chunk)


@T.macro
def multiply(
    plan: BytePlan, rings: Rings, codes: list[Tile], totals: list[list[Tile]], before: Value, count: Value
) -> None:
    """One sum for all products of `count` copies of weights, the first of which is this block's copy `before`."""
    steps = plan.records * plan.tiles
    copies = 1 + steps % 2  # after which both sets of registers have been used alike
    for turn in T.serial(count // copies):
        for i in list(range(copies)):
            done = turn * copies + i
            multiply_chunk(plan, rings, codes, totals, before + done, done, i * steps)
    if copies > 1 and count % copies:
        # Else ptxas finds registers defined beside products in flight, and has every product waited for.
        T.wait_wgmma(0)
        multiply_chunk(plan, rings, codes, totals, count - 1, count - 1, 0)
    T.wait_wgmma(0)
    rings.of_a.release((before + count) * plan.records - 1)


@dataclass(frozen=True, slots=True)
class GroupRegisters:
    """Registers of sums of groups.

    Attributes
    ----------
    codes : operands of a product and of the next.
    sums, scale : a product's and, where it runs beside the one before, that one's; what they are scaled by.
    zero, of_columns : a group's zeros, and the sums of A's columns.
    """

    codes: list[Tile]
    sums: list[Tile]
    scale: list[Tile]
    zero: Tile | None
    of_columns: Tile | None


@T.macro
def group_registers(plan: BytePlan, codes: list[Tile]) -> GroupRegisters:
    """Registers for the sums of groups and what they are scaled by."""
    slab, part = plan.slab, plan.part
    sums = [T.alloc_fragment((slab, part), plan.sum_type) for _ in range(1 + plan.overlaps)]
    scale = [T.alloc_fragment((slab,), "float32") for _ in range(1 + plan.overlaps)]
    zero = T.alloc_fragment((slab,), "float32") if plan.of_sums else None
    of_columns = T.alloc_fragment((part,), "float32") if plan.of_sums else None
    return GroupRegisters(codes, sums, scale, zero, of_columns)


@T.macro
def decode_first(plan: BytePlan, rings: Rings, codes: list[Tile], chunk: Value) -> None:
    """The first operand of a copy of weights, as soon as it is there."""
    rings.of_w.receive(chunk)
    decode_step(plan, rings, codes, chunk, 0)


@T.macro
def multiply_by_groups(
    plan: BytePlan,
    rings: Rings,
    own: GroupRegisters,
    totals: list[list[Tile]],
    of_a: SumsOfA,
    before: Value,
    count: Value,
    steps: Value,
) -> None:
    """A sum for each group, scaled on its way into the total, beside the next product or other warpgroups'. The next
    codes, those of the next of the block's `steps` copies too, are decoded while a product runs."""
    products = plan.products
    last = len(products) - 1
    for done in T.serial(count):
        chunk = before + done
        if not plan.decodes_ahead:
            decode_first(plan, rings, own.codes, chunk)
        for step in list(range(last + 1)):
            start(plan, rings, own, of_a, chunk, step)
            if plan.overlaps and step > 0:
                T.wait_wgmma(1, own.sums[(step - 1) % 2])
                settle(plan, rings, own, totals, chunk, step - 1)
            if step < last and products[step][-1] == plan.halves - 1:
                decode_step(plan, rings, own.codes, chunk, step + 1)
            if step == last:
                rings.of_w.release(chunk)
            if step == last and plan.decodes_ahead and chunk + 1 < steps:
                decode_first(plan, rings, own.codes, chunk + 1)
            if step == last or not plan.overlaps:
                T.wait_wgmma(0)
                settle(plan, rings, own, totals, chunk, step)


@T.macro
def decode_step(plan: BytePlan, rings: Rings, codes: list[Tile], chunk: Value, step: int) -> None:
    """The operand of a product."""
    record, tile, group, _ = plan.products[step]
    source = rings.w[chunk % plan.weight_stages, tile * plan.parts : (tile + 1) * plan.parts, record, :]
    decode(plan, source, codes[step // plan.halves % 2], group * plan.columns)


@T.macro
def start(plan: BytePlan, rings: Rings, own: GroupRegisters, of_a: SumsOfA, chunk: Value, step: int) -> None:
    """Start a product, and load the scales of its sum."""
    record, tile, group, half = plan.products[step]
    number = chunk * plan.records + record
    if tile == group == half == 0:
        rings.of_a.receive(number)
    codes, columns_of_a = own.codes[step // plan.halves % 2], rings.a[number % plan.stages, half, group, :, :]
    if plan.turns:
        T.take_turn(chunk == 0 if step == 0 else False)
    T.wgmma_gemm(codes, columns_of_a, own.sums[step % len(own.sums)], transpose_B=True, clear_accum=True)
    if plan.turns:
        T.pass_turn()
    source = rings.w[chunk % plan.weight_stages, tile * plan.parts : (tile + 1) * plan.parts, record, :]
    T.unpack(source, plan.form, None, own.scale[step % len(own.scale)], own.zero, first=group * plan.columns)
    if plan.of_sums:
        row = of_a.row + half * plan.part
        T.copy(of_a.S[(of_a.group + number) * plan.sets + group, row], own.of_columns)


@T.macro
def settle(
    plan: BytePlan, rings: Rings, own: GroupRegisters, totals: list[list[Tile]], chunk: Value, step: int
) -> None:
    """A finished product's sum goes into the total."""
    record, tile, group, half = plan.products[step]
    at = step % len(own.sums)
    promote(plan, own.sums[at], own.scale[at], own.zero, own.of_columns, totals[tile][half])
    if tile == plan.tiles - 1 and group == plan.sets - 1 and half == plan.halves - 1:
        rings.of_a.release(chunk * plan.records + record)


@T.macro
def promote(plan: BytePlan, sums: Tile, scale: Tile, zero: Tile, of_a: Tile, total: Tile) -> None:
    """A group's sum, scaled, goes into the total."""
    for i, j in T.Parallel(plan.slab, plan.part):
        value = T.cast(sums[i, j], "float32")
        if plan.zeros == "original":
            value = T.fma(zero[i] * -plan.unit, of_a[j], value)
        if plan.zeros == "rescale":
            less = T.fma(zero[i] * -plan.unit, of_a[j], total[i, j])
            total[i, j] = T.fma(value, scale[i], less)
        else:
            total[i, j] = T.fma(value, scale[i], total[i, j])


@dataclass(frozen=True, slots=True)
class RunRegisters:
    """Registers of sums that run on.

    Attributes
    ----------
    codes : operands of a product and of the next.
    sums : of all groups so far.
    scale, last, first : scales of the group at hand, of the one before, and of the first of the run.
    """

    codes: list[Tile]
    sums: Tile
    scale: Tile
    last: Tile
    first: Tile


@T.macro
def run_registers(plan: BytePlan, codes: list[Tile]) -> RunRegisters:
    """Registers for sums that run on, and the scales of three groups."""
    sums = T.alloc_fragment((plan.slab, plan.part), plan.sum_type)
    scale = [T.alloc_fragment((plan.slab,), "float32") for _ in range(3)]
    return RunRegisters(codes, sums, *scale)


@T.macro
def multiply_running(plan: BytePlan, rings: Rings, own: RunRegisters, total: Tile, before: Value, count: Value) -> None:
    """A product runs while the next codes are decoded; then sums so far enter the total (`running_sums`)."""
    records = plan.records
    T.fill(own.sums, plan.start_of_sums)
    for done in T.serial(count):
        chunk = before + done
        rings.of_w.receive(chunk)
        for record in list(range(records)):
            number = chunk * records + record
            source = rings.w[chunk % plan.weight_stages, 0 : plan.parts, record, :]
            decode(plan, source, own.codes[record % 2], 0)
            T.unpack(source, plan.form, None, own.scale, None)
            if record == 0 and done == 0:
                T.copy(own.scale, own.last)
                T.copy(own.scale, own.first)
            if record == records - 1:
                rings.of_w.release(chunk)
            T.wait_wgmma(0)
            if record > 0 or done > 0:
                rings.of_a.release(number - 1)
            if record == 0 and done % (RUN // records) == 0:
                end_run(own.sums, own.last, own.first, total, plan.start_of_sums)
                T.copy(own.scale, own.first)
            else:
                enter(own.sums, own.last, own.scale, total)
            T.copy(own.scale, own.last)
            rings.of_a.receive(number)
            if plan.turns:
                T.take_turn(chunk == 0 if record == 0 else False)
            T.wgmma_gemm(own.codes[record % 2], rings.a[number % plan.stages, 0, 0, :, :], own.sums, transpose_B=True)
            if plan.turns:
                T.pass_turn()
    T.wait_wgmma(0)
    rings.of_a.release((before + count) * records - 1)
    end_run(own.sums, own.last, own.first, total, plan.start_of_sums)
