"""The layout algebra against enumeration, on random layouts."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.arith import Analyzer
from tilewright.ir import INT32, Const, Var, substitute
from tilewright.layout import (
    MEMORY,
    NOTHING,
    REGISTER,
    THREAD,
    Digit,
    Layout,
    Swizzle,
    broadcast,
    compacted,
    divide,
    expand,
    from_function,
    from_tables,
    invert,
    partial,
    permuted,
    product,
    reduced,
    replicate,
    summed,
    vector_width,
)

QUICK = settings(max_examples=80, deadline=None)
SEEDS = st.integers(0, 1 << 40)


class Source:
    """Random layouts from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def extents(self, rank: int, most: int = 3) -> list[list[int]]:
        """Extents of the digits of each dimension, some of them no powers of two."""
        pick = self.random
        return [[pick.choice([1, 2, 2, 3, 4, 5]) for _ in range(pick.randint(1, most))] for _ in range(rank)]

    def bijective(self, places: tuple[str, ...], rank: int = 2) -> Layout:
        """Every location of the places in use holds one element."""
        slots = [(at, k, extent) for at, digits in enumerate(self.extents(rank)) for k, extent in enumerate(digits)]
        order = list(slots)
        self.random.shuffle(order)
        reached = dict.fromkeys(places, 1)
        made: dict[tuple[int, int], Digit] = {}
        for at, k, extent in order:
            place = self.random.choice(places)
            made[at, k] = Digit(extent, place, reached[place])
            reached[place] *= extent
        return Layout(tuple(tuple(made[at, k] for at, k, _ in slots if at == axis) for axis in range(rank)))

    def anything(self, places: tuple[str, ...] = (THREAD, REGISTER, MEMORY), rank: int = 2) -> Layout:
        """Any digits at all, overlapping ones and replicas included."""
        pick = self.random
        dimensions = []
        for extents in self.extents(rank):
            where = [(pick.choice((*places, NOTHING)), pick.choice([1, 2, 3, 4, 8, 16])) for _ in extents]
            dimensions.append(tuple(Digit(e, p, 0 if p == NOTHING else s) for e, (p, s) in zip(extents, where)))
        free = tuple(
            Digit(pick.choice([2, 3, 4]), pick.choice(places), pick.choice([1, 8])) for _ in range(pick.randint(0, 1))
        )
        swizzle = Swizzle(pick.randint(1, 2), pick.randint(0, 2), pick.randint(2, 3)) if pick.random() < 0.4 else None
        return Layout(tuple(dimensions), replicas=free, swizzle=swizzle)


def some_points(layout: Layout, count: int = 6) -> list[tuple[int, ...]]:
    """The first and last element and a few between them."""
    chosen = np.unique(np.linspace(0, layout.size - 1, count).astype(int))
    return [tuple(int(axis) for axis in np.unravel_index(flat, layout.shape)) for flat in chosen]


def naive(layout: Layout, place: str, point: tuple[int, ...]) -> int:
    """The definition, one element at a time."""
    total = 0
    for coordinate, digits in zip(point, layout.digits):
        for digit in digits:
            coordinate, value = divmod(coordinate, digit.extent)
            total += value * digit.stride if digit.place == place else 0
    if place == MEMORY and layout.swizzle is not None:
        bits, base, shift = layout.swizzle.bits, layout.swizzle.base, layout.swizzle.shift
        total ^= (total >> (base + shift)) % (1 << bits) << base
    return total


@QUICK
@given(SEEDS)
def test_table_is_the_definition(seed: int) -> None:
    layout = Source(seed).anything()
    for place in (THREAD, REGISTER, MEMORY):
        table = layout.table(place)
        assert table.shape == layout.shape
        for point in np.ndindex(layout.shape):
            assert table[point] == naive(layout, place, point) == layout.offset(place, *point)
    if not layout.replicas:
        assert all(layout.table(place).max() < layout.extent(place) for place in layout.places)


@QUICK
@given(SEEDS)
def test_text_round_trips(seed: int) -> None:
    layout = Source(seed).anything()
    if seed % 2:
        layout = partial(layout, 4)
    text = str(layout)
    assert "\n" not in text
    assert Layout.parse(text) == layout and str(Layout.parse(text)) == text


