"""`T.gemm`: multiply two tiles into an accumulator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import field
from functools import partial
from typing import ClassVar

import numpy as np

from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import DType
from tilewright.ops import base
from tilewright.ops.gemm_plan import ProductPlan
from tilewright.ops.product import Product

STEP = 4
"""Elements along k that `Gemm.lower_in_steps` takes at once: what a thread reads of float32 operands in one access."""


@ir.tile_operator("gemm")
class Gemm(Product):
    """``c += a @ b``, or ``c = a @ b`` where `clear` holds.

    Fields
    ------
    a : (m, k), or (k, m) where `transpose_a`.
    b, c, transpose_b, clear, policy, plan : as those of every `Product`.
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
    """

    multiplied: ClassVar[tuple[str, ...]] = ("a", "b")
    factors: ClassVar[tuple[str, ...]] = ("scale_a", "scale_b", "shift", "shift_b")

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
    plan: ProductPlan | None = field(default=None, kw_only=True, metadata=ir.UNPRINTED)

    @property
    def is_plain(self) -> bool:
        """Whether products are only added up: nothing is scaled, shifted or promoted."""
        return all(one is None for one in (self.scale_a, self.scale_b, self.shift, self.promote_every))

    def _check_shapes(self) -> Iterator[str]:
        k_of_a = base.matrix_shape(self.a)[0 if self.transpose_a else 1]
        if k_of_a != self.k:
            yield (
                f"a has k = {k_of_a} (shape {base.shape_text(self.a)}{', transposed' * self.transpose_a}), "
                f"but b has k = {self.k} (shape {base.shape_text(self.b)}{', transposed' * self.transpose_b})"
            )
        yield from Product._check_shapes(self)
        if self.groups is not None and (self.groups <= 0 or self.k % self.groups):
            yield f"there are {self.groups} groups, which do not divide k = {self.k}"
            return
        for name, operand, scale in (("a", self.a, self.scale_a), ("b", self.b, self.scale_b)):
            if scale is None or self.blocks(scale, operand, name == "a") is not None:
                continue
            if self.groups is not None:
                size = self.m if name == "a" else self.n
                yield (
                    f"the scale of {name} has shape {base.shape_text(scale)}, but a line of {size} for each of "
                    f"{self.groups} groups is needed"
                )
            else:
                yield (
                    f"the scale of {name} has shape {base.shape_text(scale)}, "
                    f"which does not divide that of {name}, {base.shape_text(operand)}"
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
                if line is not None and base.shape_of_rank(line, 2) != (self.groups, size):
                    yield (
                        f"the {name} has shape {base.shape_text(line)}, but a line of {size} for each of "
                        f"{self.groups} groups is needed"
                    )
            return
        if self.shift_b is not None and base.shape_of_rank(self.shift_b, 1) != (self.n,):
            yield (
                f"the shift's factor has shape {base.shape_text(self.shift_b)}, but one element for each of {self.n} "
                "columns is needed"
            )
        if base.shape_of_rank(self.shift, 1) != (self.m,):
            shape = base.shape_text(self.shift)
            yield f"the shift has shape {shape}, but one element for each of {self.m} rows is needed"
        for scale, operand, is_a in ((self.scale_a, self.a, True), (self.scale_b, self.b, False)):
            blocks = None if scale is None else self.blocks(scale, operand, is_a)
            if blocks is not None and blocks[self.axis_of_k(is_a)] > 1:
                yield "a shift is added before scales, which must have one block along k"

    def _check_dtypes(self) -> Iterator[str]:
        a, b, c = self.a.dtype, self.b.dtype, self.c.dtype
        if "bool" in (a.kind, b.kind, c.kind):
            yield f"operands are {a}, {b} and {c}, but a product of bools is not defined"
        else:
            yield from Product._check_dtypes(self)
        if c.is_integer and (self.scale_a is not None or self.scale_b is not None):
            yield f"c is {c}, but a scaled product needs a float accumulator"

    def blocks(self, scale: ir.Region, operand: ir.Region, is_a: bool) -> tuple[int, int] | None:
        """Number of blocks along the operand's two axes, or None where they do not divide it."""
        shape = base.matrix_shape(operand)
        if self.groups is not None:
            found = [shape[0], shape[1]]
            found[self.axis_of_k(is_a)] = self.groups
            size = self.m if is_a else self.n
            return (found[0], found[1]) if base.shape_of_rank(scale, 2) == (self.groups, size) else None
        if self.is_line(scale, is_a):
            blocks = [scale.static_extents[-1]] * 2
            blocks[self.axis_of_k(is_a)] = 1
        else:
            two = base.static_shape_of_rank(scale, 2)
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
        return (
            all(extent == 1 for extent in leading if isinstance(extent, int))
            and all(isinstance(extent, int) for extent in leading)
            and last == (self.m if is_a else self.n)
        )

    def axis_of_k(self, is_a: bool) -> int:
        """Which axis of a, or of b, is k."""
        return int(not self.transpose_a) if is_a else int(self.transpose_b)

    def scale_index(self, scale: ir.Region, is_a: bool, at: ir.Expr, block: ir.Expr) -> tuple[ir.Expr, ...]:
        """Index, in a scale, of the factor for one of its blocks of rows of op(a) or columns of op(b), in a block of
        k."""
        if self.is_line(scale, is_a):
            return (at,)
        return (block, at) if self.groups is not None or self.axis_of_k(is_a) == 0 else (at, block)

    def reference(self, *reads: np.ndarray) -> tuple[np.ndarray]:
        operands = dict(zip(self.read(), reads))
        a = base.as_shape(operands["a"], base.shape_of_rank(self.a, 2))
        b = base.as_shape(operands["b"], base.shape_of_rank(self.b, 2))
        if not self.c.dtype.is_integer:
            a, b = self._scaled(a, operands.get("scale_a"), True), self._scaled(b, operands.get("scale_b"), False)
        a, b = a.T if self.transpose_a else a, b.T if self.transpose_b else b
        if self.shift is not None:  # one more step of k, scaled as the others are
            a, b = self._with_shift(a, b, operands)
        return (self.accumulated(a, b, operands.get("c")),)

    def _with_shift(
        self, a: np.ndarray, b: np.ndarray, operands: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows of k, with the shift as one more column of a and the scales as one more row of b."""
        assert self.shift is not None
        wide = np.int64 if self.c.dtype.is_integer else np.float64
        groups = self.groups or 1
        column = base.as_shape(operands["shift"], (groups, self.m)).T.astype(wide)
        row: np.ndarray = np.ones((groups, self.n), wide)
        if "scale_a" in operands:
            column = column * _each(operands["scale_a"], groups, self.m).T
        for name in ("scale_b", "shift_b"):
            if name in operands:
                row = row * _each(operands[name], groups, self.n).astype(wide)
        return np.hstack([a.astype(wide), column]), np.vstack([b.astype(wide), row])

    def _scaled(self, values: np.ndarray, scales: np.ndarray | None, is_a: bool) -> np.ndarray:
        wide = values.astype(np.float64)
        scale, operand = (self.scale_a, self.a) if is_a else (self.scale_b, self.b)
        if scales is None or scale is None:
            return wide
        blocks = self.blocks(scale, operand, is_a)
        assert blocks is not None
        if self.groups is not None and self.axis_of_k(is_a) == 1:
            scales = base.as_shape(scales, blocks[::-1]).T
        factors = base.as_shape(scales, blocks).astype(np.float64)
        for axis in (0, 1):
            factors = np.repeat(factors, wide.shape[axis] // factors.shape[axis], axis=axis)
        return wide * factors

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
                return self._summed((i, j), partial(change, (i, j)), clear)

            return base.parallel((self.m, self.n), through_scalar, span=self.span)

        def products(number: ir.Var) -> list[ir.Statement]:
            first = number * step
            steps = [first + at for at in range(step)]
            return [over_elements(lambda index, total: [self._add_product(index, k, total) for k in steps])]

        begun = [] if self.clear is False else [over_elements(lambda index, total: [], self.clear)]
        shifted = [] if self.shift is None else [over_elements(lambda index, total: [self.add_shift(index, total)])]
        return ir.seq([*begun, base.serial("k", 0, self.k // step, products), *shifted])

    def _lower_element(self, i: ir.Var, j: ir.Var) -> list[ir.Statement]:
        """One element of c: a scalar accumulator over k."""

        def added(total: ir.Buffer) -> list[ir.Statement]:
            products = base.serial("k", 0, self.k, lambda k: [self._add_product((i, j), k, total)])
            return [products, *([] if self.shift is None else [self.add_shift((i, j), total)])]

        return self._summed((i, j), added, self.clear)

    def _add_product(self, index: tuple[ir.Var, ir.Var], k: ir.Expr, total: ir.Buffer) -> ir.Statement:
        """The product of step k, added to the sum of one element of c."""
        i, j = index
        a = self._operand(self.a, self.scale_a, (k, i) if self.transpose_a else (i, k), total.dtype, True)
        b = self._operand(self.b, self.scale_b, (j, k) if self.transpose_b else (k, j), total.dtype, False)
        return base.put(total, ir.binary("add", base.get(total), ir.binary("mul", a, b)))

    def add_shift(self, index: tuple[ir.Expr, ir.Expr], total: ir.Buffer) -> ir.Statement:
        """The shift of every group, added to the sum of one element of c."""

        def one(group: ir.Expr) -> list[ir.Statement]:
            return [base.put(total, ir.binary("add", base.get(total), self._shift(*index, group, total.dtype)))]

        return one(ir.const(0))[0] if self.groups is None else base.serial("g", 0, self.groups, one)

    def _shift(self, i: ir.Expr, j: ir.Expr, group: ir.Expr, wide: DType) -> ir.Expr:
        """What the shift of one group adds to one element of c."""
        assert self.shift is not None
        value = ir.cast(base.element(self.shift, (i,) if self.groups is None else (group, i)), wide)
        if self.shift_b is not None:
            factor = base.element(self.shift_b, (j,) if self.groups is None else (group, j))
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
        at = base.blocked_index(at, base.matrix_shape(region)[1 - axis], blocks[1 - axis])
        if block is None:
            assert k is not None
            block = base.blocked_index(k, base.matrix_shape(region)[axis], blocks[axis])
        return base.element(scale, self.scale_index(scale, is_a, at, block))

    def _operand(
        self, region: ir.Region, scale: ir.Region | None, index: tuple[ir.Expr, ir.Expr], wide: DType, is_a: bool
    ) -> ir.Expr:
        value = ir.cast(base.element(region, index), wide)
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
