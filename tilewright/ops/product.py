"""What `T.gemm` and `T.gemm_sp` share: a sum of products, by matrix instructions or by threads element by element."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from tilewright.ir import nodes as ir
from tilewright.ir.dtypes import DType
from tilewright.ops import base
from tilewright.ops.gemm_plan import ProductPlan
from tilewright.ops.rounding import round_float, wrap

POLICIES = ("square", "full_row", "full_col")

Added = Callable[[ir.Buffer], Sequence[ir.Statement]]
"""What is added to a sum, which is a scalar."""


class Product(ir.TileOperator):
    """``c += a @ b``, or ``c = a @ b`` where `clear` holds.

    Fields
    ------
    b, c : tiles of two dimensions: ``b`` is (k, n), or (n, k) where `transpose_b`; ``c`` is (m, n).
    clear : whether the old value of c is dropped; a bool or a condition.
    policy : ``"square"``, ``"full_row"`` or ``"full_col"``: how warps share c.
    plan : how instructions execute it (`select_instructions`); None where it is multiplied element by element, and
        before that is known.

    The sum of one operator is rounded once to c's dtype; integers wrap.
    """

    __slots__ = ()

    conditions: ClassVar[tuple[str, ...]] = ("clear",)
    multiplied: ClassVar[tuple[str, ...]] = ()
    """Fields that a matrix instruction reads of shared tiles, itself or through registers."""
    factors: ClassVar[tuple[str, ...]] = ()
    """Fields that are read besides, where they are given."""

    a: ir.Region
    b: ir.Region
    c: ir.Region
    transpose_b: bool
    clear: bool | ir.Expr
    policy: str
    plan: ProductPlan | None

    @property
    def transpose_a(self) -> bool:
        """Whether a is (k, m)."""
        return False

    @property
    def m(self) -> int:
        return base.matrix_shape(self.a)[1 if self.transpose_a else 0]

    @property
    def n(self) -> int:
        return base.matrix_shape(self.b)[0 if self.transpose_b else 1]

    @property
    def k(self) -> int:
        return base.matrix_shape(self.b)[1 if self.transpose_b else 0]

    @property
    def operands(self) -> tuple[ir.Region, ...]:
        """What a matrix instruction reads of shared tiles, itself or through registers."""
        return tuple(getattr(self, name) for name in self.multiplied)

    def read(self) -> list[str]:
        """Names of the fields that are read, in the order of what `reference` gets."""
        old = () if self.clear is True else ("c",)
        return [*self.multiplied, *old, *(name for name in self.factors if getattr(self, name) is not None)]

    def effects(self) -> ir.Effects:
        return ir.Effects(reads=tuple(getattr(self, name) for name in self.read()), writes=(self.c,))

    def check(self) -> Iterator[str]:
        wrong = list(base.check_matrices(**{name: getattr(self, name) for name in (*self.multiplied, "c")}))
        yield from wrong or self._check_shapes()
        yield from self._check_dtypes()
        for operand in self.multiplied if self.c.buffer.scope in ("shared", "global") else ():
            yield from base.check_apart(getattr(self, operand), self.c, same=False)
        if self.policy not in POLICIES:
            yield f"the policy is {self.policy!r}, but should be one of {', '.join(POLICIES)}"

    def _check_shapes(self) -> Iterator[str]:
        if base.matrix_shape(self.c) != (self.m, self.n):
            yield f"the product has shape ({self.m}, {self.n}), but c has shape {base.shape_text(self.c)}"

    def _check_dtypes(self) -> Iterator[str]:
        if self.c.dtype.is_integer and not (self.a.dtype.is_integer and self.b.dtype.is_integer):
            yield f"c is {self.c.dtype}, but the product of {self.a.dtype} and {self.b.dtype} needs a float accumulator"

    def lower(self) -> ir.Statement:
        return base.parallel((self.m, self.n), self._lower_element, span=self.span)

    def _lower_element(self, i: ir.Var, j: ir.Var) -> list[ir.Statement]:
        raise NotImplementedError

    def _wide(self) -> DType:
        """The type in which products are summed."""
        return self.c.dtype if self.c.dtype.is_integer else base.compute_dtype(self.a.dtype, self.b.dtype, self.c.dtype)

    def _summed(self, index: tuple[ir.Var, ir.Var], added: Added, clear: bool | ir.Expr) -> list[ir.Statement]:
        """One element of c: a scalar to which something is added."""
        total = base.accumulator("total", self._wide())
        begun = base.begin(total, self._first_value(index, clear))
        return [begun, *added(total), base.store_element(self.c, index, base.get(total))]

    def _first_value(self, index: tuple[ir.Expr, ...], clear: bool | ir.Expr) -> ir.Expr:
        """What the sum of one element of c begins with: zero where `clear` holds, else what c holds."""
        wide = self._wide()
        old = ir.cast(base.element(self.c, index), wide)
        if isinstance(clear, ir.Expr):
            return ir.Select(wide, clear, base.zero(wide), old)
        return base.zero(wide) if clear else old

    def accumulated(self, a: np.ndarray, b: np.ndarray, old: np.ndarray | None) -> np.ndarray:
        """``old + a @ b``, summed exactly (integers) or in float64, and brought to c's dtype once."""
        old = None if old is None else base.as_shape(old, (self.m, self.n))
        dtype = self.c.dtype
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
