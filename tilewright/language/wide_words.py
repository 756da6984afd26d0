"""Words for several neighbouring elements at once: raw loads and stores of 4 to 32 bytes, pairs of floats, lanes of
vectors.

The vectors are those of `vectors`: a loop over lanes, which the compiler turns into one access where it can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.ir import UINT32, DType, dtypes
from tilewright.ir import nodes as ir
from tilewright.language.buffers import region_of, vector_in
from tilewright.language.math import FUNCTIONS, abs_, max_, min_
from tilewright.language.mistakes import NumberExpected, TileExpected
from tilewright.language.proxies import Scalar, Value, as_expr, condition, constant_within, describe, is_number
from tilewright.language.recording import author_facing, in_kernel, made_word, statement_here, word
from tilewright.language.vectors import Vector, common_lanes, kept, lane_at, lane_of, lanes_of

BITS = {bits: dtypes.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)}
"""Unsigned numbers by their width."""


def _place(value: object, scope: str, what: str) -> ir.Region:
    """The place that a raw access begins at."""
    region = region_of(value, what, "an element such as A[i]")
    if region.buffer.scope != scope:
        memory = {"global": "a tensor", "shared": "a shared tile"}
        raise TileExpected(what, f"{region.buffer.scope} memory", f"an element of {memory[scope]}")
    if region.dtype.bits not in BITS:
        raise NumberExpected(what, "elements of whole bytes", str(region.dtype))
    return region


def _element(place: ir.Region, number: ir.Expr) -> tuple[ir.Expr, ...]:
    """Indices of the element that is so many behind the first one, along the last dimension."""
    return (*place.starts[:-1], place.starts[-1] + number)


def _part(value: ir.Expr, number: ir.Expr | int, to: DType) -> ir.Expr:
    """Bits of a wider unsigned number."""
    shifted = ir.binary("shr", value, ir.cast(ir.expr(number * to.bits), value.dtype))
    return ir.cast(ir.binary("and", shifted, ir.const(2**to.bits - 1, value.dtype)), to)


def _joined(parts: Sequence[ir.Expr], to: DType) -> ir.Expr:
    """A wider unsigned number out of narrower ones, the lowest bits first."""
    made = ir.cast(parts[0], to)
    for number, part in enumerate(parts[1:], 1):
        made = ir.binary("or", made, ir.binary("shl", ir.cast(part, to), ir.const(number * part.dtype.bits, to)))
    return made


def _word(place: ir.Region, lane: ir.Expr) -> ir.Expr:
    """Word number `lane` of 32 bits from a place on."""
    bits = BITS[place.dtype.bits]

    def loaded(number: ir.Expr) -> ir.Expr:
        element = ir.Load(place.dtype, place.buffer, _element(place, number))
        return ir.Reinterpret(bits, element) if bits != place.dtype else element

    if bits.bits == 64:
        return _part(loaded(lane // 2), lane % 2, UINT32)
    per = 32 // bits.bits
    numbers = [lane * per + part for part in range(per)]
    return _joined([loaded(number) for number in numbers], UINT32)


def _over(count: int, of: Callable[[ir.Expr], ir.Statement]) -> ir.Statement:
    """A statement for each of some lanes."""
    lane = ir.Var(dtypes.INT32, "lane")
    body = ir.seq(of(lane))
    return ir.For(lane, ir.const(0), ir.const(count), ir.const(1), body, "vectorize", span=statement_here())


def _where(pred: object, statement: ir.Statement) -> None:
    """Record a statement, under a condition where there is one."""
    builder = in_kernel("a raw access")
    if pred is None:
        builder.append(statement)
    else:
        builder.append(ir.If(condition(pred), ir.seq(statement), span=statement_here()))


def _load(name: str, words: int, scope: str) -> Callable[..., Any]:
    what = f"T.{name}"

    def load(src: object, pred: object = None) -> Value | Vector:
        builder = in_kernel(what)
        place = _place(src, scope, f"the source of {what}")
        buffer = ir.Buffer(builder.take_name("words"), (words,), UINT32, "local")
        builder.append(ir.Allocate(buffer, span=statement_here()))
        if pred is not None:
            builder.append(_over(words, lambda lane: ir.Store(buffer, (lane,), ir.const(0, UINT32))))
        _where(pred, _over(words, lambda lane: ir.Store(buffer, (lane,), _word(place, lane))))
        frame = builder.frame
        if words == 1:
            return Scalar(ir.Load(UINT32, buffer, (ir.const(0),)), frame)
        return lanes_of(buffer, frame)

    call = load if scope == "global" else lambda src: load(src)
    many = "a uint32" if words == 1 else f"a vector of {words} uint32"
    where, example = ("a tensor", "N[i]") if scope == "global" else ("a shared tile", "shared[0, 0]")
    first = () if scope == "global" else ("T.clear(shared)",)
    parameters = {"src": "the first element, or a slice or buffer that begins with it."}
    if scope == "global":
        parameters["pred"] = "where false, nothing is read and the words are 0."
    meaning = f"{words * 4} neighbouring bytes of {where} as {many}."
    return made_word(call, name, meaning, parameters, *first, f"words = T.{name}({example})")


def _store(name: str, words: int, scope: str) -> Callable[..., Any]:
    what = f"T.{name}"

    def store(dst: object, value: object, pred: object = None) -> None:
        in_kernel(what)
        place = _place(dst, scope, f"the destination of {what}")
        lanes = value.lanes if isinstance(value, Vector) else 1
        if not isinstance(value, Vector) and not is_number(value):
            raise NumberExpected(f"the value of {what}", f"{words} words of 32 bits", describe(value))
        given = value if isinstance(value, Vector) else Vector(1, lambda lane: value)
        found = as_expr(lane_at(given, 0))
        source = found.dtype if not isinstance(found, ir.Const) or isinstance(value, Scalar) else UINT32
        if lanes * source.bits != words * 32:
            raise NumberExpected(f"the value of {what}", f"{words * 32} bits", f"{lanes} of {source}")
        bits = BITS[place.dtype.bits]

        def written(number: ir.Expr) -> ir.Statement:
            code = _bits_at(given, source, number, bits)
            element = ir.Reinterpret(place.dtype, code) if bits != place.dtype else code
            return ir.Store(place.buffer, _element(place, number), element, span=statement_here())

        _where(pred, _over(words * 32 // bits.bits, written))

    call = store if scope == "global" else lambda dst, value: store(dst, value)
    where, example = ("a tensor", "N[i]") if scope == "global" else ("a shared tile", "shared[0, 0]")
    value = "T.uint32(7)" if words == 1 else f"T.Broadcast(T.uint32(7), {words})"
    parameters = {
        "dst": "the first element, or a slice or buffer that begins with it.",
        "value": "as many bytes, what the load of this size gives.",
    }
    if scope == "global":
        parameters["pred"] = "where false, nothing is written."
    meaning = f"Write {words * 4} bytes to neighbouring elements of {where}."
    return made_word(call, name, meaning, parameters, f"T.{name}({example}, {value})")


def _bits_at(vector: Vector, source: DType, number: ir.Expr, to: DType) -> ir.Expr:
    """Element number `number` of a vector whose bits are read as other unsigned numbers."""
    plain = BITS[source.bits]

    def code(lane: ir.Expr) -> ir.Expr:
        value = ir.cast(as_expr(lane_at(vector, lane)), source)
        return value if source == plain else ir.Reinterpret(plain, value)

    if to.bits <= plain.bits:
        per = plain.bits // to.bits
        if per == 1:
            return code(number)
        return _part(code(number // per), number % per, to)
    per = to.bits // plain.bits
    return _joined([code(number * per + part) for part in range(per)], to)


@author_facing
def reinterpret_vector(value: Vector, record: DType) -> Vector:
    """The bits of a vector as one of another type."""
    source, to = as_expr(lane_at(value, 0)).dtype, record.scalar
    if source.bits * value.lanes != to.bits * record.lanes or to.bits not in BITS:
        raise NumberExpected("T.reinterpret", f"a dtype of {source.bits * value.lanes} bits", f"{record}")
    bits, frame = BITS[to.bits], in_kernel("T.reinterpret").frame

    def of(lane: object) -> Scalar:
        code = _bits_at(value, source, as_expr(lane), bits)
        return Scalar(ir.Reinterpret(to, code) if bits != to else code, frame)

    return kept(Vector(record.lanes, of), "bits")


# Pairs of floats ----------------------------------------------------------------------------------


def _packed(name: str, function: Callable[..., object], meaning: str, operands: str) -> Callable[..., Vector]:
    what = f"T.{name}"

    def of_pairs(*values: object) -> Vector:
        in_kernel(what)
        pairs: list[Any] = [vector_in(value) for value in values]
        for value, given in zip(pairs, values, strict=True):
            if not isinstance(value, Vector) or value.lanes != 2:
                raise NumberExpected(
                    f"an operand of {what}", "two floats, such as A[i, 0:2] or T.float32x2(a, b)", describe(given)
                )
        common_lanes(*pairs)
        kinds = {as_expr(lane_at(pair, 0)).dtype for pair in pairs}
        if len(kinds) > 1 or not next(iter(kinds)).is_float:
            found = " and ".join(sorted(map(str, kinds)))
            raise NumberExpected(f"the operands of {what}", "floats of one type", found)
        return kept(Vector(2, lambda lane: function(*(lane_of(pair, lane) for pair in pairs))), name)

    given = ", ".join(f"{tensor}[i, 0:2]" for tensor in "ABC"[: len(operands)])
    parameters = {
        ", ".join(operands):
            "pairs of floats of one type: slices such as ``A[i, 0:2]``, or ``T.float32x2(a, b)``."
    }  # fmt: skip
    meaning, example = f"``{meaning}`` of two neighbouring floats at once.", f"C[i, 0:2] = T.{name}({given})"
    return made_word(of_pairs, name, meaning, parameters, example)


# Lanes --------------------------------------------------------------------------------------------


@word
def extract_lane(vector: object, lane: Value) -> Scalar:
    """One lane of a vector.

    Parameters
    ----------
    vector : a vector, or a slice of neighbours.
    lane : from 0 below the vector's lanes.

    Examples
    --------
    >>> C[i, 0] = T.extract_lane(A[i, 0:4], 2)
    """
    found = vector_in(vector)
    if not isinstance(found, Vector):
        raise NumberExpected("the first argument of T.extract_lane", "a vector", describe(vector))
    if isinstance(lane, int):
        constant_within(lane, "the lane of T.extract_lane", 0, found.lanes - 1)
    return lane_at(found, lane)


@word
def Shuffle(vectors: Sequence[object], indices: Sequence[object]) -> object:
    """Lanes of vectors that stand side by side, in a new order.

    Parameters
    ----------
    vectors : a list of vectors and scalars.
    indices : which lane of all of them each lane of the result is; of one index the result is a scalar.

    Examples
    --------
    >>> C[i, 0:2] = T.Shuffle([A[i, 0:4]], [3, 1])
    """
    lanes: list[object] = []
    for one in vectors:
        found = vector_in(one)
        lanes += [lane_at(found, lane) for lane in range(found.lanes)] if isinstance(found, Vector) else [one]
    chosen = [lanes[constant_within(place, "an index of T.Shuffle", 0, len(lanes) - 1)] for place in indices]
    return chosen[0] if len(chosen) == 1 else listed(chosen)


def listed(values: Sequence[object]) -> Vector:
    """A vector of some scalars in turn."""
    builder = in_kernel("a vector")
    exprs = [as_expr(value) for value in values]
    buffer = ir.Buffer(builder.take_name("lanes"), (len(exprs),), exprs[0].dtype, "local")
    builder.append(ir.Allocate(buffer, span=statement_here()))
    for place, value in enumerate(exprs):
        stored = ir.cast(value, buffer.dtype)
        builder.append(ir.Store(buffer, (ir.const(place),), stored, span=statement_here()))
    return lanes_of(buffer, builder.frame)


for _words in (1, 2, 4, 8):
    _load(f"ldg{32 * _words}", _words, "global")
    _store(f"stg{32 * _words}", _words, "global")
for _words in (1, 2, 4):
    _load(f"lds{32 * _words}", _words, "shared")
    _store(f"sts{32 * _words}", _words, "shared")
for _name, _function, _meaning, _operands in (
    ("add2", lambda x, y: x + y, "x + y", "xy"),
    ("sub2", lambda x, y: x - y, "x - y", "xy"),
    ("mul2", lambda x, y: x * y, "x * y", "xy"),
    ("fma2", FUNCTIONS["fma"], "x * y + z", "xyz"),
    ("max2", max_, "max(x, y)", "xy"),
    ("min2", min_, "min(x, y)", "xy"),
    ("abs2", abs_, "abs(x)", "x"),
):
    _packed(_name, _function, _meaning, _operands)
