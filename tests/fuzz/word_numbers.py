"""Numbers by words that other families do not say: functions, older words, helpers of the author's."""

from __future__ import annotations

import inspect
import sys
from functools import cache
from pathlib import Path

from meeting_writer import MeetingWriter

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from docs import language_pages
from tilewright.ir.dtypes import ALL

OF_NUMBERS = {"x", "y", "z", "x1", "x2", "rounding_mode"}
OF_OTHERS = {"popcount", "clz", "abs2", "add2", "sub2", "mul2", "max2", "min2", "fma2", "align_up"}
"""Words whose parameters are called as those of functions of floats, but are whole numbers or pairs."""

MODES = ("rn", "rz", "ru", "rd")


@cache
def functions() -> tuple[tuple[str, int, bool], ...]:
    """Every word that is a function of floats: its name, how many it takes, and whether it is told how to round."""
    found = []
    for name, (value, _) in sorted(language_pages.words().items()):
        if not inspect.isroutine(value) or name in OF_OTHERS or name.startswith(("bitwise_", "shift_")):
            continue
        if (value.__module__ or "").rpartition(".")[2] not in (
            "math",
            "operators",
            "older_words",
            "other_names",
            "directed_rounding",
        ):
            continue
        names = list(inspect.signature(value).parameters)
        if names and set(names) <= OF_NUMBERS:
            found.append(
                (
                    name,
                    len([one for one in names if one != "rounding_mode"]),
                    value.__module__.endswith("directed_rounding"),
                )
            )
    return tuple(found)


