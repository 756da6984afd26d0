"""BitBLAS's ``Linear``: state dicts in its packed bytes, brought into our order once when they are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tilewright import nn
from tilewright.compat.bitblas.ops.general_matmul import Matmul, MatmulConfig
from tilewright.errors import InvalidTensor, MissingTensor
from tilewright.formats import pack_plain, unpack_plain
from tilewright.ir.dtypes import dtype
from tilewright.matmul.arrays import as_torch
from tilewright.matmul.packed import PackedWeight
from tilewright.quant.importers import from_bitblas, from_gptq
from tilewright.quant.importers.bitblas import stored_codes
from tilewright.quant.weight import QuantizedWeight
from tilewright.runtime.tensors import Array, as_numpy


class Linear(nn.Linear):
    """`tilewright.Linear` with BitBLAS's arguments and state dicts.

    Parameters
    ----------
    in_features, out_features : K and N; any sizes.
    A_dtype : type of the activations that `forward` gets.
    W_dtype, group_size, with_scaling, with_zeros, zeros_mode, fast_decoding, propagate_b : as in `MatmulConfig`; the
    last two
        are the order of ``qweight`` in state dicts.
    out_dtype : of the result.
    opt_M, enable_tuning, accum_dtype : accepted.

    Notes
    -----
    A state dict has ``qweight`` (int8, `Matmul.retrieve_weight_shape`), ``scales``, ``zeros`` and ``bias``; where
    W_dtype is A_dtype it has ``weight`` instead. The buffers themselves are in our order.
    """

    STORAGE_DTYPE = "int8"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        A_dtype: str = "float16",
        W_dtype: str = "float16",
        accum_dtype: str = "float16",
        out_dtype: str = "float16",
        group_size: int | None = -1,
        with_scaling: bool | None = None,
        with_zeros: bool = False,
        zeros_mode: str | None = None,
        opt_M: int | Sequence[int] | None = (1, 16, 32, 64, 128, 256, 512),
        enable_tuning: bool = True,
        fast_decoding: bool | None = None,
        propagate_b: object = False,
    ) -> None:
        self.config = MatmulConfig(
            M=opt_M,
            N=out_features,
            K=in_features,
            A_dtype=A_dtype,
            W_dtype=W_dtype,
            out_dtype=out_dtype,
            accum_dtype=accum_dtype,
            with_bias=bias,
            group_size=group_size,
            with_scaling=bool(with_scaling),
            with_zeros=with_zeros,
            zeros_mode=zeros_mode or "original",
            fast_decoding=fast_decoding,
            propagate_b=propagate_b,
        )
        form = W_dtype, None, out_dtype, group_size, bool(with_scaling), with_zeros, zeros_mode
        super().__init__(in_features, out_features, bias, "float16", *form, scale_dtype=self.config.float_type)
        self.opt_M = opt_M

    @property
    def consistent(self) -> bool:
        """Whether the weight is of the activations' type."""
        return self.config.A_dtype == self.config.W_dtype

    @property
    def bitblas_matmul(self) -> Matmul:
        """The operator on raw tensors with this layer's configuration."""
        return Matmul(self.config, enable_tuning=False)

    def init_params(self) -> None:
        """BitBLAS reads pointers here; there is nothing to do."""

    def warmup(self, topk: int = 20) -> None:
        """Measure the ways to compute calls of each of `opt_M` rows and keep the fastest."""
        rows = self.config.M if isinstance(self.config.M, tuple) else (self.config.M or 1,)
        self.tune(sorted({int(one) for one in rows}), getattr(torch, dtype(self.config.A_dtype).name), topk)

    # Weights ------------------------------------------------------------------------------------------

    def load_and_transform_weight(
        self, weight: object, scales: object = None, zeros: object = None, bias: object = None
    ) -> None:
        """Take numbers ``[N, K]``, scales ``[N, K / group]`` and zeros as the configuration has them.

        Raises
        ------
        NotRepresentable, CannotQuantize : what does not fit, named.
        """
        if zeros is not None and self.zeros_mode == "quantized":
            bits = self.config.format.bits
            packed = as_numpy(zeros).view(np.uint8)
            zeros = np.ascontiguousarray(unpack_plain(packed, self.out_features, bits)[:, : self.out_features].T)
        super().load_and_transform_weight(weight, scales, zeros, bias)

    def repack_from_gptq(self, gptq_module: torch.nn.Module, device: torch.Tensor | None = None) -> None:
        """Take the weight of a module with AutoGPTQ's buffers, whose zero points are stored less one.

        Raises
        ------
        InvalidTensor : buffers that do not fit this layer's configuration.
        """
        self._repack(gptq_module, 1, device)

    def repack_from_gptq_v2(self, gptq_module: torch.nn.Module, device: torch.Tensor | None = None) -> None:
        """As `repack_from_gptq`, of a module whose zero points are stored as they are."""
        self._repack(gptq_module, 2, device)

    def _repack(self, module: Any, version: int, device: torch.Tensor | None) -> None:
        weight = from_gptq(
            module.qweight,
            module.qzeros,
            module.scales,
            getattr(module, "g_idx", None),
            bits=self.config.format.bits,
            version=version,
            name="the GPTQ module",
        )
        if weight.shape != (self.out_features, self.in_features):
            raise InvalidTensor(
                f"the GPTQ module is {list(weight.shape)}, the layer {[self.out_features, self.in_features]}"
            )
        self._take(weight)
        if getattr(module, "bias", None) is not None:
            self.bias = module.bias.detach().clone()
        if device is not None:
            self.to(device)

    def forward(self, x: torch.Tensor, output: torch.Tensor | None = None) -> torch.Tensor:
        """See `tilewright.Linear`."""
        self._take_assigned()
        return super().forward(x, output)

    @property
    def weight(self) -> PackedWeight:  # type: ignore[override]  # torch has a Parameter
        """See `tilewright.Linear`."""
        self._take_assigned()
        return super().weight

    def _take_assigned(self) -> None:
        """Programs write BitBLAS's bytes to ``layer.qweight.data`` and ``layer.zeros.data``: int8, which ours never
        are."""
        codes: Any = self._buffers["qweight"]
        zeros: Any = self._buffers.get("zeros")
        raw_zeros = zeros is not None and zeros.dtype is torch.int8
        if codes is None or not ((codes.dtype is torch.int8 and not self.consistent) or raw_zeros):
            return
        config, scales = self.config, self._buffers.get("scales") if self.config.with_scaling else None
        if codes.dtype is not torch.int8:
            of = self.config.format
            packed = super().weight.unpack().codes
            codes = config.order.pack(packed if config.native else stored_codes(packed, of, config.A_dtype))
        if zeros is not None and not raw_zeros and config.zeros_mode == "quantized":
            wide = np.broadcast_to(as_numpy(zeros), (self.out_features, -(-self.in_features // self.block[1])))
            zeros = pack_plain(np.ascontiguousarray(wide.T.astype(np.uint8)), config.format.bits)
        self._take(self._weight_of(codes, scales, zeros if config.with_zeros else None))

    def _take(self, weight: QuantizedWeight) -> None:
        self.W_dtype = weight.format.name
        self.load_quantized(weight)

    # State dicts --------------------------------------------------------------------------------------

    def _save_to_state_dict(self, destination: dict[str, object], prefix: str, keep_vars: bool) -> None:
        for name, array in self.packed_tensors().items():
            destination[prefix + name] = as_torch(array, self.qweight.device)
        if self.bias is not None:
            destination[prefix + "bias"] = self.bias if keep_vars else self.bias.detach()

    def packed_tensors(self) -> dict[str, np.ndarray]:
        """The weight in BitBLAS's bytes, by the names of its buffers.

        Raises
        ------
        InvalidTensor : a weight that BitBLAS has no bytes for: act-order, or zeros of another mode.
        """
        weight, config = self.weight.unpack(), self.config
        if weight.g_idx is not None:
            raise InvalidTensor("BitBLAS has no act-order: a weight with g_idx has no bytes there")
        codes = weight.codes
        if weight.format.name != config.format.name and weight.zero == 1 << (weight.format.bits - 1):
            codes = codes ^ np.uint8(weight.zero)  # symmetric unsigned codes as the signed ones of the configuration
        raw = config.order.pack(codes if config.native else stored_codes(codes, config.format, config.A_dtype))
        if self.consistent:
            kind = dtype(config.W_dtype).numpy
            return {"weight": raw if raw.dtype == kind else raw.view(kind)}
        made = {"qweight": raw.view(np.int8).reshape(config.order.shape(self.out_features, self.in_features))}
        facts = config.facts()
        if facts.scale is not None and weight.scales is not None:
            grouped = np.broadcast_to(weight.scales, weight.group_shape)
            made["scales"] = grouped.astype(dtype(facts.scale.dtype).numpy)
        if facts.zero_point is not None and weight.zeros is not None:
            zeros = np.broadcast_to(weight.zeros, weight.group_shape)
            if config.zeros_mode == "quantized":
                made["zeros"] = pack_plain(np.ascontiguousarray(zeros.T.astype(np.uint8)), config.format.bits).view(
                    np.int8
                )
            else:
                made["zeros"] = zeros.astype(dtype(facts.zero_point.dtype).numpy)
        return made

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing: Any,
        unexpected: Any,
        errors: Any,
    ) -> None:
        main = "weight" if self.consistent else "qweight"
        given = {name.removeprefix(prefix): tensor for name, tensor in state_dict.items() if name.startswith(prefix)}
        wanted = {
            main,
            *(["scales"] if self.config.with_scaling else []),
            *(["zeros"] if self.config.with_zeros else []),
        }
        wanted |= {"bias"} if self.bias is not None else set()
        if strict:
            # BitBLAS registers scales and zeros of one element even where it does not use them.
            unexpected += [
                prefix + name for name in given if "." not in name and name not in wanted | {"scales", "zeros"}
            ]
            missing += [prefix + name for name in sorted(wanted - set(given))]
        if not wanted <= set(given):
            return
        try:
            self._take(self._weight_of(given[main], *(given[n] if n in wanted else None for n in ("scales", "zeros"))))
        except (InvalidTensor, MissingTensor) as error:
            errors.append(f"{prefix}{main}: {error.message}")
        if "bias" in wanted:
            self.bias = given["bias"].detach().to(self.qweight.device).clone()

    def _weight_of(self, packed: Array, scales: torch.Tensor | None, zeros: torch.Tensor | None) -> QuantizedWeight:
        config, name = self.config, "the state dict"
        N, K = self.out_features, self.in_features
        if config.format.is_dense:
            flat = as_numpy(packed)
            if flat.size != N * K:
                raise InvalidTensor(f"{name} has {list(flat.shape)} elements, where [{N}, {K}] is due")
            return QuantizedWeight(config.order.unpack(flat.reshape(-1), N, K), config.format)
        return from_bitblas(
            packed,
            scales,
            zeros,
            W_dtype=config.W_dtype,
            A_dtype=config.A_dtype,
            N=N,
            K=K,
            group_size=config.group_size or -1,
            zeros_mode=config.zeros_mode,
            propagate_b=int(config.propagate_b),
            fast_decoding=bool(config.fast_decoding),
            native=config.native,
            name=name,
        )
