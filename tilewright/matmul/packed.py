"""`PackedWeight`: a quantised weight in the order of bytes that kernels read, on a device, saved, loaded and
unpacked."""

from __future__ import annotations

import functools
import html
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tilewright import errors
from tilewright.formats import Format, number_format, pack_plain, unpack_plain
from tilewright.kernels.recipe import Grouped, WeightFacts
from tilewright.libraries import torch
from tilewright.matmul import packed_files
from tilewright.matmul.arrays import as_torch, element_type
from tilewright.matmul.column_order import column_order
from tilewright.matmul.handles import handle_of
from tilewright.matmul.known_calls import Products
from tilewright.matmul.record_order import RecordOrder
from tilewright.matmul.tensor_words import TensorWords
from tilewright.quant.quantize import quantize
from tilewright.quant.weight import ARRAYS, QuantizedWeight, meaning
from tilewright.runtime.tensors import Array, as_numpy, is_torch

Made = TypeVar("Made")

GROUPED = ("scales", "zeros", "multipliers")


class PackedWeight(TensorWords):
    """A weight ``[N, K]`` ready to be multiplied by, one form for every number of rows.

    Made by `PackedWeight.pack` from a `QuantizedWeight`; `unpack` gives that back, bit for bit.

    Attributes
    ----------
    format, shape, block, zeros_mode, tensor_scale : as in `QuantizedWeight`.
    order : None where codes are held row by row, else the order of a kernel's records.
    held : ``codes`` in that order, and where the weight has them ``scales``, ``zeros``, ``multipliers``, ``g_idx``,
        ``divisors``, ``rotation``, all on one device.
    dtype : what a layer's weight would be of without codes; of a weight that no layer holds, the integers that are
        held.

    Notes
    -----
    Codes are held once.  On a GPU they change their order when the first kernel that wants another brings them into it
    (`become`); whoever asks for `codes` row by row later gets them made from there.
    """

    def __init__(
        self,
        format: Format | str,
        shape: tuple[int, int],
        arrays: Mapping[str, Any],
        *,
        block: tuple[int, int] | None = None,
        zeros_mode: str = "original",
        tensor_scale: float = 1.0,
        order: RecordOrder | None = None,
    ) -> None:
        self.format, self.held, self.order = number_format(format), dict(arrays), order
        self.shape: tuple[int, int] = (int(shape[0]), int(shape[1]))
        self.block = block or (1, shape[1])
        self.zeros_mode, self.tensor_scale = zeros_mode, float(tensor_scale)
        # Models bring activations to ``layer.weight.dtype`` before they call a layer: integers would cut them off.
        self.dtype: Any = self.held["codes"].dtype
        self._derived: dict[object, Any] = {}
        self.prepared: dict[tuple[Any, ...], Any] = {}
        """What products with this weight have worked out so far, by their request."""
        self.calls = Products()
        """Calls of `quant_matmul` with it, by what their arguments are."""
        self.operator_calls: dict[str, Products] = {}
        """Those of operators, by what these are."""
        self.handle: torch.Tensor | None = None
        """The name in graphs of torch, of the weight (`named`) or of the layer that owns it."""
        self.owner: Any = None
        """A weak reference to what gives the owning layer another weight, for those who assign to `data`."""

    def __getstate__(self) -> dict[str, object]:
        # Kernels, and what was worked out for them, are made again where they are wanted.
        held = {name: plain_words(array) for name, array in self.held.items()}
        again: dict[str, object] = {"_derived": {}, "prepared": {}, "handle": None, "owner": None}
        again |= {"calls": None, "operator_calls": {}}
        return {**self.__dict__, **again, "held": held}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.calls = Products()
        if self.order is not None:
            self.held["codes"] = words_again(self.held["codes"])
        named(self)

    def __repr__(self) -> str:
        return f"<PackedWeight {self.shape[0]} x {self.shape[1]} {self.format} {self.layout} on {self.place}>"

    def _repr_html_(self) -> str:
        """For notebooks: what it holds, as a table."""
        facts = {"shape": f"{self.shape[0]} x {self.shape[1]}", "format": str(self.format)}
        facts |= {"layout": self.layout, "device": self.place}
        rows = "".join(f"<tr><th>{name}</th><td>{html.escape(fact)}</td></tr>" for name, fact in facts.items())
        return f"<table>{rows}</table>"

    @classmethod
    def __torch_function__(
        cls, function: object, types: object, arguments: tuple[Any, ...] = (), named: Any = None
    ) -> object:
        """torch asks here what its functions do with a weight in their arguments: a linear layer is computed, all else
        refused.

        Raises
        ------
        WrongArgumentKind : another function than `torch.nn.functional.linear`.
        """
        from torch.nn.functional import linear

        from tilewright.matmul.product import quant_matmul

        given = dict(zip(("input", "weight", "bias"), arguments)) | (named or {})
        weight = given.get("weight")
        if function is linear and isinstance(weight, cls) and not isinstance(given.get("input"), cls):
            return quant_matmul(given["input"], weight, bias=given.get("bias"))
        raise errors.WrongArgumentKind(
            f"a packed weight was given to {getattr(function, '__name__', function)}, which takes tensors of numbers",
            hint="call the layer or quant_matmul; layer.dequantize() gives the numbers",
        )

    @property
    def data(self) -> torch.Tensor:
        """The numbers that codes stand for, a float32 tensor of torch ``[N, K]`` of its own.

        Assigning to it rounds the new numbers to codes of the same format and groups: that is what merging an adapter
        does.

        Raises
        ------
        CannotQuantize : assigning to a weight that no layer holds, or whose codes have an order or factors of their
            own.
        """
        return self.detach()

    @data.setter
    def data(self, numbers: torch.Tensor) -> None:
        give = None if self.owner is None else self.owner()
        if give is None:
            raise errors.CannotQuantize(
                "a packed weight is not written to", hint="tilewright.quantize makes one of numbers"
            )
        own = [name for name in ("g_idx", "multipliers", "divisors", "rotation") if self.held.get(name) is not None]
        if own or self.tensor_scale != 1.0 or self.zeros_mode != "original":
            raise errors.CannotQuantize(
                f"numbers cannot be rounded to the codes of {self!r} again: it has "
                f"{', '.join(own) or 'a zeros mode or scale'} of its own",
                hint="dequantize the model, merge, and quantize it again",
            )
        zeros = self.held.get("zeros")
        spread = zeros is not None and bool((as_numpy(zeros) != as_numpy(zeros).flat[0]).any())
        scales = self.held.get("scales")
        rounded = quantize(
            as_numpy(numbers.detach().float()),
            self.format.name,
            block=self.block,
            zeros="group" if spread else None,
            scale_dtype=None if scales is None else element_type(scales),
        )
        warnings.warn(
            f"numbers were written to a weight of {self.format} codes, by an adapter that is merged for example: "
            "they are rounded again, and taking the adapter off does not bring back the codes that were there",
            errors.TilewrightWarning,
            stacklevel=2,
        )
        give(rounded)

    @property
    def layout(self) -> str:
        """Versioned id of the order in which codes are held."""
        return packed_files.LAYOUT if self.order is None else str(self.order)

    @property
    def codes(self) -> Array:  # an array of the library that the weight is of
        """The codes row by row, low bits first: uint8 ``[N, bytes]``; dense formats ``[N, K]``."""
        held = self.held["codes"]
        return held if self.order is None else self.order.plain(held, self.format, (self.facts.N, self.facts.K))

    @property
    def arrays(self) -> dict[str, Any]:  # of the library that the weight is of
        """`held` with `codes`."""
        return {**self.held, "codes": self.codes}

    def become(self, order: RecordOrder, words: Array) -> None:
        """Hold the codes as records alone."""
        self.held, self.order = {**self.held, "codes": words}, order

    @classmethod
    def pack(cls, weight: QuantizedWeight, device: object = None) -> PackedWeight:
        """Bring a weight into the order of bytes that kernels read.

        Parameters
        ----------
        device : a torch device; None leaves NumPy arrays, which serve the CPU.

        Raises
        ------
        CannotQuantize : a weight without rows or columns.
        WrongArgumentKind : no `QuantizedWeight`.
        """
        if not isinstance(weight, QuantizedWeight):
            hint = "tilewright.quantize(array, 'w4a16') makes one of numbers"
            raise errors.WrongArgumentKind.given(weight, "a QuantizedWeight", hint)
        if 0 in weight.shape:
            raise errors.CannotQuantize(f"a weight of shape {list(weight.shape)} has nothing to multiply by")
        codes = weight.codes
        gathered = column_order(weight.shape[1], weight.group, weight.g_idx)
        if gathered is not None:
            codes = np.where(gathered >= 0, codes[:, np.maximum(gathered, 0)], codes.dtype.type(0))
        codes = np.ascontiguousarray(codes if weight.format.is_dense else pack_plain(codes, weight.format.bits))
        arrays, order = {"codes": codes}, weight.g_idx
        groups = None if order is None else max(-(-order.size // weight.group), int(order.max()) + 1)
        for name in ARRAYS:
            values = getattr(weight, name)
            if values is not None:
                values = values[:, :groups] if values.ndim == 2 else values  # those of groups that no column is in
                arrays[name] = np.ascontiguousarray(values, _held(name, values, weight.zeros_mode))
        made = cls(weight.format, weight.shape, arrays, **meaning(weight))
        return named(made) if device is None else made.to(device)

    def unpack(self) -> QuantizedWeight:
        """The weight that was packed."""
        arrays: dict[str, Any] = {name: as_numpy(array) for name, array in self.arrays.items()}
        gathered, codes = self.gathered, arrays.pop("codes")
        columns = self.shape[1] if gathered is None else len(gathered)
        if not self.format.is_dense:
            codes = unpack_plain(codes.view(np.uint8), columns, self.format.bits)
        if gathered is not None:
            ordered = np.empty(self.shape, codes.dtype)
            ordered[:, gathered[gathered >= 0]] = codes[:, gathered >= 0]
            codes = ordered
        return QuantizedWeight(codes, self.format, **meaning(self), **arrays)

    def to_dense(self) -> np.ndarray:
        """The weight that activations are multiplied by in effect, ``[N, K]`` float64."""
        return self.unpack().to_dense()

    def to(self, device: object) -> PackedWeight:
        """The same weight as torch tensors on a device."""
        arrays = {name: as_torch(array, device) for name, array in self.held.items()}
        return named(PackedWeight(self.format, self.shape, arrays, **meaning(self), order=self.order))

    def save(self, path: str | Path) -> None:
        """Write a safetensors file: the arrays, and in its metadata what they do not say.

        Raises
        ------
        InvalidCheckpoint : the place cannot be written to.
        """
        packed_files.write(self, path)

    @classmethod
    def load(cls, path: str | Path, device: object = None) -> PackedWeight:
        """Read a file that `save` wrote.

        Raises
        ------
        InvalidCheckpoint : it is none or damaged, or of a layout that this version does not know.
        """
        made = packed_files.read(cls, path)
        return named(made) if device is None else made.to(device)

    def forget_kernels(self) -> None:
        """Choose kernels again, for what has been measured of them since."""
        self.prepared.clear()
        self.calls.clear()
        self.operator_calls.clear()

    def derived(self, key: object, make: Callable[[], Made]) -> Made:
        """Another form of the weight, which some kernels read: made once for each key."""
        if key not in self._derived:
            self._derived[key] = make()
        found: Made = self._derived[key]
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(array.nbytes) for array in self.held.values())

    @functools.cached_property
    def gathered(self) -> np.ndarray | None:
        """Which column of the activations each packed column meets, -1 for none; None where they are in order."""
        g_idx = self.held.get("g_idx")
        return column_order(self.shape[1], self.block[1], None if g_idx is None else as_numpy(g_idx))

    @functools.cached_property
    def facts(self) -> WeightFacts:
        """What a kernel for this weight must know at compile time."""
        gathered = self.gathered
        columns = self.shape[1] if gathered is None else len(gathered)
        group = min(self.block[1], columns) if gathered is None else columns // self._groups_of_columns()
        zeros, zero = self._zeros()
        grouped = {name: self._grouped(name) for name in GROUPED}
        return WeightFacts(
            N=self.shape[0],
            K=columns,
            columns=self.shape[1],
            format=self.format,
            group=group,
            scale=grouped["scales"],
            zeros=zeros,
            zero=zero,
            zero_point=grouped["zeros"] if zeros in ("groups", "rescale") else None,
            multiplier=grouped["multipliers"],
            factor=self.tensor_scale != 1.0,
            divisors="divisors" in self.held,
            gather=gathered is not None,
        )

    def _groups_of_columns(self) -> int:
        g_idx = self.held.get("g_idx")
        natural = -(-self.shape[1] // self.block[1])
        return natural if g_idx is None else max(natural, int(as_numpy(g_idx).max()) + 1)

    def _zeros(self) -> tuple[str, float]:
        zeros = self.held.get("zeros")
        if zeros is None:
            return "none", 0.0
        if self.zeros_mode == "rescale":
            return "rescale", 0.0
        wide = zeros.double() if is_torch(zeros) else zeros.astype(np.float64)
        least, most = float(wide.min()), float(wide.max())
        return ("groups", 0.0) if least != most else ("one", least) if least else ("none", 0.0)

    def _grouped(self, name: str) -> Grouped | None:
        values = self.held.get(name)
        if values is None:
            return None
        found, wanted = tuple(values.shape), (-(-self.shape[0] // self.block[0]), self._groups_of_columns())
        if len(found) != 2 or any(extent not in (1, whole) for extent, whole in zip(found, wanted)):
            raise errors.WrongArgumentShape(
                f"the weight's {name} have shape {list(found)}, expected {list(wanted)}",
                hint=f"it is {list(self.shape)} in groups of {self.block[0]} x {self.block[1]}",
            )
        rows, columns = map(int, found)
        return Grouped(element_type(values).name, rows, columns, self.block[0])

    @functools.cached_property
    def numbers(self) -> np.ndarray:
        """Every number that ``(value - zero) * multiplier`` can be (zeros of mode rescale apart)."""
        table = np.array([v for c, v in enumerate(self.format.values) if c not in self.format.unused], np.float64)
        for name, combine in (("zeros", np.subtract), ("multipliers", np.multiply)):
            values = self.held.get(name)
            if values is not None and (name != "zeros" or self.zeros_mode != "rescale"):
                table = np.unique(combine.outer(table, np.unique(as_numpy(values).astype(np.float64))[:_MANY]))
        return table


def named(weights: Made) -> Made:
    """A weight, or several, with a name for the operators of torch, which are registered then, where torch is there."""
    if "torch" in sys.modules:
        from tilewright.matmul.torch_operators import register_operators

        register_operators()
        weights.handle = handle_of(weights, weights.device)  # type: ignore[attr-defined]
    return weights


def plain_words(array: object) -> Any:  # of the array's library
    """A tensor as one of a type that Python's own pickling of tensors knows on every device: words of records without
    sign have none."""
    return array.view(torch.int32) if is_torch(array) and array.dtype == torch.uint32 else array


def words_again(array: object) -> Any:  # of the array's library
    """Inverse of `plain_words`, for words."""
    return array.view(torch.uint32) if is_torch(array) and array.dtype == torch.int32 else array


_HELD = {"g_idx": np.int32, "divisors": np.float32, "multipliers": np.int8, "rotation": np.float32}


def _held(name: str, values: np.ndarray, zeros_mode: str) -> Any:
    """The type in which an array is held: that of scales as given, zeros as bytes or as floats."""
    if name == "zeros" and values.dtype.kind in "iu":
        return np.uint8 if zeros_mode == "quantized" else np.float32
    return _HELD.get(name, values.dtype)


_MANY = 4096
"""So many different zeros are no whole numbers of a few bits: a sample tells as much."""
