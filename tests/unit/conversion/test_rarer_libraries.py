"""Checkpoints of SINQ, QQQ, ExLlamaV2, FP-Quant and ParoQuant, written as these libraries write them, become ours; what is not known is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "quant"))
from checkpoint_writers import Written, write_awq_gemm

from tilewright.checkpoints import open_checkpoint, save_safetensors
from tilewright.conversion import convert_checkpoint
from tilewright.errors import InvalidCheckpoint, InvalidTensor, MissingTensor
from tilewright.formats import number_format
from tilewright.quant.files import read_weight

Tensors = dict[str, np.ndarray]


def save(directory: Path, tensors: Tensors, settings: dict[str, Any], beside: dict[str, Any] | None = None) -> Path:
    """Files as a library writes them: a shard, its index, the configuration, what SINQ has beside."""
    directory.mkdir()
    shard = "model-00001-of-00001.safetensors"
    save_safetensors(directory / shard, tensors, {})
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, shard)}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text(json.dumps({"quantization_config": settings} if settings else {}))
    if beside is not None:
        (directory / "model.safetensors.index.json.meta.json").write_text(json.dumps(beside))
    return directory


def weight_of(directory: Path, layer: str = "up") -> np.ndarray:
    convert_checkpoint(directory, directory / "ours")
    made = open_checkpoint(directory / "ours")
    assert {name.rpartition(".")[0] for name in made} == {layer}
    return read_weight(made, layer).to_dense()


# SINQ ---------------------------------------------------------------------------------------------------

SINQ = {
    "quant_method": "sinq", "nbits": 4, "group_size": 64, "tiling_mode": "1D", "method": "sinq", "modules_to_not_convert": ["lm_head"],
    "_extra_kwargs": {}, "sinq": True, "backend": "sinq", "quantization_method": "sinq", "sinq_version": "auto",
}  # fmt: skip
WAYS = {8: ("8bit_u8", 1, 8), 6: ("6bit_32", 5, 6), 5: ("5bit_32", 6, 5), 4: ("4bit_u8", 2, 4), 3: ("3bit_32", 10, 3), 2: ("2bit_u8", 4, 2),
    1.58: ("2bit_u8", 4, 2), 1: ("1bit_u8", 8, 1)}  # fmt: skip


def write_sinq(
    rng: np.random.Generator, N: int, K: int, bits: float, group: int, method: str, of: Any
) -> tuple[Tensors, dict[str, Any], np.ndarray]:
    """A row for each group, as HQQ has them; a scale for each group and one for each column, and with ``quantAux`` bytes
    in the place of the first; ``noz`` has one zero point."""
    packing, parts, width = WAYS[bits]
    rows = N * K // group
    codes = rng.integers(0, round(2**bits), (rows, group))
    step = -(-rows // parts)
    packed = np.zeros((step, group), np.int64)
    for r in range(rows):
        packed[r % step] |= codes[r] << width * (parts - 1 - r // step)
    tensors = {"up.W_q": packed.astype(np.uint8 if packing.endswith("u8") else np.int32)}
    meta = {
        "nbits": bits, "group_size": 2 * group, "shape": [N, K], "awq_scale": None, "axis": 1, "packing": packing, "method": method,
        "compute_dtype": "torch.bfloat16", "unpack_view_dtype": "torch.uint8", "view_as_float": False,
    }  # fmt: skip
    zero = np.array([7.0]).astype(of)[0] if "noz" in method else rng.uniform(0, 2**bits, (rows, 1)).astype(of)
    made = {"scale": rng.uniform(0.01, 0.1, (rows, 1)).astype(of), "zero": np.asarray(zero)}
    for part, tile in (("scale", 8), ("zero", made["zero"].size)) if "quantAux" in method else ():
        columns = made[part].size // tile
        x = rng.integers(0, 256, (tile, columns)).astype(np.uint8)
        s, m = (rng.uniform(0.001, 0.01, (1, columns)).astype(of) for _ in range(2))
        tensors |= {f"up.meta.{part}.x": x, f"up.meta.{part}.s": s, f"up.meta.{part}.m": m}
        meta[f"{part}.shape"] = list(made[part].shape)
        # Every step in the type of the factor.
        made[part] = ((x.astype(of) * s).astype(of) + m).astype(of).reshape(made[part].shape)
    tensors |= {f"up.meta.{part}": made[part] for part in ("scale", "zero") if f"up.meta.{part}.x" not in tensors}
    tensors["up.meta.scale2"] = rng.uniform(0.5, 2.0, (1, K)).astype(of)
    values = np.asarray(number_format("nf4").values)[codes] if "nf4" in method else codes.astype(float)
    whole = ((values - made["zero"].astype(float)) * made["scale"].astype(float)).reshape(N, K)
    return tensors, {"up": {"meta": meta}}, whole * tensors["up.meta.scale2"].astype(float)


@pytest.mark.parametrize(
    "method", ["dual", "sinq_noz", "sinq_quantAux", "sinq_awq_l1_quantAux", "sinq_noz_quantAux", "sinq_nf4"]
)
@pytest.mark.parametrize("bits", WAYS)
def test_sinq(tmp_path: Path, bits: float, method: str) -> None:
    """Of any bits; rows whose groups were halved until they divided them say so by the shape of their codes alone."""
    rng = np.random.default_rng(int(bits * 10))
    of = [np.float16, np.float32, ml_dtypes.bfloat16][rng.integers(3)]
    tensors, beside, weight = write_sinq(rng, 32, 96, 4 if "nf4" in method else bits, 32, method, of)
    said = [SINQ, {key: SINQ[key] for key in ("sinq", "backend", "quantization_method", "sinq_version")}, {}][
        rng.integers(3)
    ]
    np.testing.assert_allclose(
        weight_of(save(tmp_path / "from", tensors, said, beside)), weight, rtol=1e-14, atol=1e-15
    )


def test_sinq_in_a_file_of_torch(tmp_path: Path) -> None:
    """What its `save_quantized` writes: tables of tables."""
    torch = pytest.importorskip("torch")
    tensors, beside, weight = write_sinq(np.random.default_rng(1), 32, 96, 3, 32, "sinq_quantAux", np.float32)
    meta: dict[str, Any] = {**beside["up"]["meta"], "shape": torch.Size([32, 96]), "compute_dtype": torch.float16}
    for part in ("scale", "zero"):
        inside = {one: torch.from_numpy(tensors[f"up.meta.{part}.{one}"]) for one in ("x", "s", "m")}
        meta[part] = {**inside, "shape": meta.pop(f"{part}.shape")}
    meta["scale2"] = torch.from_numpy(tensors["up.meta.scale2"])
    (tmp_path / "from").mkdir()
    torch.save({"up": {"W_q": torch.from_numpy(tensors["up.W_q"]), "meta": meta}}, tmp_path / "from" / "qmodel.pt")
    np.testing.assert_allclose(weight_of(tmp_path / "from"), weight, rtol=1e-14, atol=1e-15)


def test_what_is_not_known_of_sinq_is_refused(tmp_path: Path) -> None:
    tensors, beside, _ = write_sinq(np.random.default_rng(0), 32, 96, 4, 32, "sinq_quantAux", np.float32)
    meta = beside["up"]["meta"]
    cases: list[tuple[Tensors, dict[str, Any] | None, type[Exception], str]] = [
        (tensors, None, MissingTensor, r"up\.meta\.method is missing: a HQQ or SINQ weight needs it"),
        (tensors, {"method": "sinq_v9"}, InvalidTensor, r"up\.meta\.method is 'sinq_v9'\n  help: words that are known: asinq, awq, "),
        (tensors, {"method": "sinq_nf3"}, InvalidTensor, "up has codes of nf3\n  help: SINQ's integers and nf4 with tiling_mode 1D"),
        (tensors, {"scale.shape": [3, 32, 1]}, InvalidTensor, "up has tiles, each with scales of its columns"),
        (tensors, {"scale.shape": [3, 31]}, InvalidTensor, r"up\.meta\.scale\.x holds 96 numbers, where .* says \[3, 31\]"),
        (tensors, {"axis": 0}, InvalidTensor, "up has groups down its columns"),
        (tensors, {"awq_scale": [1, 2]}, InvalidTensor, r"up\.meta\.awq_scale .* is beside up\.W_q, a weight in the form sinq"),
        (tensors, {"packing": None}, MissingTensor, r"up\.meta\.packing is missing"),
        (tensors, {"scale2": [1, 2]}, InvalidCheckpoint, r"up\.meta\.scale2 is both in model-00001-of-00001"),
        (tensors | {"up.meta.scale2": np.zeros((1, 96), np.float32)}, {}, InvalidTensor, r"up\.meta\.scale2 is 0\.0 at 0"),
        (tensors | {"up.meta.scale.m": tensors["up.meta.scale.m"][:, 1:]}, {}, InvalidTensor, r"up\.meta\.scale\.m is float32 \[1, 11\]"),
    ]  # fmt: skip
    for number, (changed, said, error, message) in enumerate(cases):
        about = None if said is None else {"up": {"meta": meta | said}}
        with pytest.raises(error, match=message):
            weight_of(save(tmp_path / str(number), changed, SINQ, about))


# QQQ ----------------------------------------------------------------------------------------------------

QQQ = {
    "quant_method": "qqq", "checkpoint_format": "qqq", "bits": 4, "wbits": 4, "group_size": 128, "desc_act": False, "sym": True,
    "lm_head": False, "pack_dtype": "int32", "meta": {"quantizer": ["gptqmodel:7.7.0"], "damp_percent": 0.005},
}  # fmt: skip


def write_qqq(rng: np.random.Generator, N: int, K: int, group: int | None) -> tuple[Tensors, np.ndarray]:
    """Marlin's threads, each with four elements of K one after another; nibbles of one order with groups, of another
    without, whose numbers are in two's complement; scales are dealt out as the fragments want them."""
    numbers = rng.integers(-8, 8, (K, N))
    B = np.zeros((K // 16, 2 * N), np.uint32)
    order = (4, 0, 5, 1, 6, 2, 7, 3) if group is None else (0, 2, 4, 6, 1, 3, 5, 7)
    for row in range(K // 16):
        for tile in range(N // 64):
            for thread in range(32):
                for part in range(4):
                    column, first = 64 * tile + 16 * part + thread // 4, 16 * row + 4 * (thread % 4)
                    held = [int(numbers[first + k, column + of]) for of in (0, 8) for k in range(4)]
                    coded = [held[i] & 15 if group is None else held[i] + 8 for i in order]
                    B[row, 128 * tile + 4 * thread + part] = sum(code << 4 * i for i, code in enumerate(coded))
    channel, stored = rng.uniform(1e-4, 1e-3, (1, N)).astype(np.float32), np.zeros((1, N), np.float32)
    for n in range(N):
        base = n % 32
        stored[0, n - base + 8 * (base % 8 // 2) + base % 2 + 2 * (base // 8)] = channel[0, n]
    if group is None:
        tensors = {"up.B": B.view(np.int32), "up.s_channel": stored, "up.s_group": np.zeros(0, np.float16)}
        return tensors, (numbers * 16.0 * channel.astype(float)).T
    factors = rng.uniform(4, 19, (K // group, N)).astype(np.float16)
    groups = np.zeros_like(factors)
    for n in range(N):
        groups[:, n - n % 64 + 8 * (n % 8) + n % 64 // 8] = factors[:, n]
    eight = np.clip(np.round(numbers * np.repeat(factors, group, 0).astype(float)), -128, 127)
    return {"up.B": B.view(np.int32), "up.s_channel": stored, "up.s_group": groups}, (eight * channel.astype(float)).T


@pytest.mark.parametrize("group", [None, 32, 64])
def test_qqq(tmp_path: Path, group: int | None) -> None:
    tensors, weight = write_qqq(np.random.default_rng(2), 128, 128, group)
    found = weight_of(save(tmp_path / "from", tensors, QQQ))
    np.testing.assert_allclose(found, weight, rtol=1e-14, atol=0)
    config = json.loads((tmp_path / "from" / "ours" / "config.json").read_text())
    assert config["quantization_config"]["declared_activations"] == "int8"


def test_what_is_not_known_of_qqq_is_refused(tmp_path: Path) -> None:
    tensors, _ = write_qqq(np.random.default_rng(2), 64, 64, 32)
    cases: list[tuple[Tensors, dict[str, Any], str]] = [
        (tensors, QQQ | {"desc_act": True}, "desc_act: True, where one of False is due"),
        (tensors, QQQ | {"wbits": 8}, "wbits: 8, where one of 4 is due"),
        (tensors | {"up.s_group": tensors["up.s_group"][:1]}, QQQ, r"up\.s_group has one group, which is due in s_channel"),
        (tensors | {"up.s_group": tensors["up.s_group"][:, 1:]}, QQQ, r"up\.s_group is float16 \[2, 63\], where"),
        (tensors | {"up.B": tensors["up.B"][:, :96]}, QQQ, r"up\.B has 96 words a row, which tiles of 128 do not make"),
        (tensors | {"up.s_group": tensors["up.s_group"] * np.float16(np.inf)}, QQQ, r"up\.s_group holds numbers that are not finite"),
        (tensors | {"up.zeros": np.ones((2, 64), np.float16)}, QQQ, r"up\.zeros .* is beside up\.B, a weight in the form qqq"),
    ]  # fmt: skip
    for number, (changed, said, message) in enumerate(cases):
        with pytest.raises(InvalidTensor, match=message):
            weight_of(save(tmp_path / str(number), changed, said))
    del tensors["up.s_channel"]
    with pytest.raises((InvalidTensor, MissingTensor), match=r"up\.(B|s_group)"):
        weight_of(save(tmp_path / "less", tensors, QQQ))


# ExLlamaV2 ----------------------------------------------------------------------------------------------

EXL2 = {
    "quant_method": "exl2", "version": "0.3.2", "bits": 4.25, "head_bits": 6, "calibration": {"rows": 115, "length": 2048, "dataset": "(default)"},
}  # fmt: skip


def write_exl2(
    rng: np.random.Generator, N: int, parts: list[tuple[int, int]], padded: int = 0
) -> tuple[Tensors, np.ndarray]:
    """Columns in their order of importance, in groups of so many bits each; a column of words is one string of bits."""
    K, row = sum(columns for _, columns in parts), 0
    order = rng.permutation(K)  # the column in each place
    weight, words, groups = np.zeros((N + padded, K)), [], []
    steps, largest = (
        rng.integers(1, 17, (len(parts), N + padded)),
        rng.uniform(0.01, 0.1, len(parts)).astype(np.float16),
    )
    begun = 0
    for g, (bits, columns) in enumerate(parts):
        codes = rng.integers(0, 1 << bits, (columns, N + padded))
        codes[:, N:] = 1 << (bits - 1)
        strings = [sum(int(code) << bits * i for i, code in enumerate(codes[:, n])) for n in range(N + padded)]
        rows = -(-columns * bits // 32)
        words += [[string >> 32 * r & 0xFFFFFFFF for string in strings] for r in range(rows)]
        groups += [bits, row]
        row += rows
        for n in range(N + padded):
            scale = np.float16(steps[g, n] ** 2) * (largest[g] * np.float16(1 / 256))
            weight[n, order[begun : begun + columns]] = (codes[:, n] - (1 << (bits - 1))) * float(scale)
        begun += columns
    nibbles = [
        [sum(int(steps[g, 8 * w + i] - 1) << 4 * i for i in range(8)) for w in range((N + padded) // 8)]
        for g in range(len(parts))
    ]
    tensors = {
        "up.q_weight": np.array(words, np.uint32).view(np.int32), "up.q_scale": np.array(nibbles, np.uint32).view(np.int32),
        "up.q_scale_max": largest, "up.q_groups": np.array(groups, np.int16), "up.q_invperm": np.argsort(order).astype(np.int32),
    }  # fmt: skip
    return tensors, weight[:N]


PARTS = {
    "one width": [(4, 32)] * 3, "several": [(8, 32), (6, 32), (5, 32), (4, 64), (3, 32), (2, 64)], "a short end": [(6, 64), (3, 20)],
    "one group": [(5, 96)], "of two": [(2, 16)] * 4,
}  # fmt: skip


@pytest.mark.parametrize("said", [EXL2, {}])
@pytest.mark.parametrize("parts", PARTS)
def test_exl2(tmp_path: Path, parts: str, said: dict[str, Any]) -> None:
    tensors, weight = write_exl2(np.random.default_rng(3), 32, PARTS[parts])
    np.testing.assert_allclose(weight_of(save(tmp_path / "from", tensors, said)), weight, rtol=1e-14, atol=0)


def test_rows_that_exl2_adds_are_told_by_the_bias(tmp_path: Path) -> None:
    tensors, weight = write_exl2(np.random.default_rng(3), 20, PARTS["several"], 12)
    bias = np.zeros(20, np.float16)
    found = weight_of(save(tmp_path / "from", tensors | {"up.bias": bias}, EXL2))
    np.testing.assert_allclose(found, weight, rtol=1e-14, atol=0)
    assert not weight_of(save(tmp_path / "all", tensors, EXL2))[20:].any()


def test_what_is_not_known_of_exl2_is_refused(tmp_path: Path) -> None:
    tensors, _ = write_exl2(np.random.default_rng(3), 32, PARTS["several"])
    groups, order = tensors["up.q_groups"], tensors["up.q_invperm"]
    cases: list[tuple[Tensors, str]] = [
        ({"up.q_invperm": order * 0}, r"up\.q_invperm is no order of its 256 columns in 6 groups"),
        ({"up.q_invperm": order[:-40][order[:-40] < 216]}, r"up\.q_invperm is no order of its"),
        ({"up.q_groups": groups + np.int16([0, 1] * 6)}, r"up\.q_groups is \[8, 1, 6, 9, .*where bits and beginnings of groups are due"),
        ({"up.q_groups": np.where(groups == 5, np.int16(7), groups)}, r"up\.q_groups is .*, where bits and beginnings of groups are due"),
        ({"up.q_groups": np.where(groups == 5, np.int16(6), groups)}, "up: its groups have 250 columns, where q_invperm has 256"),
        ({"up.q_weight": np.pad(tensors["up.q_weight"], ((0, 1), (0, 0)))}, "up: group 5 has 5 rows of words for 64 columns of 2 bits"),
        ({"up.q_weight": tensors["up.q_weight"][:-2]}, "up: its groups have 224 columns, where q_invperm has 256"),
        ({"up.q_scale": tensors["up.q_scale"][:, 1:]}, r"up\.q_scale is int32 \[6, 3\], where int32 \[groups, N / 8\] = \[6, 4\] is due"),
        ({"up.q_zeros": np.zeros((6, 4), np.int32)}, r"up\.q_zeros .* is beside up\.q_weight, a weight in the form exl2"),
    ]  # fmt: skip
    for number, (changed, message) in enumerate(cases):
        with pytest.raises(InvalidTensor, match=message):
            weight_of(save(tmp_path / str(number), tensors | changed, EXL2))
    del tensors["up.q_groups"]
    with pytest.raises(MissingTensor, match=r"up\.q_groups is missing: a EXL2 weight needs it"):
        weight_of(save(tmp_path / "less", tensors, EXL2))


# FP-Quant and ParoQuant ---------------------------------------------------------------------------------

FP_QUANT = {
    "quant_method": "fp_quant", "forward_dtype": "mxfp4", "forward_method": "abs_max", "backward_dtype": "bf16", "store_master_weights": False,
    "hadamard_group_size": 32, "pseudoquantization": False, "transform_init": "hadamard", "modules_to_not_convert": ["lm_head"],
}  # fmt: skip
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


def write_fp_quant(
    rng: np.random.Generator, N: int, K: int, kind: str, h: int, padded: bool = False
) -> tuple[Tensors, np.ndarray]:
    """The even column in the low half of a byte; a factor of the whole by which codes were multiplied."""
    codes, group = rng.integers(0, 16, (N, K)), 32 if kind == "mxfp4" else 16
    powers = rng.integers(120, 130, (N, K // group)).astype(np.uint8)
    floats = rng.uniform(1, 400, (N, K // group)).astype(ml_dtypes.float8_e4m3fn)
    stored, factors = (
        (powers, 2.0 ** (powers.astype(float) - 127))
        if kind == "mxfp4"
        else (floats.view(np.uint8), floats.astype(float))
    )
    if padded:
        whole = rng.integers(0, 255, (-(-N // 128) * 128, -(-K // group // 4) * 4)).astype(np.uint8)
        whole[:N, : K // group] = stored
        stored = whole
    hadamard = np.ones((1, 1))
    while len(hadamard) < h:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    turn, divisor = (
        (hadamard / h**0.5).astype(ml_dtypes.bfloat16),
        np.array([3.0 if kind == "mxfp4" else 10.0]).astype(ml_dtypes.bfloat16),
    )
    numbers = np.array(E2M1)[codes] * np.repeat(factors, group, 1) / float(divisor[0])
    weight = np.concatenate([numbers[:, k : k + h] @ turn.astype(float).T for k in range(0, K, h)], 1)
    tensors = {
        "up.qweight": (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8), "up.scales": stored, "up.weight_global_scale": divisor,
        "up.act_global_scale": divisor, "up.forward_hadamard_matrix": turn, "up.backward_hadamard_matrix": turn,
    }  # fmt: skip
    return tensors, weight


@pytest.mark.parametrize(
    ("kind", "h", "padded"), [("mxfp4", 32, False), ("mxfp4", 128, True), ("nvfp4", 16, True), ("nvfp4", 64, False)]
)
def test_fp_quant(tmp_path: Path, kind: str, h: int, padded: bool) -> None:
    tensors, weight = write_fp_quant(np.random.default_rng(h), 24, 256, kind, h, padded)
    said = FP_QUANT | {"forward_dtype": kind, "hadamard_group_size": h}
    np.testing.assert_allclose(
        weight_of(save(tmp_path / "from", tensors, said)), weight, rtol=1e-13, atol=1e-13 * abs(weight).max()
    )


def test_what_is_not_known_of_fp_quant_is_refused(tmp_path: Path) -> None:
    tensors, _ = write_fp_quant(np.random.default_rng(0), 24, 256, "mxfp4", 32)
    cases: list[tuple[Tensors, dict[str, Any], str]] = [
        ({}, {"pseudoquantization": True}, "pseudoquantization: True, where one of False is due"),
        ({}, {"store_master_weights": True}, "store_master_weights: True, where one of False is due"),
        ({}, {"forward_dtype": "mxfp8"}, "forward_dtype: 'mxfp8', where one of mxfp4, nvfp4 is due"),
        ({}, {"forward_dtype": "nvfp4"}, r"up\.scales is uint8 \[24, 8\], where .* = \[24, 16\] is due"),
        ({}, {"hadamard_group_size": 64}, r"up\.forward_hadamard_matrix is \[32, 32\] for K = 256"),
        ({"up.scales": tensors["up.scales"].reshape(-1)}, {}, r"up\.scales is uint8 \[192\], where"),
        ({"up.weight_global_scale": tensors["up.weight_global_scale"] * 0}, {}, r"up\.weight_global_scale is 0\.0, where a positive"),
        ({"up.dqweight": np.ones((24, 256), np.float16)}, {}, r"up\.dqweight .* is beside up\.qweight, a weight in the form fp-quant"),
    ]  # fmt: skip
    for number, (changed, words, message) in enumerate(cases):
        with pytest.raises(InvalidTensor, match=message):
            weight_of(save(tmp_path / str(number), tensors | changed, FP_QUANT | words))
    del tensors["up.forward_hadamard_matrix"]
    with pytest.raises(MissingTensor, match=r"up\.forward_hadamard_matrix is missing: a FP-Quant weight needs it"):
        weight_of(save(tmp_path / "less", tensors, FP_QUANT))


PAROQUANT = {"quant_method": "paroquant", "bits": 4, "group_size": 32, "krot": 3}


def write_paroquant(rng: np.random.Generator, N: int, K: int, group: int, rotations: int) -> tuple[Tensors, np.ndarray]:
    """What an activation of a one in each column gives, rotation by rotation; some pairs are none."""
    made = write_awq_gemm(rng, N, K, group)
    theta = rng.uniform(-3, 3, (rotations, K // 2)).astype(np.float16)
    pairs = np.stack(
        [np.concatenate([rng.permutation(group) for _ in range(K // group)]) for _ in range(rotations)]
    ).astype(np.int16)
    pairs[1, 2:4] = -1
    scales = rng.uniform(0.5, 2.0, (1, K)).astype(np.float16)
    x = np.diag(scales[0].astype(float))
    for r in range(rotations):
        for p in range(K // 2):
            first = 2 * p // group * group
            i, j, angle = first + pairs[r, 2 * p], first + pairs[r, 2 * p + 1], float(theta[r, p])
            if pairs[r, 2 * p] >= 0:
                x[:, i], x[:, j] = (
                    x[:, i] * np.cos(angle) + x[:, j] * np.sin(angle),
                    x[:, j] * np.cos(angle) - x[:, i] * np.sin(angle),
                )
    tensors = {f"up.{name}": tensor for name, tensor in made.tensors.items()}
    return tensors | {"up.theta": theta, "up.pairs": pairs, "up.channel_scales": scales}, made.weight @ x.T


@pytest.mark.parametrize("said", [PAROQUANT, PAROQUANT | {"checkpoint_format": "paroquant", "format": "paroquant", "method": "paroquant",
    "sym": False, "zero_point": True, "desc_act": False, "lm_head": False, "pack_dtype": "int32", "meta": {"quantizer": ["gptqmodel:7.7.0"]}}])  # fmt: skip
def test_paroquant(tmp_path: Path, said: dict[str, Any]) -> None:
    """Of the library itself and of GPTQModel; the matrices are held in float32."""
    tensors, weight = write_paroquant(np.random.default_rng(1), 16, 96, 32, 3)
    np.testing.assert_allclose(weight_of(save(tmp_path / "from", tensors, said)), weight, atol=3e-7 * abs(weight).max())


def test_what_is_not_known_of_paroquant_is_refused(tmp_path: Path) -> None:
    tensors, _ = write_paroquant(np.random.default_rng(1), 16, 96, 32, 3)
    twice = tensors["up.pairs"].copy()
    twice[0, :2] = twice[0, 2:4]
    cases: list[tuple[Tensors, dict[str, Any], str]] = [
        ({}, {"krot": 8}, r"up\.theta has 3 rotations, the configuration says 8"),
        ({}, {"bits": 8}, "bits: 8, where one of 4 is due"),
        ({"up.pairs": twice}, {}, r"up\.pairs has a column in two pairs of one rotation"),
        ({"up.pairs": twice[:2]}, {}, r"up\.pairs is int16 \[2, 96\], where int16 .* = \[3, 96\] is due"),
        ({"up.theta": tensors["up.theta"][:, :40]}, {}, r"up\.(pairs|theta) is .*, where"),
        ({"up.scale2": np.ones(96, np.float16)}, {}, r"up\.scale2 .* is beside up\.qweight, a weight in the form paroquant"),
    ]  # fmt: skip
    for number, (changed, words, message) in enumerate(cases):
        with pytest.raises(InvalidTensor, match=message):
            weight_of(save(tmp_path / str(number), tensors | changed, PAROQUANT | words))
    for name in ("up.pairs", "up.channel_scales", "up.qzeros"):
        with pytest.raises(
            MissingTensor, match=rf"{name} is missing: a (ParoQuant|AWQ) weight needs it".replace(".", "\\.", 1)
        ):
            weight_of(save(tmp_path / name, {one: tensor for one, tensor in tensors.items() if one != name}, PAROQUANT))


# For the tests that every form takes part in ------------------------------------------------------------


def _written(tensors: Tensors, weight: np.ndarray) -> Written:
    return Written({name.removeprefix("up."): tensor for name, tensor in tensors.items()}, weight)


def _sinq(rng: np.random.Generator, method: str) -> Written:
    """With what stands beside the shards as arrays, as `Checkpoint` has it."""
    tensors, beside, weight = write_sinq(rng, 32, 96, 4, 32, method, np.float32)
    said = {key: value for key, value in beside["up"]["meta"].items() if value is not None}
    texts = {key: np.frombuffer(value.encode(), np.uint8) for key, value in said.items() if isinstance(value, str)}
    return _written(tensors | {f"up.meta.{key}": texts.get(key, np.asarray(value)) for key, value in said.items() if key not in texts} |
        {f"up.meta.{key}": text for key, text in texts.items()}, weight)  # fmt: skip


FORMS: dict[str, tuple[dict[str, Any], str, Callable[[np.random.Generator], Written]]] = {
    **{f"sinq {method}": (SINQ, ".", lambda r, m=method: _sinq(r, m)) for method in ("dual", "sinq_quantAux")},
    **{f"qqq {group}": (QQQ, ".", lambda r, g=group: _written(*write_qqq(r, 64, 64, g))) for group in (None, 32)},
    "exl2": (EXL2, ".", lambda r: _written(*write_exl2(r, 32, PARTS["several"]))),
    "fp_quant": (FP_QUANT, ".", lambda r: _written(*write_fp_quant(r, 8, 64, "mxfp4", 32))),
    "paroquant": (PAROQUANT, ".", lambda r: _written(*write_paroquant(r, 16, 96, 32, 3))),
}