@QUICK
@given(SEEDS)
def test_equal_places_mean_equal_layouts(seed: int) -> None:
    """Digits are canonical: cutting one in two changes nothing."""
    source = Source(seed)
    layout = source.anything()
    cut = []
    for digits in layout.digits:
        pieces: list[Digit] = []
        for one in digits:
            part = source.random.choice([d for d in range(1, one.extent + 1) if one.extent % d == 0])
            pieces += [Digit(part, one.place, one.stride), Digit(one.extent // part, one.place, one.stride * part)]
        cut.append(tuple(pieces))
    assert replace(layout, digits=tuple(cut)) == layout
    assert hash(replace(layout, digits=tuple(cut))) == hash(layout)
    other = source.anything()
    if other.shape == layout.shape and other.replicas == layout.replicas and other != layout and not layout.swizzle:
        places = (THREAD, REGISTER, MEMORY)
        assert other.swizzle or any((other.table(p) != layout.table(p)).any() for p in places)


@QUICK
@given(SEEDS)
def test_expressions_agree_with_tables(seed: int) -> None:
    layout = Source(seed).anything()
    names = [Var(INT32, f"i{axis}") for axis in range(layout.rank)]
    analyzer = Analyzer()
    for name, extent in zip(names, layout.shape):
        analyzer.bind_extent(name, extent)
    for place, expression in layout.index(names).items():
        simple = analyzer.simplify(expression)
        for point in some_points(layout):
            values = {name: Const(INT32, value) for name, value in zip(names, point)}
            for form in (expression, simple):
                assert Analyzer().simplify(substitute(form, values)).value == layout.offset(place, *point)


@QUICK
@given(SEEDS)
def test_inverse(seed: int) -> None:
    layout = Source(seed).bijective((THREAD, REGISTER))
    assert layout.is_bijective and layout.is_injective
    axes = np.indices(layout.shape)
    back = layout.coordinates(**layout.locate(*axes))
    assert all((np.asarray(found) == axis).all() for found, axis in zip(back, axes))
    inverse = invert(layout)
    assert inverse.is_bijective and inverse.shape == tuple(layout.extent(place) for place in layout.places)
    elements = np.arange(layout.size).reshape(layout.shape)
    locations = [layout.table(place) for place in layout.places]
    assert (inverse.table(MEMORY)[tuple(locations)] == elements).all()


@QUICK
@given(SEEDS)
def test_inverse_of_swizzled_and_padded_memory(seed: int) -> None:
    source = Source(seed)
    layout = source.bijective((MEMORY,))
    padded = replace(
        layout, digits=tuple(tuple(replace(d, stride=d.stride * 2) for d in digits) for digits in layout.digits)
    )
    swizzle = Swizzle(source.random.randint(1, 2), source.random.randint(0, 2), source.random.randint(2, 3))
    for made in (replace(layout, swizzle=swizzle), padded, replace(padded, swizzle=swizzle)):
        assert made.is_injective
        axes = np.indices(made.shape)
        back = made.coordinates(memory=made.table(MEMORY)) if made.places else axes
        assert all((np.asarray(found) == axis).all() for found, axis in zip(back, axes))
        if made.places:
            at = Var(INT32, "at")
            symbolic = made.coordinate_expressions(memory=at)
            for point in some_points(made):
                location = Const(INT32, int(made.offset(MEMORY, *point)))
                found = [Analyzer().simplify(substitute(form, {at: location})) for form in symbolic]
                assert tuple(form.value for form in found) == point


@QUICK
@given(SEEDS)
def test_product_and_division(seed: int) -> None:
    source = Source(seed)
    atom = source.bijective((THREAD, REGISTER))
    if source.random.random() < 0.5:
        atom = replicate(atom, 2)
    outer = source.bijective((THREAD, REGISTER))
    if source.random.random() < 0.5:
        outer = replicate(outer, 3)
    whole = product(outer, atom)
    assert whole.shape == tuple(a * b for a, b in zip(atom.shape, outer.shape))
    for place in (THREAD, REGISTER):
        blocks = np.kron(outer.table(place) * atom.extent(place), np.ones(atom.shape, np.int64))
        assert (whole.table(place) == blocks + np.tile(atom.table(place), outer.shape)).all()
    assert divide(whole, atom) == outer
    if not atom.replicas:
        assert divide(whole, whole) == Layout(((), ()))


@QUICK
@given(SEEDS)
def test_division_refuses_what_is_no_tiling(seed: int) -> None:
    source = Source(seed)
    atom, layout = source.bijective((THREAD, REGISTER)), source.bijective((THREAD, REGISTER))
    outer = divide(layout, atom)
    tiles = False
    if all(extent % part == 0 for extent, part in zip(layout.shape, atom.shape)):
        inside = np.indices(atom.shape)
        tiles = True
        for place in (THREAD, REGISTER):
            table = layout.table(place)
            corner = table[tuple(slice(None, None, part) for part in atom.shape)]
            whole = np.kron(corner, np.ones(atom.shape, np.int64)) + np.tile(atom.table(place), corner.shape)
            tiles &= bool((table == whole).all() and (corner % atom.extent(place) == 0).all())
        assert len(inside) == atom.rank
    assert (outer is not None) == tiles


@QUICK
@given(SEEDS, st.integers(1, 4), st.sampled_from([1, 8]))
def test_expansion(seed: int, stages: int, alignment: int) -> None:
    layout = Source(seed).anything(places=(MEMORY,))
    layout = replace(layout, replicas=())
    staged = expand(layout, stages, alignment)
    assert staged.shape == (stages, *layout.shape)
    step = 0 if stages == 1 or not staged.digits[0] else staged.digits[0][0].stride
    assert step % alignment == 0 and (stages == 1 or not layout.places or step >= layout.extent(MEMORY))
    for stage in range(stages):
        assert (staged.table(MEMORY)[stage] == layout.table(MEMORY) + stage * step).all()


@QUICK
@given(SEEDS)
def test_probing_finds_the_digits(seed: int) -> None:
    layout = replace(Source(seed).anything(), replicas=())
    tables = {place: layout.table(place) for place in (THREAD, REGISTER, MEMORY)}
    found = from_tables(layout.shape, tables)
    assert isinstance(found, Layout)
    assert all((found.table(place) == tables[place]).all() for place in tables)
    if layout.swizzle is None:
        assert found == layout


@QUICK
@given(SEEDS)
def test_maps_without_digits_stay_tables(seed: int) -> None:
    pick = random.Random(seed)
    shape = (pick.randint(2, 6), pick.randint(2, 6))
    order = list(range(shape[0] * shape[1]))
    pick.shuffle(order)
    table = np.array(order).reshape(shape)
    found = from_function(shape, lambda i, j: table[i, j])
    assert (found.table(MEMORY) == table).all() and found.is_bijective
    assert found.offset(MEMORY, 1, 1) == table[1, 1]
    staged = expand(found, 3).table(MEMORY)
    step = int(staged[1, 0, 0] - staged[0, 0, 0])
    assert step >= table.size and (staged == table + np.arange(3)[:, None, None] * step).all()
    assert step == table.size or found.swizzle is not None


@QUICK
@given(SEEDS, st.sampled_from([4, 8, 16, 32]))
def test_vector_width(seed: int, bits: int) -> None:
    layout = Source(seed).anything()
    for dimension in range(layout.rank):
        for place in (MEMORY, REGISTER):
            width = vector_width(layout, bits, 16, dimension, place)
            table = np.moveaxis(layout.table(place), dimension, -1)
            assert width * bits <= 128 and is_vector(table, width)
            free = [d for d in layout.replicas if d.place == place]
            if width * 2 * bits <= 128 and not free and layout.size > 1:
                overlap = layout.swizzle is not None or not layout.is_injective
                assert overlap or not is_vector(table, width * 2)


def is_vector(table: np.ndarray, width: int) -> bool:
    if table.shape[-1] % width:
        return False
    groups = table.reshape(*table.shape[:-1], -1, width)
    return bool((groups == groups[..., :1] + np.arange(width)).all() and (groups[..., 0] % width == 0).all())


@QUICK
@given(SEEDS)
def test_reduction_keeps_threads_and_packs_registers(seed: int) -> None:
    layout = Source(seed).bijective((THREAD, REGISTER))
    found = reduced(layout, 1)
    held = {}
    for point in np.ndindex(layout.shape):
        held.setdefault(point[0], set()).add(layout.offset(THREAD, *point))
    replicas = np.zeros(1, np.int64)
    for digit in found.replicas:
        replicas = (replicas[:, None] + np.arange(digit.extent) * digit.stride).reshape(-1)
    for row, threads in held.items():
        assert set((found.offset(THREAD, row) + replicas).tolist()) == threads
    assert compacted(found, REGISTER) == found
    assert sorted(set(found.table(REGISTER).tolist())) == list(range(found.extent(REGISTER)))
    kept = reduced(layout, 1, keep=True)
    assert kept.shape == (layout.shape[0], 1) and kept.replicas == found.replicas
    wide = broadcast(found, 1, 7)
    assert wide.shape == (layout.shape[0], 7) and (wide.table(THREAD) == found.table(THREAD)[:, None]).all()


@QUICK
@given(SEEDS)
def test_small_changes(seed: int) -> None:
    source = Source(seed)
    layout = source.anything(rank=3)
    order = [0, 1, 2]
    source.random.shuffle(order)
    assert (permuted(layout, order).table(MEMORY) == layout.table(MEMORY).transpose(order)).all()
    parts = partial(layout, 3)
    assert parts.extent(THREAD) == 3 * layout.extent(THREAD)
    assert summed(parts) == replicate(layout, 3) and summed(parts).replication == 3 * layout.replication