class NumberWords(MeetingWriter):
    """Statements that give a number to those behind them, and helpers that programs call."""

    def start(self) -> None:
        self.helpers: list[str] = []
        super().start()

    # Numbers -----------------------------------------------------------------------------------------

    def function(self) -> None:
        """Functions of the language at small numbers, in tenths; or the very bits of those whose rounding the author says."""
        for _ in range(self.between(1, 3)):
            self.one_function(*self.pick(functions()))

    def one_function(self, name: str, count: int, rounded: bool) -> None:
        dtype = self.pick(("float32", "float32", "float32", "float32", "float64")) if not rounded else "float32"
        if rounded:
            given = [f'T.cast({self.number(-(2**14), 2**14).text}, "float32")' for _ in range(count)]
            if name in ("ieee_fdiv", "ieee_frcp"):
                given[-1] = f"({given[-1]} * 2.0 + 1.0)"
            if name == "ieee_fsqrt":
                given[-1] = f"T.abs({given[-1]})"
            if name in ("ieee_add", "ieee_sub", "ieee_fmaf"):
                given[0] = f"{given[0]} * T.float32(0.1)"
            text = f'T.{name}({", ".join(given)}, "{self.pick(MODES)}")'
            self.give(f'T.cast(T.reinterpret({text}, "int32") % 1000, "int32")', -999, 999)
        else:
            eighth = self.brought_back(self.number(-(2**14), 2**14), 7)
            given = f'((T.cast({eighth.text}, "{dtype}") + 1) * 0.125{" + 1" if name == "acosh" else ""})'
            values = [given] + [
                self.pick((given, f'T.cast({self.pick((0.5, 0.75, 2.5))}, "{dtype}")')) for _ in range(count - 1)
            ]
            text = f'T.cast(T.{name}({", ".join(values)}), "{dtype}")'
            self.give(f'T.cast(T.round({text} * 7.3), "int32")', -400, 400)
        self.feature("word", "function", name, dtype)

    def older(self) -> None:
        """A number by a word that older programs have, or one that says where the thread is."""
        a, b = self.number(-(2**10), 2**10), self.number(-(2**10), 2**10)
        bits = self.brought_back(a, 2**10)
        small, exponent = self.brought_back(b, 5), self.brought_back(a, 9)
        base, offset = self.pick(((0, 1), (0, 2), (9, -1), (3, 3), (12, -2), (2, 0)))
        dtype = self.pick(("int8", "uint8", "int16"))
        least, most = int(ALL[dtype].minimum), int(ALL[dtype].maximum)
        wide = f'T.cast({a.text}, "float32")'
        ways = [
            (f"T.__ffs({a.text})", 0, 32),
            (f'T.cast(T.__fns(T.cast({bits.text}, "uint32"), {base}, {offset}) % 64, "int32")', 0, 63),
            (f'T.cast(T.fmul({wide}, T.cast({small.text}, "float32")), "int32")', min(0, 4 * a.low), max(0, 4 * a.high)),
            (f'T.Cast("int32", T.fast_rcp(T.exp2(T.cast(-{small.text}, "float32"))) + 0.25)', 1, 16),
            (f'T.cast(T.e8m0_to_float(T.cast(122 + {exponent.text}, "uint8")) * 32, "int32")', 1, 256),
            (f'T.cast(T.min({a.text}, T.cast(T.max_value("{dtype}"), "int32")), "int32")', min(a.low, most), min(a.high, most)),
            (f'T.max({a.text}, T.cast(T.min_value("{dtype}"), "int32"))', max(a.low, least), max(a.high, least)),
            (f'T.if_then_else({wide} < T.infinity("float32"), {b.text}, 0)', min(b.low, 0), max(b.high, 0)),
            (f"T.if_then_else(T.likely({self.test()}), {a.text}, {b.text})", min(a.low, b.low), max(a.high, b.high)),
            ("T.get_warp_group_idx()", 0, 7),
            (f"T.if_then_else(T.shuffle_elect({self.pick((0, 32, 64))}), {a.text}, {b.text})", min(a.low, b.low), max(a.high, b.high)),
            (f"T.get_thread_extent(0) + T.get_thread_extents()[1] + {small.text}", 0, 2**10),
            (f"T.get_block_extents()[0] + T.get_cluster_dims()[0] + {small.text}", 0, 40),
            (f"T.get_cluster_id() + T.get_cluster_ids()[0] + {small.text}", 0, 40),
            (f"T.get_cluster_extent() * 2 + T.get_cluster_extents()[0] + T.get_cluster_size() + {small.text}", 0, 60),
            (f"T.block_rank_in_cluster() + {small.text}", 0, 20),
        ]  # fmt: skip
        if not self.parted_by and self.context.group is None:
            ways += [
                (f"T.tvm_warp_shuffle_{self.pick(('up', 'down'))}(T.tvm_warp_activemask(), {a.text}, {self.between(1, 31)}, 32, 32)", a.low, a.high),
                ("T.cast(T.popcount(T.activemask()), 'int32')", 0, 32),
            ]  # fmt: skip
            ways += [(f"T.simdgroup_reduce_sum({a.text}) % 8", 0, 7)] if self.threads % 64 == 0 else []
        text, low, high = self.pick(ways)
        self.feature("word", "older", text.split("T.")[1].split("(")[0])
        self.give(text, low, high)

    def pairs(self) -> None:
        """Two floats at once: what pairs of a thread's array become."""
        dtype, own = self.pick(("float32", "float16", "bfloat16")), self.name("w")
        self.emit(f'{own} = T.alloc_local((8,), "{dtype}")')
        for at in range(6):
            self.emit(
                f'{own}[{at}] = T.cast({self.brought_back(self.number(), 6).text} - {self.between(0, 3)}, "{dtype}")'
            )
        word = self.pick(("add2", "sub2", "mul2", "max2", "min2", "fma2", "abs2"))
        given = [f"{own}[{at}:{at + 2}]" for at in range(0, 6, 2)][: {"fma2": 3, "abs2": 1}.get(word, 2)]
        if self.chance(0.3):
            given[0] = f"T.{dtype}x2({own}[1], {own}[4])"
        self.emit(f"{own}[6:8] = T.{word}({', '.join(given)})")
        self.give(f'T.cast({own}[{self.pick((6, 7))}], "int32")', -40, 40, variable=1.0)
        self.feature("word", "pairs", word, dtype)

    def lanes_by_number(self) -> None:
        """Lanes of a vector in another order, or the same number in all of them, by way of a thread's array."""
        dtype, own = self.pick(("int32", "float32", "float16", "int16")), self.name("w")
        self.emit(f'{own} = T.alloc_local((8,), "{dtype}")')
        for at in range(4):
            self.emit(f'{own}[{at}] = T.cast({self.brought_back(self.number(), 90).text}, "{dtype}")')
        order = [self.between(0, 3) for _ in range(4)]
        base, step = self.pick(((4, 1), (7, -1)))
        value = self.pick((
            f"T.Shuffle([{own}[0:4]], {order})", f'T.Broadcast(T.cast({self.brought_back(self.number(), 90).text}, "{dtype}"), 4)',
            f"T.Shuffle([{own}[0:2], {own}[2], {own}[3]], {order})", f"{own}[T.Ramp(3, -1, 4)]", f'{own}[T.Ramp(0, 1, 4)] + T.Broadcast(T.cast(1, "{dtype}"), 4)',
        ))  # fmt: skip
        self.emit(f"{own}[T.Ramp({base}, {step}, 4)] = {value}")
        self.give(f'T.cast({own}[{self.between(4, 7)}], "int32")', 0, 180, variable=1.0)
        self.feature("word", "lanes", dtype)

    def converted(self) -> None:
        """To a float of few bits, beyond its greatest too, and back."""
        dtype = self.pick(
            ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float6_e2m3fn", "float6_e3m2fn")
        )
        one, how = (
            self.number(-(2**12), 2**12),
            self.pick(("", ', "rn"', ", saturate=True", ", saturate=False", ", sat=False")[: 5 if "8" in dtype else 2]),
        )
        wide = self.pick(("float32", "float16", "bfloat16"))
        text = f'T.cast(T.cast(T.cast({one.text}, "{wide}"), "{dtype}"{how}), "float32")'
        held = self.name("h")
        self.emit(f"{held} = {text}")
        self.give(f'T.cast(T.if_then_else(T.isfinite({held}), {held}, T.float32(7)) % 512, "int32")', -512, 512)
        self.feature("word", "converted", dtype, wide)

    def taken_for_true(self) -> None:
        """What is so anyway is said, and may be relied on."""
        name, low, high = self.pick(self.context.indices)
        own = self.number()
        self.emit(self.pick((
            f"T.assume({name} >= {low})", f"T.assume({name} <= {high})", f"T.assume({own.text} <= {own.high})",
            f'T.device_assert({name} <= {high}, "as large as can be")',
        )))  # fmt: skip
        self.feature("word", "assumed")

    # Helpers -----------------------------------------------------------------------------------------

    def by_reference(self) -> None:
        """A macro that changes what it is given: a variable, an element of a thread's array, of a shared tile."""
        name, one, place = self.name("g"), self.number(-(2**10), 2**10), self.name("o")
        condition = self.pick(("x > 2", "x % 2 == 0", "y < x"))
        self.sizes += [
            "@T.macro", f"def {name}(x, y: T.{self.pick(('Ref', 'Var'))}):", f"    if {condition}:", "        y = T.min(x, 9)",
            *self.pick(([], ["    else:", "        y = y + 1"])), "    y = T.clamp(y + x, -9, 9)",
        ]  # fmt: skip
        first = self.brought_back(self.number(), 9).text
        kind = (
            self.pick(("variable", "array", "shared")) if not self.parted_by and self.context.depth == 0 else "variable"
        )
        if kind == "variable":
            self.emit(f'{place} = T.alloc_var("int32", init={first})')
        elif kind == "array":
            self.emit(f'{place} = T.alloc_local((2,), "int32")', f"{place}[1] = {first}")
            place = f"{place}[1]"
        else:
            self.emit(f'{place} = T.alloc_shared(({self.threads},), "int32")')
            place = f"{place}[tx]"
            self.emit(f"{place} = {first}")
        turns = self.between(1, 3)
        if self.chance(0.4):
            k = self.name("k")
            self.emit(f"for {k} in T.serial({turns}):", f"    {name}({self.pick((k, one.text))}, {place})")
        else:
            self.emit(f"{name}({one.text}, {place})")
        self.give(place, -9, 9, variable=1.0)
        self.feature("word", "by reference", kind)

    def with_methods(self) -> None:
        """An object whose methods speak of the program."""
        kind, made = self.name("M"), self.name("q")
        self.helpers += [
            "@T.meta_class", f"class {kind}:", "    def __init__(self):", '        self.total = T.alloc_var("int32", init=0)',
            "    def add(self, x):", "        if x % 2 == 1:", "            self.total[0] = T.min(self.total[0] + x, 50)",
        ]  # fmt: skip
        self.emit(f"{made} = {kind}()")
        for _ in range(self.between(1, 2)):
            self.emit(f"{made}.add({self.brought_back(self.number(), 20).text})")
        self.give(f'T.cast({made}.total, "int32")', 0, 50, variable=1.0)
        self.feature("word", "methods")
