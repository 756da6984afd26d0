"""`T.gemm`: multiply two tiles into an accumulator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import ClassVar

import numpy as np

from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import DType
from tilewright.ops.base import (
    accumulator,
    as_shape,
    begin,
    blocked_index,
    check_matrices,
    compute_dtype,
    element,
    get,
    matrix_shape,
    parallel,
    put,
    serial,
    shape_of_rank,
    shape_text,
    static_shape_of_rank,
    store_element,
    zero,
)
from tilewright.ops.gemm_plan import GemmPlan
from tilewright.ops.rounding import round_float, wrap

POLICIES = ("square", "full_row", "full_col")

STEP = 4
"""Elements along k that `Gemm.lower_in_steps` takes at once: what a thread reads of float32 operands in one access."""


@ir.tile_operator("gemm")
class Gemm(ir.TileOperator):
    """``c += a @ b``, or ``c = a @ b`` where `clear` holds.

    Fields
    ------
    a, b, c : tiles of two dimensions (dimensions of extent 1 before them are dropped): ``a`` is (m, k), or
        (k, m) where `transpose_a`; ``b`` is (k, n), or (n, k) where `transpose_b`; ``c`` is (m, n).
    clear : whether the old value of c is dropped; a bool or a condition.
    policy : ``"square"``, ``"full_row"`` or ``"full_col"``: how warps share c.
    scale_a, scale_b : scales of blocks of a and b, or None.  A scale has the axes of its operand, each of an
        extent that divides the operand's: every element of a block is multiplied by its block's scale.  A
        scale of one dimension (or a row of a larger tensor) has one element for each row of op(a), or each
        column of op(b).
    shift : one element for each row of op(a), or None: it is added to every product of that row before scales, which
        have one block along k then: ``c += (a @ b + shift) * scales``.
    shift_b : with a shift, one factor of it for each column of op(b), as zero points are:
        ``c += (a @ b + shift * shift_b) * scales``.
    groups : into how many equal parts k is cut, each with a line of its own in the scales and the shift, which are
        (groups, rows of op(a)) or (groups, columns of op(b)) then: ``c += (a_g @ b_g + shift[g]) * scales[g]`` for
        every group. None: scales are laid out as said above.
    promote_every : elements of k after which a partial sum kept in the matrix unit's accumulator is added to
        `c` in full precision (and scaled), or None where the instruction's own accumulation is good enough.

    plan : how matrix instructions execute it (`select_instructions`); None where threads multiply element by element,
        and before that is known.

    The sum of one operator is rounded once to c's dtype; integers wrap.
    """

    conditions: ClassVar[tuple[str, ...]] = ("clear",)

    a: ir.Region
    b: ir.Region
    c: ir.Region
    transpose_a: bool = False
    transpose_b: bool = False
    clear: bool | ir.Expr = False
    policy: str = "square"
    scale_a: ir.Region | None = None
    scale_b: ir.Region | None = None
    promote_every: int | None = None
    shift: ir.Region | None = None
    groups: int | None = None
    shift_b: ir.Region | None = None
    plan: GemmPlan | None = field(default=None, kw_only=True, metadata=ir.UNPRINTED)

    @property
    def operands(self) -> tuple[ir.Region, ...]:
        """What a matrix instruction reads of shared tiles, itself or through registers."""
        return (self.a, self.b)

    @property
    def m(self) -> int:
        return matrix_shape(self.a)[1 if self.transpose_a else 0]

    @property
    def n(self) -> int:
        return matrix_shape(self.b)[0 if self.transpose_b else 1]

    @property
    def k(self) -> int:
        return matrix_shape(self.a)[0 if self.transpose_a else 1]

    def check(self) -> Iterator[str]:
        wrong = list(check_matrices(a=self.a, b=self.b, c=self.c))
        yield from wrong or self._check_shapes()
        yield from self._check_dtypes()
        if self.policy not in POLICIES:
            yield f"the policy is {self.policy!r}, but should be one of {', '.join(POLICIES)}"

    def _check_shapes(self) -> Iterator[str]:
        k_of_b = matrix_shape(self.b)[1 if self.transpose_b else 0]
        if self.k != k_of_b:
            yield (
                f"a has k = {self.k} (shape {shape_text(self.a)}{', transposed' * self.transpose_a}), "
                f"but b has k = {k_of_b} (shape {shape_text(self.b)}{', transposed' * self.transpose_b})"
            )
        if matrix_shape(self.c) != (self.m, self.n):
            yield f"the product has shape ({self.m}, {self.n}), but c has shape {shape_text(self.c)}"
        if self.groups is not None and (self.groups <= 0 or self.k % self.groups):
            yield f"there are {self.groups} groups, which do not divide k = {self.k}"
            return
        for name, operand, scale in (("a", self.a, self.scale_a), ("b", self.b, self.scale_b)):
            if scale is None or self.blocks(scale, operand, name == "a") is not None:
                continue
            if self.groups is not None:
                size = self.m if name == "a" else self.n
                yield (
                    f"the scale of {name} has shape {shape_text(scale)}, but a line of {size} for each of "
                    f"{self.groups} groups is needed"
                )
            else:
                yield (
                    f"the scale of {name} has shape {shape_text(scale)}, "
                    f"which does not divide that of {name}, {shape_text(operand)}"
                )
        yield from self._check_shift()
        every = self.promote_every
        if every is not None and (every <= 0 or self.k % every):
            yield f"promote_every is {every}, which does not divide k = {self.k}"

    def _check_shift(self) -> Iterator[str]:
        if self.shift is None:
            if self.shift_b is not None:
                yield "factors of a shift were given without it"
            return
        if self.groups is not None:
            for name, line, size in (("shift", self.shift, self.m), ("shift's factor", self.shift_b, self.n)):
                if line is not None and shape_of_rank(line, 2) != (self.groups, size):
                    yield (
                        f"the {name} has shape {shape_text(line)}, but a line of {size} for each of "
                        f"{self.groups} groups is needed"
                    )
            return
        if self.shift_b is not None and shape_of_rank(self.shift_b, 1) != (self.n,):
            yield (
                f"the shift's factor has shape {shape_text(self.shift_b)}, but one element for each of {self.n} "
                "columns is needed"
            )
        if shape_of_rank(self.shift, 1) != (self.m,):
            yield f"the shift has shape {shape_text(self.shift)}, but one element for each of {self.m} rows is needed"
        for scale, operand, is_a in ((self.scale_a, self.a, True), (self.scale_b, self.b, False)):
            blocks = None if scale is None else self.blocks(scale, operand, is_a)
            if blocks is not None and blocks[self.axis_of_k(is_a)] > 1:
                yield "a shift is added before scales, which must have one block along k"

    def _check_dtypes(self) -> Iterator[str]:
        a, b, c = self.a.dtype, self.b.dtype, self.c.dtype
        if "bool" in (a.kind, b.kind, c.kind):
            yield f"operands are {a}, {b} and {c}, but a product of bools is not defined"
        elif c.is_integer and not (a.is_integer and b.is_integer):
            yield f"c is {c}, but the product of {a} and {b} needs a float accumulator"
        if c.is_integer and (self.scale_a is not None or self.scale_b is not None):
            yield f"c is {c}, but a scaled product needs a float accumulator"

    def blocks(self, scale: ir.Region, operand: ir.Region, is_a: bool) -> tuple[int, int] | None:
        """Number of blocks along the operand's two axes, or None where they do not divide it."""
        shape = matrix_shape(operand)
        if self.groups is not None:
            found = [shape[0], shape[1]]
            found[self.axis_of_k(is_a)] = self.groups
            size = self.m if is_a else self.n
            return (found[0], found[1]) if shape_of_rank(scale, 2) == (self.groups, size) else None
        if self.is_line(scale, is_a):
            blocks = [scale.static_extents[-1]] * 2
            blocks[self.axis_of_k(is_a)] = 1
        else:
            two = static_shape_of_rank(scale, 2)
            if two is None:
                return None
            blocks = list(two)
        fits = all(count > 0 and extent % count == 0 for count, extent in zip(blocks, shape, strict=True))
        return (blocks[0], blocks[1]) if fits else None

    def scale_blocks(self, is_a: bool) -> tuple[int, int]:
        """Blocks of a scale across k, of rows of op(a) or columns of op(b), and along it; one of each without a
        scale."""
        scale, operand = (self.scale_a, self.a) if is_a else (self.scale_b, self.b)
        blocks = (1, 1) if scale is None else self.blocks(scale, operand, is_a)
        assert blocks is not None  # the operator has been checked
        axis = self.axis_of_k(is_a)
        return blocks[1 - axis], blocks[axis]

    def is_line(self, scale: ir.Region, is_a: bool) -> bool:
        """Whether a scale has one dimension: a factor for each row of op(a), or each column of op(b).

        A row cut out of a larger tensor (``S[group, n:n + 64]``) is one too.
        """
        if self.groups is not None:
            return False
        if len(scale.extents) == 1:
            return True
        leading, last = scale.extents[:-1], scale.extents[-1]
        return all(extent == 1 for extent in leading if isinstance(extent, int)) and all(
            isinstance(extent, int) for extent in leading
        ) and last == (self.m if is_a else self.n)  # fmt: skip

    def axis_of_k(self, is_a: bool) -> int:
        """Which axis of a, or of b, is k."""
        return int(not self.transpose_a) if is_a else int(self.transpose_b)

    def scale_index(self, scale: ir.Region, is_a: bool, at: ir.Expr, block: ir.Expr) -> tuple[ir.Expr, ...]:
        """Index, in a scale, of the factor for one of its blocks of rows of op(a) or columns of op(b), in a block of
        k."""
        if self.is_line(scale, is_a):
            return (at,)
        return (block, at) if self.groups is not None or self.axis_of_k(is_a) == 0 else (at, block)

    def effects(self) -> ir.Effects:
        reads = [self.a, self.b]
        if self.clear is not True:
            reads.append(self.c)
        reads += [more for more in (self.scale_a, self.scale_b, self.shift, self.shift_b) if more is not None]
        return ir.Effects(reads=tuple(reads), writes=(self.c,))

    def reference(self, *reads: np.ndarray) -> tuple[np.ndarray]:
        operands = dict(zip(self._operands(), reads))
        a = as_shape(operands["a"], shape_of_rank(self.a, 2))
        b = as_shape(operands["b"], shape_of_rank(self.b, 2))
        old = None if self.clear is True else as_shape(operands["c"], (self.m, self.n))
        if not self.c.dtype.is_integer:
            a, b = self._scaled(a, operands.get("scale_a"), True), self._scaled(b, operands.get("scale_b"), False)
        a, b = a.T if self.transpose_a else a, b.T if self.transpose_b else b
        if self.shift is not None:  # one more step of k, scaled as the others are
            a, b = self._with_shift(a, b, operands)
        return (accumulated(a, b, old, self.c.dtype),)

    def _with_shift(
        self, a: np.ndarray, b: np.ndarray, operands: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows of k, with the shift as one more column of a and the scales as one more row of b."""
        assert self.shift is not None
        wide = np.int64 if self.c.dtype.is_integer else np.float64
        groups = self.groups or 1
        column = as_shape(operands["shift"], (groups, self.m)).T.astype(wide)
        row: np.ndarray = np.ones((groups, self.n), wide)
        if "scale_a" in operands:
            column = column * _each(operands["scale_a"], groups, self.m).T
        for name in ("scale_b", "shift_b"):
            if name in operands:
                row = row * _each(operands[name], groups, self.n).astype(wide)
        return np.hstack([a.astype(wide), column]), np.vstack([b.astype(wide), row])

    def _operands(self) -> Iterator[str]:
        """Names of the fields that `effects` reads, in its order."""
        yield from ("a", "b")
        if self.clear is not True:
            yield "c"
        yield from (n for n in ("scale_a", "scale_b", "shift", "shift_b") if getattr(self, n) is not None)

    def _scaled(self, values: np.ndarray, scales: np.ndarray | None, is_a: bool) -> np.ndarray:
        wide = values.astype(np.float64)
        scale, operand = (self.scale_a, self.a) if is_a else (self.scale_b, self.b)
        if scales is None or scale is None:
            return wide
        blocks = self.blocks(scale, operand, is_a)
        assert blocks is not None
        if self.groups is not None and self.axis_of_k(is_a) == 1:
            scales = as_shape(scales, blocks[::-1]).T
        factors = as_shape(scales, blocks).astype(np.float64)
        for axis in (0, 1):
            factors = np.repeat(factors, wide.shape[axis] // factors.shape[axis], axis=axis)
        return wide * factors

    def lower(self) -> ir.Statement:
        return parallel((self.m, self.n), self._lower_element, span=self.span)

    def lower_in_steps(self) -> ir.Statement | None:
        """The same where a thread keeps many elements of c in registers: a few steps of k for all of them, then the
        next.

        What a step reads of a and b serves a whole row or column of the thread's elements, and only a step's text is
        written out. None where c is no fragment, or of a type in which its sums cannot wait.
        """
        wide, step = self._wide(), math.gcd(self.k, STEP)
        if self.c.buffer.scope != "fragment" or self.c.dtype != wide:
            return None

        def over_elements(
            change: Callable[[tuple[ir.Var, ir.Var], ir.Buffer], list[ir.Statement]], clear: bool | ir.Expr = False
        ) -> ir.Statement:
            def through_scalar(i: ir.Var, j: ir.Var) -> list[ir.Statement]:
                total = accumulator("total", wide)
                first = first_value(self.c, (i, j), clear, wide)
                return [begin(total, first), *change((i, j), total), store_element(self.c, (i, j), get(total))]

            return parallel((self.m, self.n), through_scalar, span=self.span)

        def products(number: ir.Var) -> list[ir.Statement]:
            first = number * step
            steps = [first + at for at in range(step)]
            return [over_elements(lambda index, total: [self._add_product(index, k, total) for k in steps])]

        begun = [] if self.clear is False else [over_elements(lambda index, total: [], self.clear)]
        shifted = [] if self.shift is None else [over_elements(lambda index, total: [self.add_shift(index, total)])]
        return ir.seq([*begun, serial("k", 0, self.k // step, products), *shifted])

    def _wide(self) -> DType:
        """The type in which products are summed."""
        return self.c.dtype if self.c.dtype.is_integer else compute_dtype(self.a.dtype, self.b.dtype, self.c.dtype)

    def _lower_element(self, i: ir.Var, j: ir.Var) -> list[ir.Statement]:
        """One element of c: a scalar accumulator over k."""
        wide = self._wide()
        first = first_value(self.c, (i, j), self.clear, wide)
        total = accumulator("total", wide)
        shifted = [] if self.shift is None else [self.add_shift((i, j), total)]
        products = serial("k", 0, self.k, lambda k: [self._add_product((i, j), k, total)])
        return [begin(total, first), products, *shifted, store_element(self.c, (i, j), get(total))]

    def _add_product(self, index: tuple[ir.Var, ir.Var], k: ir.Expr, total: ir.Buffer) -> ir.Statement:
        """The product of step k, added to the sum of one element of c."""
        i, j = index
        a = self._operand(self.a, self.scale_a, (k, i) if self.transpose_a else (i, k), total.dtype, True)
        b = self._operand(self.b, self.scale_b, (j, k) if self.transpose_b else (k, j), total.dtype, False)
        return put(total, ir.binary("add", get(total), ir.binary("mul", a, b)))

    def add_shift(self, index: tuple[ir.Expr, ir.Expr], total: ir.Buffer) -> ir.Statement:
        """The shift of every group, added to the sum of one element of c."""

        def one(group: ir.Expr) -> list[ir.Statement]:
            return [put(total, ir.binary("add", get(total), self._shift(*index, group, total.dtype)))]

        return one(ir.const(0))[0] if self.groups is None else serial("g", 0, self.groups, one)

    def _shift(self, i: ir.Expr, j: ir.Expr, group: ir.Expr, wide: DType) -> ir.Expr:
        """What the shift of one group adds to one element of c."""
        assert self.shift is not None
        value = ir.cast(element(self.shift, (i,) if self.groups is None else (group, i)), wide)
        if self.shift_b is not None:
            factor = element(self.shift_b, (j,) if self.groups is None else (group, j))
            value = ir.binary("mul", value, ir.cast(factor, wide))
        for scale, region, at, is_a in ((self.scale_a, self.a, i, True), (self.scale_b, self.b, j, False)):
            if scale is not None:
                value = ir.binary("mul", value, ir.cast(self._factor(scale, region, is_a, at, group, None), wide))
        return value

    def _factor(
        self, scale: ir.Region, region: ir.Region, is_a: bool, at: ir.Expr, block: ir.Expr | None, k: ir.Expr | None
    ) -> ir.Expr:
        """The factor for a row of op(a) or a column of op(b), in a block of k or in that of one k."""
        blocks, axis = self.blocks(scale, region, is_a), self.axis_of_k(is_a)
        assert blocks is not None
        at = blocked_index(at, matrix_shape(region)[1 - axis], blocks[1 - axis])
        if block is None:
            assert k is not None
            block = blocked_index(k, matrix_shape(region)[axis], blocks[axis])
        return element(scale, self.scale_index(scale, is_a, at, block))

    def _operand(
        self, region: ir.Region, scale: ir.Region | None, index: tuple[ir.Expr, ir.Expr], wide: DType, is_a: bool
    ) -> ir.Expr:
        value = ir.cast(element(region, index), wide)
        if scale is None:
            return value
        axis = self.axis_of_k(is_a)
        return ir.binary(
            "mul", value, ir.cast(self._factor(scale, region, is_a, index[1 - axis], None, index[axis]), wide)
        )


def _each(scales: np.ndarray, groups: int, size: int) -> np.ndarray:
    """The factor of each of `size` rows or columns in each group, from those of blocks of them."""
    factors = scales.reshape(groups, -1).astype(np.float64)
    return np.repeat(factors, size // factors.shape[1], axis=1)


def first_value(c: ir.Region, index: tuple[ir.Expr, ...], clear: bool | ir.Expr, wide: DType) -> ir.Expr:
    """What the sum of one element of c begins with: zero where `clear` holds, else what c holds."""
    old = ir.cast(element(c, index), wide)
    if isinstance(clear, ir.Expr):
        return ir.Select(wide, clear, zero(wide), old)
    return zero(wide) if clear else old


def accumulated(a: np.ndarray, b: np.ndarray, old: np.ndarray | None, dtype: DType) -> np.ndarray:
    """``old + a @ b`` as `dtype`, summed exactly (integers) or in float64, and brought to `dtype` once."""
    if dtype.is_integer:
        total = integer_product(a, b)
        return wrap(total if old is None else total + old.astype(total.dtype), dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        product = a.astype(np.float64) @ b.astype(np.float64)
        product = product if old is None else product + old.astype(np.float64)
    return round_float(product, dtype)


def integer_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``a @ b`` of integers, exact modulo 2**64, as int64.

    Where no partial sum can reach 2**53, the product is taken in float64, which is exact there and much
    faster than NumPy's integer loops.
    """
    if a.size == 0 or b.size == 0:
        return np.zeros((a.shape[0], b.shape[1]), np.int64)
    bound = float(np.abs(a.astype(np.float64)).max()) * float(np.abs(b.astype(np.float64)).max()) * a.shape[1]
    if bound < 2.0**53:
        return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)
    return a.astype(np.int64) @ b.astype(np.int64)
