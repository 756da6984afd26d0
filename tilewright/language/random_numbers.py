"""`T.rng_init` and its kin: random numbers that a kernel makes itself.

A number is a function of the seed, the sequence, the place in the program and the indices of the loops around it
(Philox 4x32, ten rounds), so that nothing is kept from one to the next: they are the same on every machine and in any
order of threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.ir import ALL, INT32, UINT32, UINT64, Call, Expr, Load, Var, binary, cast, const, holds, substitute
from tilewright.language.kernel import get_block_bindings, get_block_extents, get_thread_bindings, get_thread_extents
from tilewright.language.mistakes import NumberExpected
from tilewright.language.proxies import Scalar, as_expr, check_scope, one_of
from tilewright.language.recording import Builder, Frame, in_kernel, made_word, named, word
from tilewright.language.warps import linear_thread

ROUNDS = 10
MULTIPLIERS, KEYS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
"""Philox's constants."""
STRIDE = 0x9E3779B1
"""What tells the indices of nested loops apart: odd, and no small multiple of it is near a multiple of 2**32."""

GENERATORS = ("curandStatePhilox4_32_10_t", "curandStateMRG32k3a_t", "curandStateXORWOW_t")
FLOATS = {32: ("float32", 24), 64: ("float64", 53)}
"""For each width the type, and how many random bits a number has."""


@dataclass(slots=True)
class Stream:
    """What `rng_init` began.

    Attributes
    ----------
    key, sequence : words under names of their own.
    shared : the sequence of the block's first thread, of which threads draw that share the iterations of a loop; None
        where all threads have the same.
    offset : of the first number.
    frame : where it began; loops that are opened within count.
    draws : numbers asked for so far, each at a place of its own in the program.
    """

    key: tuple[Expr, Expr]
    sequence: tuple[Expr, Expr]
    shared: Scalar | None
    offset: Expr
    frame: Frame
    draws: int = 0


def _named(value: Expr, name: str) -> Expr:
    return named(value, name, "a random number")


def _halves(value: object, name: str) -> tuple[Expr, Expr]:
    """The low and the high word of an integer of up to 64 bits."""
    wide = cast(as_expr(value, UINT64 if isinstance(value, int) else None, what=name), UINT64)
    high = binary("shr", wide, const(32, UINT64))
    return _named(cast(wide, UINT32), name), _named(cast(high, UINT32), name)


@word
def rng_init(seed: object, seq: object = None, off: object = 0, generator: str = GENERATORS[0]) -> None:
    """Initialise a random number generator in each thread.

    Parameters
    ----------
    seed, seq, off : say which numbers: other seeds or sequences give others. Without `seq` each thread of the grid has
        its own. In `T.Parallel`, whose iterations threads share, a number goes by the iteration and by the sequence of
        the block's first thread.
    generator : one of TileLang's names; all select the same generator, which is not cuRAND's.

    Examples
    --------
    >>> T.rng_init(42, seq=bx * 128 + tx)
    >>> C[tx // 64, tx % 64] = T.rng_rand_float()
    """
    builder = in_kernel("T.rng_init")
    one_of(generator, GENERATORS, "the generator of T.rng_init")
    offset = _halves(off, "the offset of T.rng_init")[0]
    sequence = Scalar(_thread_of_grid()) if seq is None else seq
    key, words = _halves(seed, "seed"), _halves(sequence, "sequence")
    shared = _of_first_thread(sequence) if isinstance(sequence, Scalar) else None
    builder.kernel.stream = Stream(key, words, shared, offset, builder.frame)


def _of_first_thread(sequence: Scalar) -> Scalar | None:
    """The sequence as the block's first thread names it; None where each says the same, or what memory holds."""
    of, threads = as_expr(sequence), map(as_expr, get_thread_bindings())
    first = substitute(of, {one: const(0) for one in threads if isinstance(one, Var)})
    return None if first is of or holds(of, Load) else Scalar(first, sequence.frame)


def _thread_of_grid() -> Expr:
    block: Expr = const(0)
    for index, extent in zip(reversed(get_block_bindings()), reversed(get_block_extents()), strict=False):
        at, size = as_expr(index, INT32), as_expr(extent, INT32)
        block = block * size + at
    return block * math.prod(get_thread_extents()) + linear_thread()


