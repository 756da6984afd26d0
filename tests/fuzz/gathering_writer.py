"""What a seed from fifteen hundred thousand on becomes: programs of the bold writer whose tiles are brought row by row, or from places that memory names.

Rows of a list (read where it lies, or from a tile of its own), rows that exist under a condition written both ways, index arithmetic
that divides and wraps, weights of an expert that stands in a scalar or an array, tensors seen in another shape.
"""

from __future__ import annotations

from bold_writer import BoldWriter


class GatheringWriter(BoldWriter):
    """Writes one program; every choice is drawn from the seed."""

    def limits(self, name: str) -> tuple[int, int]:
        if name.startswith("index"):
            return -1, max(self.rows, self.columns) + 1
        return (0, 3) if name.startswith("order") else super().limits(name)

    def _load(self, depth: int, tensor: str, rows: str, block: str, place: str, transposed: bool, plain: bool) -> str:
        ways = ["expert", "expert", "seen"]
        if not transposed and not plain:
            ways += ["listed", "listed", "both ways", "folded"]
        if self.sparse or self.random.random() < 0.35:
            return super()._load(depth, tensor, rows, block, place, transposed, plain)
        way = self.random.choice(ways)
        if way == "seen" and self.tail:
            way = "expert"
        limits = ("K", rows) if transposed else (rows, "K")
        shape = ("BK", block) if transposed else (block, "BK")
        tile = self.tile("(" + ", ".join(shape) + ")")
        deep = f"{self.step} * BK"
        first, second = (deep, place) if transposed else (place, deep)
        if way == "expert":
            name = self.need(f"{tensor}e", ("GROUPS", *limits), self.dtype)
            self.line(depth, f"T.copy({name}[{self._expert(depth)}, {first}, {second}], {tile})")
        elif way == "seen":
            self._seen(depth, tensor, limits, tile, (first, second))
        else:
            self.need(tensor, limits, self.dtype)
            self._rows(depth, way, tensor, rows, block, place, tile)
        return tile

    def _expert(self, depth: int) -> str:
        """A number that the block, or the step, reads from a list: named, in a scalar, or in an array of the thread."""
        order, pick = self.need("order", ("64",), "int32"), self.random.choice
        blocks = ["0", "1"] if self.shape == "stays" else ["by", "bx", "by + bx"]
        kind = pick(("named", "scalar", "array", "moved"))
        name = self.name("expert")
        if kind == "named":
            self.line(depth, f"{name} = {order}[{pick([*blocks, 'k'])}]")
            return name
        declared = f'{name} = T.alloc_local((1,), "int32")' if kind == "array" else f'{name} = T.alloc_var("int32")'
        element = f"{name}[0]" if kind == "array" else name
        self.tiles += [declared, f"{element} = {order}[{pick(blocks) if self.shape != 'stays' else 'block'}]"]
        if kind == "moved":
            self.line(depth, f"if {order}[k] == 1:")
            self.line(depth + 1, f"{element} = {order}[k + 1]")
        return element

    def _seen(self, depth: int, tensor: str, limits: tuple[str, str], tile: str, at: tuple[str, str]) -> None:
        """The tensor has three dimensions, of which a view makes two."""
        axis = limits.index("K")
        parts = ("STEPS", "BK")
        shape = (*parts, limits[1]) if axis == 0 else (limits[0], *parts)
        name, view = self.need(f"{tensor}v", shape, self.dtype), self.name("v")
        seen = ["STEPS * BK" if one == "K" else one for one in limits]
        self.tiles.append(f"{view} = T.reshape({name}, ({', '.join(seen)}))")
        self.line(depth, f"T.copy({view}[{', '.join(at)}], {tile})")

    def _rows(self, depth: int, way: str, tensor: str, rows: str, block: str, place: str, tile: str) -> None:
        """Loops over elements that bring rows."""
        pick, deep = self.random.choice, f"{self.step} * BK"
        zero = f'T.cast(0, "{self.dtype}")'
        element = f"{tensor}[{place} + i, {deep} + j]"
        condition = f"{place} + i < {pick((rows, 'count * 8', f'{rows} - 3'))}"
        if way == "folded":
            run = pick((8, 16))
            column = f"({deep} + j) // {run} * {run} + (({deep} + j) % {run} + {run // 2}) % {run}"
            row = pick((f"{place} + i", f"({place} + i) // 2 * 2 + 1 - ({place} + i) % 2"))
            element, condition = f"{tensor}[{row}, {column}]", ""
        if way == "listed":
            index = self.need(f"index{tensor[0]}", (rows,), "int32")
            named = f"{index}[{place} + i]"
            if pick((False, True)):
                kept = self.tile(f"({block},)", "int32")
                self.line(depth, f"T.copy({index}[{place}], {kept})")
                named = f"{kept}[i]"
            element = f"{tensor}[{named}, {deep} + j]"
            condition = pick(("", f"{named} >= 0", f"{named} >= 0 and {condition}"))
        self.line(depth, f"for i, j in T.Parallel({block}, BK):")
        if not condition:
            self.line(depth + 1, f"{tile}[i, j] = {element}")
        elif way == "both ways" or pick((False, True)):
            self.line(depth + 1, f"if {condition}:")
            self.line(depth + 2, f"{tile}[i, j] = {element}")
            self.line(depth + 1, "else:")
            self.line(depth + 2, f"{tile}[i, j] = {zero}")
        else:
            self.line(depth + 1, f"{tile}[i, j] = T.if_then_else({condition}, {element}, {zero})")
