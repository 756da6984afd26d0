"""HQQ's `qmodel.pt` and Quanto's files: read without running what is in them, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")


from tilewright.checkpoints import open_checkpoint, save_safetensors  # noqa: E402
from tilewright.conversion import convert_checkpoint, load_quantized  # noqa: E402
from tilewright.errors import InvalidCheckpoint, InvalidTensor  # noqa: E402

N, K = 24, 64


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = torch.nn.Linear(K, N), torch.nn.LayerNorm(N)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.up(x))


def hqq_table(axis: int = 1) -> tuple[dict[str, Any], np.ndarray]:
    """What `HQQLinear.state_dict` has of a layer, and the weight."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (N, K)).astype(np.uint8)
    scale, zero = rng.uniform(0.01, 0.1, (N, 2)), rng.uniform(0, 15, (N, 2))
    flat = codes.reshape(-1, 32)
    half = len(flat) // 2
    table = {
        "W_q": torch.nn.Parameter(torch.from_numpy(flat[:half] << 4 | flat[half:]), requires_grad=False), "nbits": 4, "group_size": 32,
        "shape": torch.Size([N, K]), "scale": torch.tensor(scale.reshape(-1, 1)).float(), "zero": torch.tensor(zero.reshape(-1, 1)).float(),
        "axis": axis, "packing": "4bit_u8", "unpack_view_dtype": torch.uint8, "view_as_float": False, "quant_scale": False,
        "quant_zero": False, "compute_dtype": torch.float16, "offload_meta": False, "stores_quant_config": True,
        "channel_wise": True, "optimize": True, "round_zero": False, "bias": torch.randn(N),
    }  # fmt: skip
    wide = [np.repeat(v.astype(np.float32).astype(np.float64), 32, 1) for v in (scale, zero)]
    return table, (codes - wide[1]) * wide[0]


def saved(directory: Path, table: Any) -> Path:
    directory.mkdir()
    norm = {"weight": torch.randn(N).bfloat16(), "bias": torch.zeros(N)}
    torch.save({"up": table, "norm": norm}, directory / "qmodel.pt")
    (directory / "config.json").write_text(json.dumps({"model_type": "mine"}))
    return directory


def test_what_hqq_saves_is_read_without_its_pickle(tmp_path: Path) -> None:
    table, weight = hqq_table()
    path = saved(tmp_path / "hqq", table)
    assert open_checkpoint(path)["norm.weight"].dtype == ml_dtypes.bfloat16
    model, x = load_quantized(Model(), path), torch.randn(5, K, dtype=torch.float64)
    np.testing.assert_allclose(model.up.weight.to_dense(), weight, rtol=1e-12)
    assert convert_checkpoint(path, tmp_path / "ours").weights == 1
    again = load_quantized(Model(), tmp_path / "ours")
    assert torch.equal(again(x.float()), model(x.float()))
    expected = x @ torch.from_numpy(weight).mT + table["bias"].double()
    torch.testing.assert_close(model.up(x.float()).double(), expected, rtol=1e-5, atol=1e-5)


def test_groups_down_the_columns_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidTensor, match=r"up has groups down its columns \(HQQ's axis=0\)"):
        load_quantized(Model(), saved(tmp_path / "hqq", hqq_table(axis=0)[0]))


class Runs:
    """A pickle of it calls a function when it is read by one who trusts it."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path(RAN),))


RAN = "it-ran"


def test_a_pickle_that_would_run_is_refused_and_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = saved(tmp_path / "hqq", Runs())
    with pytest.raises(InvalidCheckpoint, match="cannot be read without running what is in it"):
        open_checkpoint(path)
    assert not (tmp_path / RAN).exists()
    (path / "qmodel.pt").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(InvalidCheckpoint, match=r"qmodel\.pt"):
        open_checkpoint(path)


def quanto(directory: Path, parts: dict[str, np.ndarray]) -> Path:
    directory.mkdir()
    one = np.array(1.0, np.float32)
    rest = {"up.input_scale": one, "up.output_scale": one, "up.bias": np.zeros(N, np.float32)}
    norm = {"norm.weight": np.ones(N, np.float32), "norm.bias": np.zeros(N, np.float32)}
    save_safetensors(
        directory / "model.safetensors", {**{f"up.weight.{k}": v for k, v in parts.items()}, **rest, **norm}
    )
    return directory


@pytest.mark.parametrize("kind", [np.int8, ml_dtypes.float8_e4m3fn])
def test_quantos_bytes_are_read(tmp_path: Path, kind: Any) -> None:
    rng = np.random.default_rng(0)
    codes, scale = rng.integers(-100, 100, (N, K)).astype(kind), rng.uniform(0.01, 0.1, (N, 1)).astype(np.float32)
    model = load_quantized(Model(), quanto(tmp_path / "quanto", {"_data": codes, "_scale": scale}))
    np.testing.assert_allclose(model.up.weight.to_dense(), codes.astype(np.float64) * scale, rtol=1e-12)


def test_quantos_four_bits_are_refused_by_name(tmp_path: Path) -> None:
    scale = np.ones((N, 1), np.float32)
    parts = {"_data._data": np.zeros((N // 2, K), np.uint8), "_scale": scale, "_shift": scale}
    with pytest.raises(InvalidTensor, match="up is in Quanto's form of 4 or 2 bits, whose files do not say the shape"):
        convert_checkpoint(quanto(tmp_path / "quanto", parts), tmp_path / "ours")
