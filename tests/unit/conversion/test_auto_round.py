"""AutoRound's exports in floats: the forms of compressed-tensors under AutoRound's own words, as its 0.15 writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.checkpoints import open_checkpoint, save_safetensors
from tilewright.conversion import convert_checkpoint
from tilewright.errors import InvalidTensor
from tilewright.quant.files import read_weight

N, K = 24, 64
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
SAID = {
    "quant_method": "auto-round", "provider": "auto-round", "sym": True, "iters": 0, "autoround_version": "0.15.1", "act_bits": 8,
    "act_dynamic": True, "super_bits": None, "packing_format": "auto_round:llm_compressor",
}  # fmt: skip


def made(kind: str) -> tuple[dict[str, np.ndarray], dict[str, Any], np.ndarray]:
    """Tensors, what the configuration says, and the weight."""
    rng = np.random.default_rng(0)
    powers = rng.integers(118, 130, (N, K // 32)).astype(np.uint8)
    by_32 = np.repeat(2.0 ** (powers.astype(np.float64) - 127), 32, 1)
    nibbles, floats = rng.integers(0, 16, (N, K)), rng.normal(size=(N, K)).astype(ml_dtypes.float8_e4m3fn)
    packed = (nibbles[:, ::2] | nibbles[:, 1::2] << 4).astype(np.uint8)
    if kind == "MXFP4":
        said = {"bits": 4, "data_type": "mx_fp", "group_size": 32, "act_data_type": "mx_fp"}
        return {"weight_packed": packed, "weight_scale": powers}, said, E2M1[nibbles] * by_32
    if kind == "MXFP8":
        return (
            {"weight": floats, "weight_scale": powers},
            {"bits": 8, "data_type": "mx_fp", "group_size": 32},
            floats.astype(float) * by_32,
        )
    if kind == "NVFP4":
        scale, whole = rng.uniform(1, 400, (N, K // 16)).astype(ml_dtypes.float8_e4m3fn), np.array([700.0], np.float32)
        tensors = {
            "weight_packed": packed,
            "weight_scale": scale,
            "weight_global_scale": whole,
            "input_global_scale": whole,
        }
        weight = E2M1[nibbles] * np.repeat(scale.astype(np.float64), 16, 1) / 700.0
        return (
            tensors,
            {"bits": 4, "data_type": "nv_fp", "group_size": 16, "act_data_type": "nv_fp4_with_static_gs"},
            weight,
        )
    if kind == "FP8_BLOCK":  # DeepSeek's
        scale = rng.uniform(0.01, 0.1, (N // 8, K // 16)).astype(np.float32)
        said = {"bits": 8, "data_type": "fp", "group_size": [8, 16], "packing_format": "auto_round:fp8", "fmt": "e4m3"}
        return (
            {"weight": floats, "weight_scale_inv": scale},
            said,
            floats.astype(float) * np.kron(scale, np.ones((8, 16))),
        )
    rows = 1 if kind == "FPW8A16" else N
    scale = rng.uniform(0.01, 0.1, rows).astype(ml_dtypes.bfloat16)
    said = {
        "bits": 8,
        "data_type": "fp",
        "group_size": 0 if rows == 1 else -1,
        "packing_format": None if rows == 1 else "auto_round:fp8_static",
    }
    return (
        {"weight": floats, "weight_scale": scale},
        {**said, "activation_scheme": "dynamic"},
        floats.astype(float) * scale.astype(float)[:, None],
    )


@pytest.mark.parametrize("kind", ["MXFP4", "MXFP8", "NVFP4", "FPW8A16", "FP8_STATIC", "FP8_BLOCK"])
def test_floats_are_read(tmp_path: Path, kind: str) -> None:
    tensors, said, weight = made(kind)
    (tmp_path / "from").mkdir()
    save_safetensors(tmp_path / "from" / "model.safetensors", {f"up.{name}": array for name, array in tensors.items()})
    (tmp_path / "from" / "config.json").write_text(json.dumps({"quantization_config": {**SAID, **said}}))
    convert_checkpoint(tmp_path / "from", tmp_path / "ours")
    np.testing.assert_allclose(read_weight(open_checkpoint(tmp_path / "ours"), "up").to_dense(), weight, rtol=1e-6)
    other = {**SAID, **said, "packing_format": "auto_round:something"}
    (tmp_path / "from" / "config.json").write_text(json.dumps({"quantization_config": other}))
    with pytest.raises(InvalidTensor, match="auto_round:something"):
        convert_checkpoint(tmp_path / "from", tmp_path / "other")