def _place(builder: Builder, stream: Stream, what: str) -> tuple[Expr, Expr, Expr]:
    """One word of the indices of the loops that are open since `rng_init`, and the sequence to draw from."""
    total: Expr = const(0, UINT32)
    frame: Frame | None = builder.frame
    factor, sequence = 1, stream.sequence
    while frame is not None and frame is not stream.frame:
        if frame.kind == "while":
            raise NumberExpected(what, "a place in no `while`, or in one that has T.rng_init too", "one in a `while`")
        if frame.kind == "T.Parallel" and stream.shared is not None:
            sequence = _halves(stream.shared, "sequence")
        for index in frame.indices:
            part = binary("mul", cast(as_expr(index), UINT32), const(factor, UINT32))
            total, factor = binary("add", total, part), factor * STRIDE % 2**32
        frame = frame.parent
    return total, *sequence


def _words(what: str) -> list[Expr]:
    """Four random words, none of which was given before."""
    builder = in_kernel(what)
    stream: Stream | None = builder.kernel.stream
    if stream is None:
        raise NumberExpected(what, "T.rng_init(...) before it: it requires a preceding `T.rng_init(...)`", "none")
    check_scope(stream.frame)
    first = binary("add", stream.offset, const(stream.draws, UINT32))
    stream.draws += 1
    counter = [first, *_place(builder, stream, what)]
    key = list(stream.key)
    counter = [_named(word, "counter") for word in counter]
    for number in range(ROUNDS):
        products = [
            _named(binary("mul", cast(counter[place], UINT64), const(by, UINT64)), "product")
            for place, by in zip((0, 2), MULTIPLIERS, strict=True)
        ]
        low = [cast(one, UINT32) for one in products]
        high = [cast(binary("shr", one, const(32, UINT64)), UINT32) for one in products]
        step = [binary("add", one, const(by * number % 2**32, UINT32)) for one, by in zip(key, KEYS, strict=True)]
        mixed = [
            binary("xor", binary("xor", high[1], counter[1]), step[0]), low[1],
            binary("xor", binary("xor", high[0], counter[3]), step[1]), low[0],
        ]  # fmt: skip
        counter = [_named(word, "counter") for word in mixed]
    return counter


rng_rand = made_word(
    lambda: Scalar(_words("T.rng_rand")[0], in_kernel("T.rng_rand").frame),
    "rng_rand",
    "A random uint32.",
    {},
    "T.rng_init(42)",
    'C[tx // 64, tx % 64] = T.cast(T.rng_rand() % 10, "float32")',
)


@word
def rng_rand_float(bit: int = 32, dist: str = "uniform") -> Scalar:
    """A random number.

    Parameters
    ----------
    bit : 32 or 64, of a float32 or a float64.
    dist : ``"uniform"`` above 0 and up to 1, or ``"normal"`` around 0 with deviation 1.

    Examples
    --------
    >>> T.rng_init(42)
    >>> C[tx // 64, tx % 64] = T.rng_rand_float()
    """
    what = "T.rng_rand_float"
    if bit not in FLOATS or dist not in ("uniform", "normal"):
        raise NumberExpected(what, "bit 32 or 64, and dist 'uniform' or 'normal'", f"{bit!r} and {dist!r}")
    words = _words(what)
    first = _unit(words[:2], bit)
    if dist == "normal":  # of two uniform ones, by Box and Muller
        dtype = first.dtype
        minus_two, turn = const(-2.0, dtype), const(2 * math.pi, dtype)
        distance = Call(dtype, "sqrt", (binary("mul", minus_two, Call(dtype, "log", (first,))),))
        angle = Call(dtype, "cos", (binary("mul", turn, _unit(words[2:], bit)),))
        first = _named(binary("mul", distance, angle), "normal")
    return Scalar(first, in_kernel(what).frame)


def _unit(words: list[Expr], bit: int) -> Expr:
    """A number above 0, up to 1, of random words."""
    name, bits = FLOATS[bit]
    dtype = ALL[name]
    whole = cast(words[0], UINT64)
    if bits > 32:
        whole = binary("or", binary("shl", whole, const(32, UINT64)), cast(words[1], UINT64))
    whole = binary("shr", whole, const((64 if bits > 32 else 32) - bits, UINT64))
    above_zero = cast(binary("add", whole, const(1, UINT64)), dtype)
    return _named(binary("mul", above_zero, const(2.0**-bits, dtype)), "uniform")
