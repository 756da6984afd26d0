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


_LAWS = """
# Neutral and absorbing elements.
integer: x + 0 -> x;  0 + x -> x;  x - 0 -> x;  x * 1 -> x;  1 * x -> x;  x * 0 -> 0;  0 * x -> 0;  x // 1 -> x
integer: x % 1 -> 0;  0 // x -> 0;  0 % x -> 0;  x & 0 -> 0;  0 & x -> 0;  x | 0 -> x;  0 | x -> x;  x ^ 0 -> x
integer: 0 ^ x -> x;  x << 0 -> x;  x >> 0 -> x;  0 << x -> 0;  0 >> x -> 0
# An operand met twice.
integer: x - x -> 0;  x // x -> 1;  x % x -> 0
bits: x & x -> x;  x | x -> x
integer: x ^ x -> 0
any: min(x, x) -> x;  max(x, x) -> x
# Literals gather: addition and multiplication modulo 2**bits associate.
integer: (x + c) + d -> x + (c + d);  (x - c) - d -> x - (c + d);  (x + c) - d -> x + (c - d)
integer: (x - c) + d -> x + (d - c);  (x * c) * d -> x * (c * d);  (x & c) & d -> x & (c & d)
integer: (x | c) | d -> x | (c | d);  (x ^ c) ^ d -> x ^ (c ^ d)
integer: (x // c) // d -> x // (c * d) where c > 0 and d > 0 and c * d < 2 ** (bits - 1)
integer: (x >> c) >> d -> x >> (c + d) where 0 <= c and 0 <= d and c + d < bits;  (x % c) % c -> x % c
# Literals stand right.
integer: c + x -> x + c;  c * x -> x * c;  c & x -> x & c;  c | x -> x | c;  c ^ x -> x ^ c
integer: min(c, x) -> min(x, c);  max(c, x) -> max(x, c)
# Negations.
integer: -(-x) -> x;  ~(~x) -> x;  x + -y -> x - y;  x - -y -> x + y
# Minima and maxima form a lattice.
integer: min(min(x, y), y) -> min(x, y);  min(min(x, y), x) -> min(x, y);  max(max(x, y), y) -> max(x, y)
integer: max(max(x, y), x) -> max(x, y);  min(max(x, y), x) -> x;  min(max(x, y), y) -> y
integer: max(min(x, y), x) -> x;  max(min(x, y), y) -> y;  min(x, max(x, y)) -> x;  min(y, max(x, y)) -> y
integer: max(x, min(x, y)) -> x;  max(y, min(x, y)) -> y;  min(min(x, c), d) -> min(x, min(c, d))
integer: max(max(x, c), d) -> max(x, max(c, d));  min(max(x, c), d) -> d where c >= d
integer: max(min(x, c), d) -> d where c <= d
# A choice that is no choice.
any: select(True, x, y) -> x;  select(False, x, y) -> y;  select(p, x, x) -> x
bool: select(p, True, False) -> p;  select(p, False, True) -> not p
any: select(not p, x, y) -> select(p, y, x);  select(p, select(p, x, y), z) -> select(p, x, z)
any: select(p, x, select(p, y, z)) -> select(p, x, z)
# Boolean algebra; the operands kept are evaluated in their old order.
bool: True and p -> p;  p and True -> p;  False and p -> False;  p and False -> False;  True or p -> True
bool: p or True -> True;  False or p -> p;  p or False -> p;  p and p -> p;  p or p -> p
bool: p and (p and q) -> p and q;  (p and q) and q -> p and q;  (p and q) and p -> p and q
bool: p or (p or q) -> p or q;  (p or q) or q -> p or q;  (p or q) or p -> p or q;  p and (p or q) -> p
bool: p or (p and q) -> p;  p and not p -> False;  not p and p -> False;  p or not p -> True
bool: not p or p -> True;  not not p -> p;  p == True -> p;  p == False -> not p;  p != True -> not p
bool: p != False -> p
# Comparisons.  A float may be NaN, which is not even equal to itself.
any: not (x == y) -> x != y;  not (x != y) -> x == y
integer: not (x < y) -> y <= x;  not (x <= y) -> y < x;  not (x > y) -> x <= y;  not (x >= y) -> x < y
bits: x == x -> True;  x != x -> False
integer: x <= x -> True;  x >= x -> True
any: x < x -> False;  x > x -> False
# Floats.  x + 0.0 is not x where x is -0.0, and x * 0 is not 0 where x is infinite.
float: x - 0.0 -> x;  x + -0.0 -> x;  -0.0 + x -> x;  x * 1 -> x;  1 * x -> x;  x / 1 -> x;  -(-x) -> x
"""
"""Laws by the domain of their operands; a division by zero is undefined."""


def _read(line: str) -> list[Rule]:
    domain, _, laws = line.partition(": ")
    rules = []
    for law in laws.split(";"):
        pattern, _, rest = law.strip().partition(" -> ")
        result, _, where = rest.partition(" where ")
        rules.append(Rule(pattern, result, domain, where))
    return rules


RULES = tuple(rule for line in _LAWS.splitlines() if line and line[0] != "#" for rule in _read(line))
"""The same, read; the first that applies is taken."""
