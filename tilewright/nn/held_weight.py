"""`HeldWeight`: a module that keeps a packed weight in its buffers, so that state dicts, `.to()`, copies and files
work."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from tilewright.errors import Unsupported, WrongArgumentShape
from tilewright.formats import number_format, unpack_plain
from tilewright.generated import made_function
from tilewright.matmul.arrays import as_torch
from tilewright.matmul.column_order import column_order
from tilewright.matmul.handles import handle_of, shared_with
from tilewright.matmul.known_calls import Products
from tilewright.matmul.packed import PackedWeight, plain_words, words_again
from tilewright.quant import QuantizedWeight
from tilewright.quant.files import METADATA, metadata_bytes, metadata_name, read_metadata
from tilewright.quant.weight import ARRAYS, meaning
from tilewright.runtime.tensors import as_numpy

_BUFFERS = ("qweight", *ARRAYS, "bias")


class Seen:
    """A module's buffers as they were at one time.

    What kernels have made of a weight holds for them: until a buffer is another one, or is written to in place (torch
    counts the writes, but for inference tensors and for those through ``tensor.data``).

    Attributes
    ----------
    buffers : in their order.
    bias : the parameter, and where its numbers are: others' code may give it other ones through ``tensor.data``.
    holds : whether buffers are the same and have the same numbers; a function written for these, since every call of
        the layer asks it.
    """

    __slots__ = ("bias", "buffers", "holds", "place")

    def __init__(self, buffers: Mapping[str, torch.Tensor | None], bias: torch.Tensor | None) -> None:
        self.buffers, self.bias = tuple(buffers.values()), bias
        self.place = None if bias is None else bias.data_ptr()
        values = ", ".join(f"v{place}" for place in range(len(buffers)))
        names: dict[str, object] = {f"b{place}": tensor for place, tensor in enumerate(self.buffers)}
        tests = [f"v{place} is b{place}" for place in range(len(buffers))]
        for place, tensor in enumerate(self.buffers):
            if tensor is not None and not tensor.is_inference():
                tests.append(f"v{place}._version == {tensor._version}")
        lines = [f"if len(buffers) != {len(buffers)}: return False", f"[{values}] = buffers.values()"]
        self.holds: Callable[[Mapping[str, torch.Tensor | None]], bool] = made_function(
            "holds", ["buffers"], [*lines, f"return {' and '.join(tests) or True}"], names
        )

    def is_added(self, bias: torch.Tensor | None) -> bool:
        """Whether the bias is still that one, and in its place."""
        return bias is self.bias and (bias is None or bias.data_ptr() == self.place)


class HeldWeight(torch.nn.Module):
    """The weight of a layer of `out_features` times `in_features`, in buffers; its bias is a parameter, as in
    `torch.nn.Linear`.

    Attributes
    ----------
    W_dtype, block, zeros_mode, tensor_scale : what buffers do not say of the weight, as in `QuantizedWeight`.
    dense_dtype : what the weight would be of without codes, ``weight.dtype``: the model's type, which ``model.half()``
        changes.
    handle : the layer's name in graphs.
    """

    qweight: torch.Tensor
    scales: torch.Tensor | None
    bias: torch.Tensor | None

    in_features: int
    out_features: int
    W_dtype: str
    block: tuple[int, int]
    zeros_mode: str
    tensor_scale: float

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)  # `Linear` is a torch.nn.Linear too, whose own would make a matrix
        self.register_parameter("bias", None)
        self.dense_dtype = torch.get_default_dtype()

    def _weight(self, codes: np.ndarray, arrays: dict[str, Any]) -> QuantizedWeight:
        return QuantizedWeight(codes, number_format(self.W_dtype), **meaning(self), **arrays)

    def _hold(self, packed: PackedWeight, device: object = None) -> None:
        """Make the weight's arrays the module's buffers."""
        self.block, self.zeros_mode, self.tensor_scale = packed.block, packed.zeros_mode, packed.tensor_scale
        for name in ("codes", *ARRAYS):
            array = packed.held.get(name)
            place = device or (torch.get_default_device() if isinstance(array, np.ndarray) else None)
            tensor = array if array is None or place is None else as_torch(array, place)
            self.register_buffer("qweight" if name == "codes" else name, tensor)
        self._order = packed.order
        self._renew()

    def _renew(self) -> None:
        """Forget what was made of the buffers: they are others, or somewhere else."""
        self._packed: PackedWeight | None = None
        self._calls = Products()
        self._seen: Seen | None = None
        # Those that are None come last: `torch.export` counts them among the others.
        self._buffers = dict(sorted(self._buffers.items(), key=lambda item: item[1] is None))
        self.handle = handle_of(self, self.qweight.device, self.__dict__.get("handle"))

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "bias" and isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            # A tensor that wants gradients is to get them itself.
            self.__dict__["_parameters"][name] = (
                value if value.requires_grad else torch.nn.Parameter(value, requires_grad=False)
            )
        else:
            super().__setattr__(name, value)
        if name in _BUFFERS and "handle" in self.__dict__:
            self._renew()

    def _is_in_order(self) -> bool:
        """Whether `qweight` holds a kernel's records, which are words, and not codes row by row, wherever it was copied
        to."""
        return self._order is not None and self.qweight.dtype == torch.uint32

    @property
    def weight(self) -> PackedWeight:
        """The weight on the module's device."""
        self._settle()
        packed, bias, seen = self._packed, self._parameters.get("bias"), self._seen
        if seen is None or not seen.holds(self._buffers):  # somebody assigned a buffer, or wrote to one
            packed = None
        if packed is None or seen is None or not seen.is_added(bias):
            self._calls.clear()
            self._seen = Seen(self._buffers, bias)
        if packed is None:
            arrays = {name: self._buffers[name] for name in ARRAYS if self._buffers.get(name) is not None}
            packed = self._packed = PackedWeight(
                self.W_dtype,
                (self.out_features, self.in_features),
                {"codes": self.qweight, **arrays},
                **meaning(self),
                order=self._order if self._is_in_order() else None,
            )
            packed.handle = shared_with(packed, self.handle)
            packed.owner = weakref.WeakMethod(self.load_quantized)
            packed.dtype = self.dense_dtype
        return packed

    def load_quantized(self, weight: QuantizedWeight) -> None:
        """Replace the weight. Raises WrongArgumentShape for one of another shape than the layer."""
        if weight.shape != (self.out_features, self.in_features):
            raise WrongArgumentShape(
                f"the weight has shape {list(weight.shape)}, the layer {[self.out_features, self.in_features]}"
            )
        self._hold(PackedWeight.pack(weight), self.qweight.device)

    def _settle(self) -> None:
        """Where a kernel has brought the weight into its own order, the buffer holds that instead: codes are held
        once."""
        packed, buffer, seen = self._packed, self._buffers["qweight"], self._seen
        if packed is None or seen is None or packed.order is self._order:
            return
        if all(one is not buffer for one in seen.buffers):
            return
        unchanged = seen.holds(self._buffers)
        self._order, words = packed.order, packed.held["codes"]
        self._buffers["qweight"] = words
        if unchanged:
            self._seen = Seen(self._buffers, seen.bias)

    def dequantize(self) -> torch.Tensor:
        """The weight that activations are multiplied by in effect, ``[N, K]`` float32."""
        return torch.from_numpy(self.weight.to_dense().astype(np.float32)).to(self.qweight.device)

    def _describe_as(self, about: dict[str, Any]) -> None:
        """Take over what a state dict says of its weight beside the arrays.  Raises WrongArgumentShape."""
        if about["shape"] != (self.out_features, self.in_features):
            raise WrongArgumentShape(
                f"the state dict has a weight of shape {list(about['shape'])}, the layer "
                f"{[self.out_features, self.in_features]}"
            )
        self.block, self.zeros_mode = about["block"], about["zeros_mode"]
        self.tensor_scale, self.W_dtype = about["tensor_scale"], about["format"]
        self._renew()

    def _save_to_state_dict(self, destination: dict[str, object], prefix: str, keep_vars: bool) -> None:
        # A state dict is what `quant.files` writes: codes row by row, columns as they were.
        away = self.qweight.is_meta and getattr(self, "_hf_hook", None)
        if away:  # accelerate keeps it elsewhere between calls
            away.pre_forward(self)
        super()._save_to_state_dict(destination, prefix, keep_vars)
        weight = self.weight
        plain = weight.codes if weight.gathered is None else as_torch(weight.unpack().packed, self.qweight.device)
        destination[prefix + "qweight"] = plain
        destination[prefix + METADATA] = as_torch(metadata_bytes(weight), "cpu")
        if away:
            away.post_forward(self, None)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, metadata: object, strict: bool, missing: list[str], *rest: Any
    ) -> None:
        text = metadata_name(state_dict, prefix)
        about = read_metadata(state_dict[text], text) if text in state_dict else None
        if strict:
            wanted = [METADATA] if about is None else about["arrays"]
            missing += [prefix + name for name in wanted if prefix + name not in state_dict]
        # Buffers take the shapes and types that the file has, so that any layer of the right size loads any format:
        # what a new weight lacks is gone. A dict without the weight leaves it alone, and a layer's bias is there before
        # and after.
        replaced = prefix + "qweight" in state_dict
        for name in _BUFFERS:
            held = self.__dict__["_parameters" if name == "bias" else "_buffers"]
            found, own = state_dict.get(prefix + name), held.get(name)
            if found is None:
                held[name] = None if replaced and name in ARRAYS else own
            elif own is None or own.shape != found.shape or own.dtype != found.dtype:
                empty = torch.empty_like(found, device=self.qweight.device)
                trained = own is not None and own.requires_grad
                held[name] = torch.nn.Parameter(empty, requires_grad=trained) if name == "bias" else empty
        if replaced:
            self._order = None
        buffers = {name: tensor for name, tensor in state_dict.items() if name != text}
        super()._load_from_state_dict(buffers, prefix, metadata, strict, missing, *rest)
        if about is not None:
            self._describe_as(about)
        self._renew()
        if replaced:
            self._gather()

    def _gather(self) -> None:
        """Bring codes that were read row by row into the order of groups where that is another."""
        of, g_idx = number_format(self.W_dtype), self._buffers.get("g_idx")
        if column_order(self.in_features, self.block[1], None if g_idx is None else as_numpy(g_idx)) is None:
            return
        codes = as_numpy(self.qweight)
        if not of.is_dense:
            codes = unpack_plain(codes, self.in_features, of.bits)
        arrays = {name: as_numpy(self._buffers[name]) for name in ARRAYS if self._buffers.get(name) is not None}
        self._hold(PackedWeight.pack(self._weight(codes, arrays)), self.qweight.device)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> HeldWeight:
        # ``model.half()`` means activations: scales stay in the type that they were made in.
        self._settle()
        self.dense_dtype = fn(torch.empty(0, dtype=self.dense_dtype, device=self.qweight.device)).dtype
        buffers, self._buffers = self._buffers, {}
        super()._apply(fn, recurse)  # the bias, as torch has it for parameters
        self._buffers = buffers
        for name, buffer in list(self._buffers.items()):
            if buffer is None:
                continue
            moved = fn(buffer)
            if moved.dtype != buffer.dtype:
                empty = buffer.is_meta and not moved.is_meta  # `to_empty`
                moved = torch.empty_like(buffer, device=moved.device) if empty else buffer.to(moved.device)
            self._buffers[name] = moved
        self._renew()
        return self

    def __prepare_scriptable__(self) -> None:
        """Asked by `torch.jit.script`, which would end in words about annotations. Raises Unsupported."""
        raise Unsupported("quantised layers in torch.jit.script", ("torch.jit.trace", "torch.export", "torch.compile"))

    def _replicate_for_data_parallel(self) -> HeldWeight:
        replica: HeldWeight = super()._replicate_for_data_parallel()
        replica._renew()  # and again when it is given its buffers
        return replica

    def __getstate__(self) -> dict[str, object]:
        self._settle()
        buffers = {**self._buffers, "qweight": plain_words(self._buffers["qweight"])}
        own = ("_packed", "_calls", "_seen", "handle")  # a copy is a layer of its own
        return {**{name: value for name, value in self.__dict__.items() if name not in own}, "_buffers": buffers}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        if self._order is not None:
            self._buffers["qweight"] = words_again(self._buffers["qweight"])
        self._renew()
