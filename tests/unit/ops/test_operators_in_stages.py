"""Operators on slots of a ring: a region that has one more dimension in front means the same to every operator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from one_block import random_array, run_tiles, scalar, tile

import tilewright
import tilewright.language as T
from tilewright.ir.nodes import TILE_OPERATORS, Buffer, TileOperator, const, whole
from tilewright.ops import Atomic, Copy, Decode, Fill, Gemm, Reduce, Scan, Transpose
from tilewright.passes.scoped import redirected


def operators() -> Iterator[TileOperator]:
    """One of each kind, and of each dimension, counted from either end."""
    source, same = tile("source", (3, 5), "float32"), tile("same", (3, 5), "float32")
    for dim in (0, 1, -1, -2):
        line = tile("line", ((5,), (3,))[dim % 2], "float32")
        yield Reduce(whole(source), whole(line), "sum", dim)
        yield Reduce(whole(source), whole(line), "max", dim, clear=False)
        yield Scan(whole(source), whole(same), "sum", dim)
        yield Scan(whole(same), whole(same), "max", dim, reverse=True)
    yield Copy(whole(source), whole(same))
    yield Fill(whole(same), scalar(2.0))
    yield Transpose(whole(source), whole(tile("turned", (5, 3), "float32")))
    yield Atomic(whole(same), whole(source), "add")
    a, b, c = tile("a", (3, 4), "float32"), tile("b", (4, 5), "float32"), tile("c", (3, 5), "float32")
    yield Gemm(whole(a), whole(b), whole(c))
    codes, scale = tile("codes", (3, 8), "int8"), tile("scale", (3, 2), "float32")
    decoded = tile("decoded", (3, 8), "float32")
    yield Decode(source=whole(codes), destination=whole(decoded), scale=whole(scale), axis=1, group_size=4)


def buffers_of(operator: TileOperator) -> list[Buffer]:
    effects = operator.effects()
    return list(dict.fromkeys(region.buffer for region in (*effects.reads, *effects.writes)))


@pytest.mark.parametrize("operator", list(operators()), ids=lambda one: f"{one.name}-{getattr(one, 'dim', '')}")
def test_slots_of_a_ring_mean_what_tiles_mean(operator: TileOperator) -> None:
    rng = np.random.default_rng(5)
    used, written = buffers_of(operator), operator.effects().writes[0].buffer
    arrays = {one: random_array(rng, one.static_shape, one.dtype) for one in used}
    expected = run_tiles(operator.lower(), dict(arrays), written)
    for count in range(1, len(used) + 1):
        for moved in itertools.combinations(used, count):
            slots = {one: (tile(f"{one.name}_stages", (2, *one.shape), one.dtype.name), const(1)) for one in moved}
            staged = redirected(operator, slots)
            assert not list(staged.check())
            given = {slots[one][0] if one in slots else one: array for one, array in arrays.items()}
            for one in moved:
                ring, _ = slots[one]
                given[ring] = np.stack([random_array(rng, one.static_shape, one.dtype), arrays[one]])
            result = slots[written][0] if written in slots else written
            for statement in (staged, staged.lower()):
                found = run_tiles(statement, dict(given), result)
                np.testing.assert_allclose(found[1] if written in slots else found, expected, rtol=1e-6)


def test_named_dimensions_are_counted_from_the_end() -> None:
    """A field that names a dimension says whose; `Decode` counts those of the tile, less dimensions of one element."""
    for name, operator in TILE_OPERATORS.items():
        fields = {"dim", "axis", "dims", "axes"} & set(operator.__dataclass_fields__)
        assert fields <= set(operator.dimensions) or name == "decode", name
    assert [
        Reduce(whole(tile("t", (3, 5), "int32")), whole(tile("l", (5,), "int32")), "sum", d).dim for d in (0, -2)
    ] == [-2, -2]


WAYS = [(name, dim) for name in ("reduce_sum", "cumsum", "reduce_argmax") for dim in (0, 1)]


@pytest.mark.parametrize("target", ["cuda -arch=sm_90a", "cuda -arch=sm_80", "cpu"])
@pytest.mark.parametrize(("name", "dim"), WAYS)
def test_dimensions_in_pipelines(name: str, dim: int, target: str) -> None:
    rows, columns, steps = 8, 12, 4
    size = (columns, rows)[dim]

    @T.prim_func
    def staged(X: T.Tensor((steps * rows, columns), "float32"), O: T.Tensor((steps, rows, columns), "float32")):
        with T.Kernel(1, threads=64):
            s, c = T.alloc_shared((rows, columns), "float32"), T.alloc_shared((rows, columns), "float32")
            o = T.alloc_shared((size,), "int32" if name == "reduce_argmax" else "float32")
            for k in T.Pipelined(steps, num_stages=2):
                T.copy(X[k * rows, 0], s)
                if name == "cumsum":
                    T.cumsum(s, c, dim=dim)
                    T.copy(c, O[k, :, :])
                else:
                    getattr(T, name)(s, o, dim=dim)
                    for i in T.Parallel(size):
                        O[k, 0, i] = T.cast(o[i], "float32")

    x = np.random.default_rng(0).standard_normal((steps, rows, columns)).astype(np.float32)
    out = np.full_like(x, np.nan)
    kernel = tilewright.compile(staged, target=target)
    (kernel if target == "cpu" else kernel.emulate)(x.reshape(-1, columns), out)
    if name == "cumsum":
        np.testing.assert_allclose(out, np.cumsum(x, dim + 1), atol=1e-5)
    else:
        expected = x.sum(dim + 1) if name == "reduce_sum" else x.argmax(dim + 1)
        np.testing.assert_allclose(out[:, 0, :size], expected, atol=1e-5)
