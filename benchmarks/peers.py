"""Other libraries' products with packed weights, where they are installed: `quant.py` and `quant_bytes.py` time them beside ours.

Humming (``pip install humming-kernels``) compiles kernels when they are first used; its own heuristics choose them, here for the rows of
A that come, where its layer compiles those for all numbers of rows at once (25 s).  tinygemm is torch's kernel for 4-bit weights by
bfloat16 activations.
"""

from __future__ import annotations

import copy
import json
from importlib.util import find_spec
from typing import Any

import torch

HUMMING = find_spec("humming") is not None
"""Whether Humming can be imported."""

TINYGEMM_GROUPS = (32, 64, 128, 256)
"""Columns that share a scale in torch's kernel."""

INNER_TILES = 8
"""Of 16 columns that torch's kernel reads at once."""

_NAMES = {torch.int8: "int8", torch.float8_e4m3fn: "float8e4m3", torch.float16: "float16", torch.bfloat16: "bfloat16"}


class Humming:
    """A weight packed for Humming's kernels, with copies so that a run of launches need not find it in the cache.

    Parameters
    ----------
    dtype : Humming's name of a code's type: ``uint1`` to ``uint8`` stand for ``code - 2**(bits - 1)``, ``float4e2m1`` for small floats.
    codes : uint8 [N, K].
    scales : [N, K / group] of `out`'s type or float8_e8m0fnu, [N, 1] where they are those of channels.
    activations : what rows of A are: 16 bits, or int8 or float8_e4m3fn with a scale a row.
    out : float16 or bfloat16.
    copies : of the packed weight.
    """

    def __init__(
        self, dtype: str, codes: Any, scales: Any, activations: torch.dtype, out: torch.dtype, copies: int = 1
    ) -> None:
        from humming.layer import HummingLayer
        from humming.ops import pack_weight

        N, K = codes.shape
        group = 0 if scales.shape[1] == 1 else K // scales.shape[1]
        weight: dict[str, Any] = {"dtype": dtype, "group_size": group}
        if scales.dtype == torch.float8_e8m0fnu:
            weight["scale_dtype"] = "float8e8m0"
        layer = HummingLayer(
            shape_n=N, shape_k=K, weight_config=weight, input_config={"dtype": _NAMES[activations]}, torch_dtype=out
        ).cuda()
        bits = layer.weight_schema.b_dtype.num_bits
        layer.load_from_tensors({"weight": pack_weight(codes.int(), bits), "weight_scale": scales})
        layer.transform()
        self.layers = [layer, *(copy.deepcopy(layer) for _ in range(copies - 1))]
        self.tuned: dict[int, str] = {}

    def __call__(self, a: Any, out: Any, scales: Any = None, launch: int = 0) -> Any:
        """C [M, N] of A [M, K]; with the scales [M, 1] of its rows where it is quantised."""
        layer, M = self.layers[launch % len(self.layers)], a.shape[0]
        if M not in self.tuned:
            from humming.tune import get_heuristics_config

            self.tuned[M] = json.dumps(get_heuristics_config(layer.humming_config, shape_m=M))
        return layer(a, outputs=out, input_scale=scales, tuning_config=self.tuned[M])

    def build(self, rows: int, N: int, K: int) -> None:
        """Have the kernel compiled that a weight ``[N, K]`` of this kind would be multiplied by so many rows with."""
        from humming.kernel import HummingKernel
        from humming.tune import get_heuristics_config

        config = {**json.loads(self.layers[0].humming_config.to_str()), "shape_n": N, "shape_k": K}
        tuned = json.dumps(get_heuristics_config(config, shape_m=rows))
        HummingKernel.prepare_kernels(json.dumps(config), None, tuned)


class Tinygemm:
    """An int4 weight packed for torch's kernel; codes and scales as `Humming` takes them, bfloat16, ``code - 8``."""

    def __init__(self, codes: Any, scales: Any, copies: int = 1) -> None:
        pairs = (codes[:, ::2] << 4 | codes[:, 1::2]).contiguous()
        packed = torch._convert_weight_to_int4pack(pairs, INNER_TILES)
        self.weights = [packed, *(packed.clone() for _ in range(copies - 1))]
        self.group = codes.shape[1] // scales.shape[1]
        self.scales = torch.stack([scales, torch.zeros_like(scales)], -1).transpose(0, 1).contiguous()

    def __call__(self, a: Any, launch: int = 0) -> Any:
        weight = self.weights[launch % len(self.weights)]
        return torch._weight_int4pack_mm(a, weight, self.group, self.scales)
