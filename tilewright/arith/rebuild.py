"""From linear forms back to expressions, in one fixed and readable order."""

from __future__ import annotations

from tilewright.arith import linear
from tilewright.arith.linear import Linear, Monomial
from tilewright.arith.ranges import interval_of_form
from tilewright.arith.state import State, wrapped
from tilewright.ir import INT32, INT64, Binary, Cast, DType, Expr, Unary


def rebuild(state: State, form: Linear, dtype: DType) -> Expr:
    """The unique expression of `form` in an index type.

    Products come first, then terms by falling coefficient and by name, then what is subtracted, then the
    constant.  Sums of products share their common factor: ``(i + 3) * N`` rather than ``i*N + 3*N``.
    """
    if not form.terms:
        return state.interner.literal(dtype, wrapped(form.constant, dtype))
    key = (form.key, dtype.name)
    found = state.facts.conclusions.rebuilt.get(key)
    if found is None:
        found = _narrowed(state, form, dtype) or _sum(state, form, dtype)
        state.facts.conclusions.rebuilt[key] = found
        state.interner.forms.setdefault(found, form)
    return found


def operation(state: State, op: str, left: Linear, right: Linear, dtype: DType) -> Binary:
    """The atom ``left op right``, in the narrowest type that certainly holds it."""
    dtype = _type_of_operation(left, right, dtype)
    atom = state.interner.binary(dtype, op, rebuild(state, left, dtype), rebuild(state, right, dtype))
    state.interner.operands.setdefault(atom, (left, right))
    return atom


def commutative(state: State, op: str, left: Linear, right: Linear, dtype: DType) -> Binary:
    """`operation` whose operands may trade places: literals right, others in the order of their texts."""
    atom = operation(state, op, left, right, dtype)
    first, second = state.interner.text(atom.left), state.interner.text(atom.right)
    if not left.terms or (right.terms and second < first):
        return operation(state, op, right, left, dtype)
    return atom


def type_of(forms: tuple[Linear, ...], dtype: DType) -> DType:
    """`dtype`, or int64 where an atom is wider than that."""
    wide = any(atom.dtype.bits > dtype.bits for form in forms for atom in form.atoms())
    return INT64 if wide else dtype


def _type_of_operation(left: Linear, right: Linear, dtype: DType) -> DType:
    if dtype.bits == 32:
        return type_of((left, right), dtype)
    for form in (left, right):
        single = form.single_atom()
        plain = single is not None and single[1] == 1 and form.constant == 0 and single[0].dtype.bits == 32
        if not plain and (form.terms or wrapped(form.constant, INT32) != form.constant):
            return dtype
    return INT32 if left.terms or right.terms else dtype


def _narrowed(state: State, form: Linear, dtype: DType) -> Expr | None:
    """A wide sum of narrow atoms, computed narrow and converted once, where it certainly fits."""
    if dtype.bits == 32 or any(atom.dtype.bits != 32 for atom in form.atoms()):
        return None
    largest = abs(form.constant)
    for monomial, coefficient in form.terms.items():
        low, high = interval_of_form(state, Linear(0, {monomial: coefficient}))
        if low is None or high is None:
            return None
        largest += max(abs(low), abs(high), abs(coefficient))
    if largest > INT32.maximum:
        return None
    return state.interner.node(Cast, dtype, rebuild(state, form, INT32))


def _sum(state: State, form: Linear, dtype: DType) -> Expr:
    table = state.interner
    parts = _parts(state, form, dtype)
    parts.sort(key=lambda part: (part[1] < 0, -part[0], -abs(part[1]), table.text(part[2])))
    result: Expr | None = None
    constant = form.constant
    for _, coefficient, value in parts:
        if result is None:
            if coefficient < 0 < constant <= dtype.maximum:
                result, constant = table.literal(dtype, constant), 0
            else:
                result = _times(state, value, coefficient, dtype)
                continue
        term = _times(state, value, abs(coefficient), dtype)
        result = table.binary(dtype, "sub" if coefficient < 0 else "add", result, term)
    assert result is not None
    return _plus(state, result, constant, dtype)


def _plus(state: State, value: Expr, constant: int, dtype: DType) -> Expr:
    """``value + constant``, in as many steps as it takes literals of the type."""
    lowest, highest = int(dtype.minimum), int(dtype.maximum)
    while constant:
        step = min(max(constant, -highest), -lowest)
        if step > highest:
            op, literal = "sub", lowest
        else:
            op, literal = ("add", step) if step > 0 else ("sub", -step)
        value = state.interner.binary(dtype, op, value, state.interner.literal(dtype, literal))
        constant -= step
    return value


def _times(state: State, value: Expr, coefficient: int, dtype: DType) -> Expr:
    if coefficient == 1:
        return value
    if coefficient == -1:
        return state.interner.node(Unary, dtype, "neg", value)
    return state.interner.binary(dtype, "mul", value, state.interner.literal(dtype, wrapped(coefficient, dtype)))


def _parts(state: State, form: Linear, dtype: DType) -> list[tuple[int, int, Expr]]:
    """Summands as (degree, coefficient, value)."""
    terms = dict(form.terms)
    parts: list[tuple[int, int, Expr]] = []
    while True:
        shared = _shared_atom(state, terms)
        if shared is None:
            break
        inside: dict[Monomial, int] = {}
        for monomial in [m for m in terms if shared in m]:
            others = list(monomial)
            others.remove(shared)
            inside[tuple(others)] = terms.pop(monomial)
        factor = Linear(inside.pop((), 0), inside)
        # a negative factor is printed as a subtraction, so that reading it back gives the same text
        sign = -1 if all(c < 0 for c in inside.values()) and factor.constant <= 0 else 1
        left = rebuild(state, linear.scale(factor, sign), dtype)
        parts.append((2, sign, state.interner.binary(dtype, "mul", left, _converted(state, shared, dtype))))
    for monomial, coefficient in terms.items():
        atoms = sorted(monomial, key=state.interner.text)
        value = _converted(state, atoms[0], dtype)
        for atom in atoms[1:]:
            value = state.interner.binary(dtype, "mul", value, _converted(state, atom, dtype))
        parts.append((len(atoms), coefficient, value))
    return parts


def _shared_atom(state: State, terms: dict[Monomial, int]) -> Expr | None:
    """The atom that most terms share, where at least two do and one of them is a product."""
    if len(terms) < 2 or all(len(monomial) == 1 for monomial in terms):
        return None
    counts: dict[Expr, int] = {}
    for monomial in terms:
        for atom in set(monomial):
            counts[atom] = counts.get(atom, 0) + 1
    best = [atom for monomial in terms if len(monomial) > 1 for atom in monomial if counts[atom] > 1]
    return min(best, key=lambda atom: (-counts[atom], state.interner.text(atom))) if best else None


def _converted(state: State, atom: Expr, dtype: DType) -> Expr:
    return atom if atom.dtype == dtype else state.interner.node(Cast, dtype, atom)
