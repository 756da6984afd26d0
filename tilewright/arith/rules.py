"""Laws that hold for every value of a type, as a table: a pattern, what it becomes, and where it holds.

Patterns are written as Python.  ``x y z`` stand for any operand, ``p q`` for any condition, ``c d`` for literals;
the same letter twice must match the same expression.  ``and or not`` are the lazy logical operators.  A rule
never makes an expression larger, so applying rules ends.  The domain names the types of the *operands*:

``integer``   every integer type, with wrapping arithmetic
``bits``      integers and bool
``float``     float16, bfloat16, float32 and float64: only what is exact for NaN, infinities and both zeros
``bool``      conditions
``any``       every scalar type

Sums, products, quotients and comparisons of *index* types do not come here: their canonical form is `linear`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """``pattern -> result`` on operands of `domain`, where the literals satisfy `where` (Python on ints)."""

    pattern: str
    result: str
    domain: str
    where: str = ""


RULES: tuple[Rule, ...] = (
    # Neutral and absorbing elements.
    Rule("x + 0", "x", "integer"),
    Rule("0 + x", "x", "integer"),
    Rule("x - 0", "x", "integer"),
    Rule("x * 1", "x", "integer"),
    Rule("1 * x", "x", "integer"),
    Rule("x * 0", "0", "integer"),
    Rule("0 * x", "0", "integer"),
    Rule("x // 1", "x", "integer"),
    Rule("x % 1", "0", "integer"),
    Rule("0 // x", "0", "integer"),
    Rule("0 % x", "0", "integer"),
    Rule("x & 0", "0", "integer"),
    Rule("0 & x", "0", "integer"),
    Rule("x | 0", "x", "integer"),
    Rule("0 | x", "x", "integer"),
    Rule("x ^ 0", "x", "integer"),
    Rule("0 ^ x", "x", "integer"),
    Rule("x << 0", "x", "integer"),
    Rule("x >> 0", "x", "integer"),
    Rule("0 << x", "0", "integer"),
    Rule("0 >> x", "0", "integer"),
    # An operand met twice.
    Rule("x - x", "0", "integer"),
    Rule("x // x", "1", "integer"),  # division by zero is undefined
    Rule("x % x", "0", "integer"),
    Rule("x & x", "x", "bits"),
    Rule("x | x", "x", "bits"),
    Rule("x ^ x", "0", "integer"),
    Rule("min(x, x)", "x", "any"),
    Rule("max(x, x)", "x", "any"),
    # Literals gather: addition and multiplication modulo 2**bits associate.
    Rule("(x + c) + d", "x + (c + d)", "integer"),
    Rule("(x - c) - d", "x - (c + d)", "integer"),
    Rule("(x + c) - d", "x + (c - d)", "integer"),
    Rule("(x - c) + d", "x + (d - c)", "integer"),
    Rule("(x * c) * d", "x * (c * d)", "integer"),
    Rule("(x & c) & d", "x & (c & d)", "integer"),
    Rule("(x | c) | d", "x | (c | d)", "integer"),
    Rule("(x ^ c) ^ d", "x ^ (c ^ d)", "integer"),
    Rule("(x // c) // d", "x // (c * d)", "integer", "c > 0 and d > 0 and c * d < 2 ** (bits - 1)"),
    Rule("(x >> c) >> d", "x >> (c + d)", "integer", "0 <= c and 0 <= d and c + d < bits"),
    Rule("(x % c) % c", "x % c", "integer"),
    # Literals stand right.
    Rule("c + x", "x + c", "integer"),
    Rule("c * x", "x * c", "integer"),
    Rule("c & x", "x & c", "integer"),
    Rule("c | x", "x | c", "integer"),
    Rule("c ^ x", "x ^ c", "integer"),
    Rule("min(c, x)", "min(x, c)", "integer"),
    Rule("max(c, x)", "max(x, c)", "integer"),
    # Negations.
    Rule("-(-x)", "x", "integer"),
    Rule("~(~x)", "x", "integer"),
    Rule("x + -y", "x - y", "integer"),
    Rule("x - -y", "x + y", "integer"),
    # Minima and maxima form a lattice.
    Rule("min(min(x, y), y)", "min(x, y)", "integer"),
    Rule("min(min(x, y), x)", "min(x, y)", "integer"),
    Rule("max(max(x, y), y)", "max(x, y)", "integer"),
    Rule("max(max(x, y), x)", "max(x, y)", "integer"),
    Rule("min(max(x, y), x)", "x", "integer"),
    Rule("min(max(x, y), y)", "y", "integer"),
    Rule("max(min(x, y), x)", "x", "integer"),
    Rule("max(min(x, y), y)", "y", "integer"),
    Rule("min(x, max(x, y))", "x", "integer"),
    Rule("min(y, max(x, y))", "y", "integer"),
    Rule("max(x, min(x, y))", "x", "integer"),
    Rule("max(y, min(x, y))", "y", "integer"),
    Rule("min(min(x, c), d)", "min(x, min(c, d))", "integer"),
    Rule("max(max(x, c), d)", "max(x, max(c, d))", "integer"),
    Rule("min(max(x, c), d)", "d", "integer", "c >= d"),
    Rule("max(min(x, c), d)", "d", "integer", "c <= d"),
    # A choice that is no choice.
    Rule("select(True, x, y)", "x", "any"),
    Rule("select(False, x, y)", "y", "any"),
    Rule("select(p, x, x)", "x", "any"),
    Rule("select(p, True, False)", "p", "bool"),
    Rule("select(p, False, True)", "not p", "bool"),
    Rule("select(not p, x, y)", "select(p, y, x)", "any"),
    Rule("select(p, select(p, x, y), z)", "select(p, x, z)", "any"),
    Rule("select(p, x, select(p, y, z))", "select(p, x, z)", "any"),
    # Boolean algebra; the operands kept are evaluated in their old order.
    Rule("True and p", "p", "bool"),
    Rule("p and True", "p", "bool"),
    Rule("False and p", "False", "bool"),
    Rule("p and False", "False", "bool"),
    Rule("True or p", "True", "bool"),
    Rule("p or True", "True", "bool"),
    Rule("False or p", "p", "bool"),
    Rule("p or False", "p", "bool"),
    Rule("p and p", "p", "bool"),
    Rule("p or p", "p", "bool"),
    Rule("p and (p and q)", "p and q", "bool"),
    Rule("(p and q) and q", "p and q", "bool"),
    Rule("(p and q) and p", "p and q", "bool"),
    Rule("p or (p or q)", "p or q", "bool"),
    Rule("(p or q) or q", "p or q", "bool"),
    Rule("(p or q) or p", "p or q", "bool"),
    Rule("p and (p or q)", "p", "bool"),
    Rule("p or (p and q)", "p", "bool"),
    Rule("p and not p", "False", "bool"),
    Rule("not p and p", "False", "bool"),
    Rule("p or not p", "True", "bool"),
    Rule("not p or p", "True", "bool"),
    Rule("not not p", "p", "bool"),
    Rule("p == True", "p", "bool"),
    Rule("p == False", "not p", "bool"),
    Rule("p != True", "not p", "bool"),
    Rule("p != False", "p", "bool"),
    # Comparisons.  A float may be NaN, which is not even equal to itself.
    Rule("not (x == y)", "x != y", "any"),
    Rule("not (x != y)", "x == y", "any"),
    Rule("not (x < y)", "y <= x", "integer"),
    Rule("not (x <= y)", "y < x", "integer"),
    Rule("not (x > y)", "x <= y", "integer"),
    Rule("not (x >= y)", "x < y", "integer"),
    Rule("x == x", "True", "bits"),
    Rule("x != x", "False", "bits"),
    Rule("x <= x", "True", "integer"),
    Rule("x >= x", "True", "integer"),
    Rule("x < x", "False", "any"),
    Rule("x > x", "False", "any"),
    # Floats.  x + 0.0 is not x where x is -0.0, and x * 0 is not 0 where x is infinite.
    Rule("x - 0.0", "x", "float"),
    Rule("x + -0.0", "x", "float"),
    Rule("-0.0 + x", "x", "float"),
    Rule("x * 1", "x", "float"),
    Rule("1 * x", "x", "float"),
    Rule("x / 1", "x", "float"),
    Rule("-(-x)", "x", "float"),
)
