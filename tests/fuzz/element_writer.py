"""Parallel loops each of whose elements is worked out by a small program of its own: variables, an array, elements of tiles, branches and loops
that change what others of its statements read.
"""

from __future__ import annotations

import numpy as np
from mixed_writer import MixedWriter
from tile_programs import Param

from tilewright.ir.dtypes import ALL


class ElementPrograms(MixedWriter):
    """What is added to the statements of another family."""

    def given(self, values: np.ndarray, dtype: str) -> str:
        """A tensor with these numbers."""
        name = self.name("A")
        self.params.append(Param(name, f'T.Tensor({values.shape}, "{dtype}")', values.astype(ALL[dtype].numpy)))
        return name

    def stored(self, shape: tuple[int, ...], dtype: str) -> tuple[str, str]:
        """An output of each block, and how its place begins."""
        return self.result(shape, dtype).name, self.block_place()

    def summed_in_turns(self) -> None:
        """Each element is worked out by a loop of its own, as long as numbers say, which it may leave."""
        rows, turns = self.pick((8, 33, 64)), self.pick((4, 8))
        dtype = self.pick(("int32", "float32", "int64", "int8", "float16"))
        source, counts = (
            self.tensor((rows, turns), dtype, (-3, 3)).name,
            self.given(self.random.integers(-1, turns + 1, rows), "int32"),
        )
        out, place = self.stored((rows,), "int32")
        k, total, seen = self.name("k"), self.name("c"), self.name("c")
        self.emit(f"for i in T.Parallel({rows}):")
        self.emit(
            f'    {total} = T.alloc_var("int32", init={self.between(0, 3)})',
            f'    {seen} = T.alloc_var("int32", init=0)',
        )
        form = self.pick(
            (
                f"T.serial({counts}[i])",
                f"T.serial({turns})",
                f"T.serial({counts}[i] - 1, -1, -1)",
                f"T.serial(0, {counts}[i], 2)",
                f"T.unroll({turns})",
            )
        )
        self.emit(f"    for {k} in {form}:")
        element = f'T.cast({source}[i, {k}], "int32")'
        if "unroll" not in form:
            self.emit(
                f"        if {self.pick((f'{element} == {self.between(-2, 2)}', f'{seen} > 2', f'{k} == {counts}[i]'))}:",
                f"            {self.pick(('continue', 'break'))}",
            )
        self.emit(
            f"        {total} = {total} {self.pick(('+', '-', '* 2 -'))} {element}",
            f"        {seen} = {seen} + {self.pick((1, f'({element} & 1)'))}",
        )
        if self.chance(0.5):
            self.emit(
                f"    if {total} < {self.between(-2, 2)}:",
                f"        {total} = {seen}",
                "    else:",
                f"        {seen} = {total} * 3",
            )
        self.emit(f"    {out}[{place}, i] = {total} + {seen} * 100")
        self.feature("seldom", "summed in turns", dtype)

    def worked_in_parallel(self) -> None:
        """Each element by statements that are drawn; as often as not such as processors may run as vectors."""
        size = self.pick((8, 33, 64, 128, 100))
        self.straight = self.chance(0.6)
        source = self.tensor((size,), "int32", (-5, 5)).name
        self.elements = [f"{source}[i]", *([] if self.straight else [f"{source}[{size - 1} - i]"])]
        tiles = [self.name("s") for _ in range(self.between(0, 2))]
        for tile in tiles:
            scope = self.pick(("shared", "fragment"))
            self.emit(f'{tile} = T.alloc_{scope}(({size},), "int32")', f"T.copy({source}, {tile})")
        out, place = self.stored((size,), "int32")
        self.emit(f"for i in T.Parallel({size}):")
        self.held = [self.name("c") for _ in range(self.between(1, 3))]
        for name in self.held:
            first = self.pick(("0", "3", "i % 4", self.elements[0]))
            self.emit(f'    {name} = T.alloc_var("int32", init={first})')
        changed = [*self.held, *(f"{tile}[i]" for tile in tiles)]
        self.array = ""
        if not self.straight and self.chance(0.8):
            self.array, k = self.name("w"), self.name("k")
            self.emit(
                f'    {self.array} = T.alloc_local((4,), "int32")',
                f"    for {k} in T.{self.pick(('serial', 'unroll'))}(4):",
                f"        {self.array}[{k}] = {k} + {self.pick(('1', 'i % 8', self.elements[0]))}",
            )
            changed += [f"{self.array}[{self.held[0]} & 3]"] * 2
        self.changed_here = changed
        for _ in range(self.between(2, 5)):
            self.element_statement(1, 2)
        told = [f"({one} & 127) * {3 * number + 1}" for number, one in enumerate(changed)]
        self.emit(f"    {out}[{place}, i] = {' + '.join(told)}")
        for tile in tiles:
            to, there = self.stored((size,), "int32")
            self.emit(f"T.copy({tile}, {to}[{there}, :])")
        self.feature("seldom", "worked in parallel", str(self.straight))

    def element_value(self, depth: int) -> str:
        """A number of an element's own program."""
        if depth == 0 or self.chance(0.3):
            return str(
                self.pick((*self.changed_here, *self.changed_here, *self.elements, "i", str(self.between(-4, 9))))
            )
        a, b = self.element_value(depth - 1), self.element_value(depth - 1)
        ways = [
            f"({a} + {b})",
            f"({a} - {b})",
            f"({a} * 3 - {b})",
            f"T.max({a}, {b})",
            f"T.min({a}, {b})",
            f"({a} // 4)",
            f"({a} % 8)",
        ]
        ways += [
            f"({a} & 15)",
            f"({a} ^ {b})",
            f"T.abs({a})",
            f"(-{a})",
            f"T.if_then_else({self.element_test()}, {a}, {b})",
        ]
        if not self.straight:
            ways += [f"({a} % 7)", f"({a} // 3)", f"({a} % 13 * ({b} % 11))"]
        return str(self.pick(ways))

    def element_test(self) -> str:
        """Something that holds for an element or not."""
        a = self.pick(self.changed_here) if self.chance(0.7) else self.element_value(0)
        test = f"{a} {self.pick(('<', '<=', '>', '>=', '==', '!='))} {self.element_value(self.between(0, 1))}"
        if self.chance(0.25):
            test = f"({test}) {self.pick(('and', 'or'))} {self.element_value(0)} % 2 == {self.between(0, 1)}"
        return f"not ({test})" if self.chance(0.1) else test

    def element_statement(self, depth: int, left: int) -> None:
        """A statement of an element's own program, below others."""
        indent = "    " * depth
        kind = self.between(0, 11) if left else self.pick((0, 10) if self.array else (0,))
        if kind <= 4:
            value = self.element_value(self.between(0, 2))
            self.emit(f"{indent}{self.pick(self.changed_here)} {self.pick(('=', '=', '=', '+=', '-='))} {value} % 1024")
        elif kind == 5 and len(self.held) > 1:
            a, b = self.random.permutation(self.held)[:2]
            self.emit(f"{indent}{a}, {b} = {b}, {self.pick((a, f'{a} % 64 + {b} % 64'))}")
        elif kind <= 9:
            self.emit(f"{indent}if {self.element_test()}:")
            for _ in range(self.between(1, 3)):
                self.element_statement(depth + 1, left - 1)
            if self.chance(0.3):
                self.emit(f"{indent}elif {self.element_test()}:")
                self.element_statement(depth + 1, left - 1)
            if self.chance(0.6):
                self.emit(f"{indent}else:")
                for _ in range(self.between(1, 2)):
                    self.element_statement(depth + 1, left - 1)
        elif kind == 10 and self.array:  # another element under the same name
            own = f"{self.array}[{self.held[0]} & 3]"
            self.emit(
                f"{indent}{own} = {self.element_value(1)} % 1024", f"{indent}{self.held[0]} += {self.between(1, 3)}"
            )
            self.emit(f"{indent}{self.pick(self.changed_here)} = {own} + {self.between(0, 5)}")
        elif kind == 10 or self.straight:
            name = self.name("y")
            self.emit(f"{indent}{name} = {self.element_value(1)}")
            self.element_statement(depth, 0)
            self.emit(f"{indent}{self.pick(self.held)} = {name} % 512")
        else:
            k = self.name("k")
            count = self.pick(("3", "4", f"{self.pick(self.held)} & 3", self.elements[0]))
            self.emit(f"{indent}for {k} in T.serial({count}):")
            self.element_statement(depth + 1, left - 1)
            if self.chance(0.4):
                self.emit(
                    f"{indent}    if {self.element_test()}:", f"{indent}        {self.pick(('break', 'continue'))}"
                )
            self.emit(f"{indent}    {self.pick(self.held)} += {k} + 1")
