"""What modelopt computes by kernels for GPUs while it calibrates, in torch: all of its presets write their files here then."""

from __future__ import annotations

from typing import Any

import torch

_E2M1 = torch.tensor([-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6])
_LARGEST = {(2, 1): 6.0, (4, 3): 448.0, (5, 2): 57344.0, (3, 2): 28.0, (2, 3): 7.5, (0, 7): 127.0}


def _e4m3(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def _e2m1(x: torch.Tensor) -> torch.Tensor:
    return _E2M1[torch.bucketize(x, (_E2M1[1:] + _E2M1[:-1]) / 2)]


def dynamic_block_quantize(
    x: torch.Tensor, block: int, amax: Any, bits: int, exponent: int, scale_bits: int, scale_exponent: int
) -> torch.Tensor:
    """Numbers in blocks with a scale of their own: e8m0, or e4m3 below the largest number of all."""
    of, parts = (exponent, bits - exponent - 1), x.float().reshape(-1, block)
    scale = parts.abs().amax(1, keepdim=True).clamp_min(1e-12) / _LARGEST[of]
    if scale_exponent == scale_bits - 1:  # a sign and an exponent
        scale = 2.0 ** torch.ceil(torch.log2(scale))
    else:
        largest = x.float().abs().amax() if amax is None else amax.float().amax()
        whole = largest / (_LARGEST[of] * 448)
        scale = (_e4m3(scale / whole) * whole).clamp_min(1e-12)
    rounded = {(2, 1): _e2m1, (4, 3): _e4m3}.get(of, torch.round)(parts / scale)
    return (rounded * scale).reshape(x.shape).to(x.dtype)


def static_blockwise_fp4(
    x: torch.Tensor, amax: torch.Tensor, whole: Any = None, rounded: bool = True, most: float = 448.0, dtype: Any = None
) -> torch.Tensor:
    """e2m1 in blocks whose largest numbers were found before."""
    scale = amax.float().reshape(-1, 1) / 6
    if rounded:
        unit = (amax.max() if whole is None else whole).float() / (6 * most)
        scale = _e4m3(scale / unit) * unit
    scale = torch.where(scale < 1e-5, torch.ones_like(scale), scale)
    return (_e2m1(x.float().reshape(len(scale), -1) / scale) * scale).reshape(x.shape).to(dtype or x.dtype)


class _Kernels:
    IS_AVAILABLE = True
    static_blockwise_fp4_fake_quant = staticmethod(static_blockwise_fp4)


def stand_in(monkeypatch: Any) -> None:
    """Let modelopt find them where it looks for its own."""
    from modelopt.torch.quantization import tensor_quant

    monkeypatch.setattr(tensor_quant, "dynamic_block_quantize_op", dynamic_block_quantize)
    monkeypatch.setattr(tensor_quant, "triton_kernel", _Kernels())
