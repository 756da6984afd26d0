"""Checkpoints in the less common forms become ours; what is of no form is refused in a sentence."""

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
sys.path.insert(0, str(Path(__file__).parents[1] / "checkpoints"))
from checkpoint_writers import (
    Written,
    write_awq_gemm,
    write_awq_gemv,
    write_bitsandbytes,
    write_float8,
    write_gguf_blocks,
    write_gptq,
    write_int8,
    write_mxfp4,
    write_pack_quantized,
)
from more_writers import (
    write_awq_fast,
    write_bnb_fp4,
    write_bnb_int8,
    write_eetq,
    write_hqq,
    write_marlin,
    write_marlin_24,
    write_mxfp6,
    write_sparse,
    write_torchao_int4,
    write_torchao_intx,
)
from test_safetensors import gguf_of

from tilewright.checkpoints import open_checkpoint, save_safetensors
from tilewright.conversion import convert_checkpoint
from tilewright.errors import InvalidCheckpoint, InvalidTensor, MissingTensor
from tilewright.quant.files import read_weight

Settings = dict[str, Any]


def converted(
    directory: Path, tensors: dict[str, np.ndarray], settings: Settings, metadata: dict[str, str] | None = None
) -> Any:
    directory.mkdir()
    save_safetensors(directory / "model.safetensors", tensors, metadata or {})
    (directory / "config.json").write_text(json.dumps({"quantization_config": settings} if settings else {}))
    convert_checkpoint(directory, directory / "ours")
    return open_checkpoint(directory / "ours")


def gptq_without_order(rng: np.random.Generator, bits: int) -> Written:
    written = write_gptq(rng, 8, 32, bits, 16, 1, False)
    return Written({name: tensor for name, tensor in written.tensors.items() if name != "g_idx"}, written.weight)


def plain_float8(rng: np.random.Generator) -> Written:
    values = rng.standard_normal((8, 32)).astype(ml_dtypes.float8_e4m3fn)
    return Written({"weight": values}, values.astype(float))


def with_scale_weight(rng: np.random.Generator) -> Written:
    values = rng.standard_normal((8, 32)).astype(ml_dtypes.float8_e4m3fn)
    return Written({"weight": values, "scale_weight": np.array(0.25, np.float32)}, values.astype(float) / 4)


def mxfp8(rng: np.random.Generator) -> Written:
    written = write_float8(rng, 8, 64, (1, 32))
    powers = rng.integers(120, 130, (8, 2)).astype(np.uint8)
    exact = written.tensors["weight"].astype(float) * np.repeat(2.0 ** (powers.astype(int) - 127), 32, 1)
    return Written({"weight": written.tensors["weight"], "weight_scale": powers}, exact)


AWQ = {"quant_method": "awq", "bits": 4}


def named(written: Written, **names: str) -> Written:
    """The same tensors by other names."""
    return Written({names.get(one, one): tensor for one, tensor in written.tensors.items()}, written.weight)


QUARK = {
    "algo_config": None, "exclude": ["lm_head"], "layer_type_quant_config": {}, "quant_method": "quark", "quant_mode": "eager_mode",
    "export": {"kv_cache_group": [], "min_kv_scale": 0.0, "pack_method": "reorder", "weight_format": "real_quantized"},
    "softmax_quant_spec": None, "version": "0.10",
}  # fmt: skip


def quark(dtype: str, scale_format: str = "float", **layers: Any) -> dict[str, Any]:
    said = {"dtype": dtype, "group_size": 32, "qscheme": "per_group", "scale_format": scale_format}
    return {**QUARK, "global_quant_config": {"weight": said, "input_tensors": None}, "layer_quant_config": layers}


def quark_int4(rng: np.random.Generator, **order: Any) -> Written:
    """AWQ's words of numbers in two's complement: a code less 8 is the number."""
    made = write_awq_gemm(rng, 16, 64, 32, **order)
    words = {name: made.tensors[name] ^ np.int32(-0x77777778) for name in ("qweight", "qzeros")}
    return Written(
        {"weight": words["qweight"], "weight_zero_point": words["qzeros"], "weight_scale": made.tensors["scales"]},
        made.weight,
    )


def marlin_24(bits: int) -> Settings:
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "channel"}
    sparse = {"format": "dense", "sparsity_structure": "2:4"}
    groups = {"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}, "sparsity_config": sparse}
    return {"quant_method": "compressed-tensors", "format": "marlin-24", **groups}


def metal(rng: np.random.Generator) -> Written:
    """Words of a row as one string of bits, the first code lowest."""
    codes = rng.integers(0, 16, (4, 64))
    scale, added = (rng.uniform(0.1, 1, (4, 2)).astype(np.float16) for _ in range(2))
    words = [[sum(int(row[8 * word + i]) << 4 * i for i in range(8)) for word in range(8)] for row in codes]
    weight = codes * np.repeat(scale.astype(float), 32, 1) + np.repeat(added.astype(float), 32, 1)
    return Written({"weight": np.array(words, np.uint32), "scales": scale, "qbiases": added}, weight)


def int4(rng: np.random.Generator, groups: int) -> Written:
    """compressed-tensors' int4-quantized: two's complement, the even column in the low half of an int8."""
    values, scales = rng.integers(-8, 8, (6, 64)), rng.uniform(0.01, 0.1, (6, groups)).astype(ml_dtypes.bfloat16)
    packed = np.array([[row[k] & 15 | (row[k + 1] & 15) << 4 for k in range(0, 64, 2)] for row in values], np.uint8)
    weight = values * np.repeat(scales.astype(float), 64 // groups, 1)
    return Written({"weight_packed": packed.view(np.int8), "weight_scale": scales}, weight)


def flat(written: Written) -> Written:
    blocks = written.tensors["_blocks"]
    return Written({**written.tensors, "_blocks": blocks.reshape(len(blocks), -1)}, written.weight)


def experts_of_deepseek_v4(rng: np.random.Generator) -> Written:
    """Two numbers of fp4 in an int8, the even column in the low half, and e8m0 for 32 columns."""
    made = write_mxfp4(rng, 4, 64)
    codes = made.tensors["_blocks"].reshape(4, 32).view(np.int8)
    return Written({"weight": codes, "scale": made.tensors["_scales"].view(ml_dtypes.float8_e8m0fnu)}, made.weight)


FORMS: dict[str, tuple[Settings, str, Callable[[np.random.Generator], Written]]] = {
    "awq gemv_fast": (AWQ | {"group_size": 64, "version": "gemv_fast"}, ".", lambda r: write_awq_fast(r, 8, 128, 64)),
    "awq marlin": (AWQ | {"group_size": 16, "version": "marlin"}, ".", lambda r: write_marlin(r, 64, 32, 16, "qweight", "scales")),
    "awq marlin, one group": (
        AWQ | {"group_size": -1, "version": "marlin"}, ".", lambda r: write_marlin(r, 64, 32, 32, "qweight", "scales")
    ),
    "gptq marlin": (
        {"quant_method": "gptq", "bits": 4, "group_size": 16, "checkpoint_format": "marlin"}, ".",
        lambda r: write_marlin(r, 64, 32, 16, "B", "s"),
    ),
    "auto-round gptq": (
        {"quant_method": "auto-round", "bits": 4, "group_size": 16, "packing_format": "auto_round:auto_gptq"}, ".",
        lambda r: gptq_without_order(r, 4),
    ),
    "auto-round awq": (
        {"quant_method": "intel/auto-round", "bits": 4, "group_size": 16, "packing_format": "auto_round:auto_awq"}, ".",
        lambda r: write_awq_gemm(r, 8, 32, 16),
    ),
    "gptq of other bits than it says": (
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"+:x": {"bits": 8, "group_size": 16}}}, ".",
        lambda r: gptq_without_order(r, 8),
    ),
    "bitsandbytes fp4": ({"quant_method": "bitsandbytes"}, ".weight", lambda r: write_bnb_fp4(r, 8, 32, 64)),
    "bitsandbytes int8": ({"load_in_8bit": True}, ".", lambda r: write_bnb_int8(r, 8, 32)),
    **{f"hqq {b} bits": ({"quant_method": "hqq"}, ".", lambda r, b=b: write_hqq(r, 8, 96, b, 32)) for b in (1, 2, 3, 4, 8)},
    "hqq, groups over the ends of rows": ({"quant_method": "hqq"}, ".", lambda r: write_hqq(r, 8, 48, 4, 32)),
    **{
        f"quark mxfp6 of {kind}": (quark(f"fp6_{kind}", "e8m0"), ".", lambda r, m=m: named(write_mxfp6(r, 4, 64, m), weight_packed="weight"))
        for kind, m in (("e2m3", 3), ("e3m2", 2))
    },
    "mxfp6": (
        {"quant_method": "compressed-tensors", "format": "mxfp6-pack-quantized"}, ".", lambda r: write_mxfp6(r, 4, 64, 3),
    ),
    **{
        f"compressed-tensors int4, {what}": ({"quant_method": "compressed-tensors", "format": "int4-quantized"}, ".", lambda r, g=g: int4(r, g))
        for what, g in (("groups", 2), ("channels", 1))
    },
    "mxfp8": ({"quant_method": "compressed-tensors", "format": "mxfp8-quantized"}, ".", mxfp8),
    "fbgemm fp8": ({"quant_method": "fbgemm_fp8"}, ".", lambda r: write_float8(r, 8, 32, (1, 32))),
    "mxfp8 of transformers": (
        {"quant_method": "mxfp8", "weight_block_size": [1, 32], "scale_fmt": "ue8m0"}, ".", lambda r: named(mxfp8(r), weight_scale="weight_scale_inv"),
    ),
    "fp8 by scale": (
        {"quant_method": "fp8", "weight_block_size": [16, 16]}, ".", lambda r: named(write_float8(r, 24, 40, (16, 16)), weight_scale="scale"),
    ),
    "fp8 by qscale_weight": (
        {"quant_method": "fp8", "weight_block_size": None}, ".", lambda r: named(write_float8(r, 8, 32, (8, 32)), weight_scale="qscale_weight"),
    ),
    "fp8 in blocks of its own": (
        {"quant_method": "fp8", "weight_block_size": [128, 128]}, ".", lambda r: named(write_float8(r, 8, 64, (1, 32)), weight_scale="scale"),
    ),
    "fp4 of deepseek v4": ({"quant_method": "fp8", "weight_block_size": [128, 128], "expert_dtype": "fp4"}, ".", experts_of_deepseek_v4),
    "quark fp8": (quark("fp8_e4m3"), ".", lambda r: write_float8(r, 8, 32, (8, 32))),
    "quark fp8 of channels": (quark("fp8_e4m3"), ".", lambda r: write_float8(r, 8, 32, (1, 32))),
    "quark int8": (quark("int8"), ".", lambda r: write_int8(r, 8, 32, 1)),
    "quark mxfp4": (
        quark("fp4", "e8m0"), ".",
        lambda r: named(flat(write_mxfp4(r, 4, 64)), _blocks="weight", _scales="weight_scale"),
    ),
    "quark int4": (quark("int4"), ".", quark_int4),
    "quark int4 in order": (
        quark("int4") | {"export": {"pack_method": "order"}}, ".", lambda r: quark_int4(r, order=(0, 1, 2, 3, 4, 5, 6, 7)),
    ),
    **{
        f"marlin-24, {bits} bits in groups of {group}": (
            marlin_24(bits), ".", lambda r, b=bits, g=group: write_marlin_24(r, 64, 96, g, b, ("weight_packed", "scale_packed", "meta")),
        )
        for bits in (4, 8) for group in (32, 96)
    },
    "gptq marlin_24": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "marlin_24"}, ".",
        lambda r: write_marlin_24(r, 128, 96, 32, 4, ("B_24", "s", "B_meta")),
    ),
    "eetq": ({"quant_method": "eetq", "weights": "int8", "modules_to_not_convert": ["lm_head"]}, ".", lambda r: write_eetq(r, 8, 192)),
    "int4 of w4afp8": (
        {"quant_method": "w4afp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}, ".",
        lambda r: named(int4(r, 2), weight_packed="weight", weight_scale="weight_scale_inv"),
    ),
    "fp8 of w4afp8": ({"quant_method": "w4afp8"}, ".", lambda r: named(write_float8(r, 144, 40, (128, 128)), weight_scale="weight_scale_inv")),
    "quark uint4": (
        quark("uint4"), ".",
        lambda r: named(write_awq_gemm(r, 16, 64, 32), qweight="weight", qzeros="weight_zero_point", scales="weight_scale"),
    ),
    "metal": ({"quant_method": "metal", "bits": 4, "group_size": 32, "modules_to_not_convert": ["lm_head"]}, ".", metal),
    "fp8 without scales": ({}, ".", plain_float8),
    "fp8 with scale_weight": ({}, ".", with_scale_weight),
}  # fmt: skip


def test_floats_of_6_bits_of_two_kinds_are_refused(tmp_path: Path) -> None:
    """The bytes of e2m3 and of e3m2 look alike."""
    tensors = named(write_mxfp6(np.random.default_rng(0), 4, 64, 3), weight_packed="weight").tensors
    for said in (quark("fp4"), quark("fp6_e2m3", **{"*.down": {"weight": {"dtype": "fp6_e3m2"}}})):
        with pytest.raises(
            InvalidTensor, match=r"up\.weight is of fp6_e2m3 or fp6_e3m2, and the configuration speaks of"
        ):
            converted(tmp_path / str(len(str(said))), {f"up.{end}": one for end, one in tensors.items()}, said)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_ours(tmp_path: Path, form: str) -> None:
    settings, dot, write = FORMS[form]
    written = write(np.random.default_rng(len(form)))
    tensors = {"up" + dot + ending: tensor for ending, tensor in written.tensors.items()}
    made = converted(tmp_path / "from", tensors, settings)
    np.testing.assert_allclose(read_weight(made, "up").to_dense(), written.weight, rtol=1e-14, atol=1e-15)
    left = set(made) - {f"up.{name}" for name in ("qweight", "scales", "zeros", "weight")}
    assert not left


@pytest.mark.parametrize("kind", ["sparse-24-bitmask", "sparse-bitmask"])
def test_matrices_that_are_stored_sparse(tmp_path: Path, kind: str) -> None:
    """Those of codes become ours, those of floats are as they were or are rounded; what does not fit is named."""
    rng = np.random.default_rng(0)
    codes = write_sparse(rng, write_float8(rng, 8, 44, (1, 44)), kind == "sparse-24-bitmask")
    floats = rng.standard_normal((6, 32)).astype(np.float16)
    plain = write_sparse(rng, Written({"weight": floats}, floats.astype(float)), kind == "sparse-24-bitmask")
    tensors = {f"up.{end}": one for end, one in codes.tensors.items()}
    before = "down.weight." if kind == "sparse-bitmask" else "down."  # as the first versions called them
    tensors |= {before + end: one for end, one in plain.tensors.items()}
    said = {"quant_method": "compressed-tensors", "format": "float-quantized", "sparsity_config": {"format": kind}}
    made = converted(tmp_path / "from", tensors, said)
    np.testing.assert_allclose(read_weight(made, "up").to_dense(), codes.weight, rtol=1e-14)
    assert (made["down.weight"] == plain.weight).all() and not [name for name in made if "bitmask" in name]
    convert_checkpoint(tmp_path / "from", tmp_path / "all", "int8-channel")
    found = read_weight(open_checkpoint(tmp_path / "all"), "down").to_dense()
    assert not found[plain.weight == 0].any() and abs(found - plain.weight).max() < 0.02
    for number, (wrong, message) in enumerate(
        (
            ({"up.compressed": tensors["up.compressed"].reshape(-1)[1:]}, r"up\.compressed is .*, where"),
            ({"up.bitmask": tensors["up.bitmask"][:, 1:]}, r"up\.bitmask is uint8 \[8, 5\], where"),
            ({"up.weight": floats}, r"up\.weight is there, and beside it a sparse one"),
            ({"up.shape": np.array([8, 52])}, r"up\.bitmask is uint8 \[8, 6\], where"),
        )
    ):
        with pytest.raises(InvalidTensor, match=message):
            converted(tmp_path / str(number), tensors | wrong, said)
    del tensors["up.compressed"]
    with pytest.raises(MissingTensor, match=r"up\.compressed is missing"):
        converted(tmp_path / "less", tensors, said)
    with pytest.raises(InvalidTensor, match="sparsity_config: format: 'sparse-8', where one of dense, sparse-bitmask"):
        converted(tmp_path / "other", tensors, said | {"sparsity_config": {"format": "sparse-8"}})


@pytest.mark.parametrize("name", ["eetq", "marlin-24, 4 bits in groups of 32"])
def test_codes_in_no_known_order_are_refused(tmp_path: Path, name: str) -> None:
    """EETQ's order of another GPU; a place of Marlin's that two numbers have, two groups, of which writers differ."""
    settings, _, write = FORMS[name]
    tensors = {f"up.{end}": one for end, one in write(np.random.default_rng(0)).tensors.items()}
    changed, message = {"up.weight": tensors.get("up.weight")}, "no order that is known: row .* has no code of 127"
    if name == "eetq":
        changed = {"up.weight": np.roll(tensors["up.weight"].reshape(-1), 64).reshape(192, 8)}
    else:
        changed, message = {"up.meta": tensors["up.meta"] * 0}, r"up\.meta puts two numbers in one place"
        with pytest.raises(InvalidTensor, match="two groups, whose order is one thing to the writer"):
            converted(tmp_path / "two", tensors | {"up.scale_packed": tensors["up.scale_packed"][:2]}, settings)
    with pytest.raises(InvalidTensor, match=message):
        converted(tmp_path / "from", tensors | changed, settings)


@pytest.mark.parametrize("kind", ["int4", "int3", "int8"])
def test_torchao(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(3)
    written, about = (
        write_torchao_int4(rng, 8, 64, 32) if kind == "int4" else write_torchao_intx(rng, 8, 64, 32, int(kind[-1]))
    )
    tensors = {f"up.{ending}": tensor for ending, tensor in written.tensors.items()}
    made = converted(tmp_path / "from", tensors, {"quant_method": "torchao"}, {"up.weight": about})
    np.testing.assert_allclose(read_weight(made, "up").to_dense(), written.weight, rtol=1e-14, atol=1e-15)
    other = json.dumps({"_type": "Int4TilePackedTo4dTensor", "_data": {"block_size": [1, 32]}})
    with pytest.raises(
        InvalidTensor, match=r"up is a torchao Int4TilePackedTo4dTensor\n  help: known are Int4Tensor, "
    ):
        converted(tmp_path / "other", tensors, {"quant_method": "torchao"}, {"up.weight": other})
    with pytest.raises(InvalidTensor, match="up: the file does not say which torchao tensor it is"):
        converted(tmp_path / "silent", tensors, {"quant_method": "torchao"})


def test_experts_of_gpt_oss_have_their_biases(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    experts, bias = [write_mxfp4(rng, 8, 64) for _ in range(3)], rng.standard_normal((3, 8)).astype(ml_dtypes.bfloat16)
    tensors = {f"mlp.experts.up{e}": np.stack([w.tensors[e] for w in experts]) for e in ("_blocks", "_scales")}
    made = converted(tmp_path / "from", {**tensors, "mlp.experts.up_bias": bias}, {"quant_method": "mxfp4"})
    assert "mlp.experts.up_bias" not in made
    for e, written in enumerate(experts):
        assert (read_weight(made, f"mlp.experts.up.{e}").dequantize() == written.weight).all()
        assert (made[f"mlp.experts.up.{e}.bias"] == bias[e]).all()
    with pytest.raises(InvalidTensor, match=r"up_bias is \[3, 7\], where one element a row is due: \[3, 8\]"):
        converted(tmp_path / "short", {**tensors, "mlp.experts.up_bias": bias[:, :7]}, {"quant_method": "mxfp4"})


def test_experts_of_gguf_become_weights_of_their_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    experts = [write_gguf_blocks(rng, 4, 64, "Q8_0") for _ in range(3)]
    data = b"".join(written.tensors[""].tobytes() for written in experts)
    gguf_of(tmp_path / "m.gguf", {"blk.0.ffn_up_exps.weight": (8, [3, 4, 64], data)})
    convert_checkpoint(tmp_path / "m.gguf", tmp_path / "ours")
    made = open_checkpoint(tmp_path / "ours")
    for e, written in enumerate(experts):
        assert (read_weight(made, f"blk.0.ffn_up_exps.{e}").dequantize() == written.weight).all()


def test_the_activations_that_a_checkpoint_declares_are_noted(tmp_path: Path) -> None:
    group = {"targets": ["Linear"], "weights": {"num_bits": 8}, "input_activations": {"num_bits": 8, "type": "int"}}
    settings = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    tensors = {f"up.{ending}": t for ending, t in write_int8(np.random.default_rng(0), 8, 32, 1).tensors.items()}
    made = converted(tmp_path / "from", tensors, settings)
    assert made.config["quantization_config"]["declared_activations"] == "int8"


REFUSED: dict[str, tuple[dict[str, np.ndarray], Settings, str]] = {
    "codes alone": (
        {"up.weight": np.zeros((8, 16), np.uint8), "down.weight": np.zeros((8, 8), np.float32)}, {"quant_method": "modelopt"},
        r"up\.weight is uint8 \[8, 16\]: codes, but what belongs to them is not there\n  help: the configuration says modelopt; forms",
    ),
    "experts of fp8 in one tensor": (
        {"experts.gate_up_proj": np.zeros((2, 8, 16), ml_dtypes.float8_e4m3fn)}, {"quant_method": "fp8"},
        r"experts\.gate_up_proj is float8_e4m3fn \[2, 8, 16\]: codes",
    ),
    "another library's": (
        {"up.weight": np.zeros((8, 8), np.float32)}, {"quant_method": "aqlm"},
        r"the checkpoint is quantised by 'aqlm'\n  help: what can be read: auto-round, awq, bitblas, bitnet, bitsandbytes, ",
    ),
    "rotations that run with the model": (
        {"up.weight": np.zeros((8, 8), np.float32)},
        {"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"R4": {"apply": [
            {"targets": ["Linear"], "location": "weight_input"}, {"targets": ["Linear"], "location": "input"}]}}}},
        r"the checkpoint rotates activations while it runs \(transform_config R4: input\), which its layers here do not\n  help: checkpoints whose",
    ),
    "another packing of AutoRound": (
        {"up.weight": np.zeros((8, 8), np.float32)}, {"quant_method": "auto-round", "packing_format": "auto_round:llm_compressor"},
        "by AutoRound in the packing 'auto_round:llm_compressor'\n  help: auto_round, auto_round:auto_gptq and auto_round:auto_awq can be read",
    ),
    "HQQ down the columns": (
        {f"up.{n}": t for n, t in (write_hqq(np.random.default_rng(0), 8, 64, 4, 32).tensors | {"axis": np.array(0, np.int32)}).items()},
        {"quant_method": "hqq"}, r"up has groups down its columns \(HQQ's axis=0\)\n  help: quantise with axis=1",
    ),
    "an int8 weight in a GPU's order": (
        {f"up.{n}": t for n, t in (write_bnb_int8(np.random.default_rng(0), 8, 32).tensors | {"weight_format": np.array(2, np.uint8)}).items()},
        {"quant_method": "bitsandbytes"}, r"up\.weight is in the order of a GPU's kernel",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_of_no_form_is_refused(tmp_path: Path, case: str) -> None:
    tensors, settings, words = REFUSED[case]
    with pytest.raises(InvalidTensor, match=words):
        converted(tmp_path / "from", tensors, settings)
    assert not (tmp_path / "from" / "ours").exists()


RNG = np.random.default_rng(0)
CODES_OF_OTHERS: dict[str, np.ndarray] = {
    "q_weight": RNG.integers(-(2**31), 2**31, (16, 64)).astype(np.int32),  # EXL2
    "trellis": np.zeros((4, 4, 32), np.int16),  # EXL3
    "codes": RNG.integers(-128, 128, (64, 8, 1)).astype(np.int8),  # AQLM
    "Qidxs": RNG.integers(-(2**63), 2**63 - 1, (64, 8)),  # QuIP#
    "experts.gate_up_proj_packed": RNG.integers(-(2**31), 2**31, (2, 8, 64)).astype(np.int32),
    "experts.w13_weight": RNG.integers(0, 256, (2, 8, 64)).astype(np.uint8),
    "planes": np.zeros((8, 8), np.uint16),
}


@pytest.mark.parametrize("name", CODES_OF_OTHERS)
def test_codes_of_any_name_are_no_tensor_to_be_copied(tmp_path: Path, name: str) -> None:
    """A configuration need not say what a file is."""
    dense, indices = RNG.standard_normal((64, 64)).astype(np.float16), np.arange(64)[None]
    beside: dict[str, np.ndarray] = {
        "down.weight": dense, "positions": indices, "places": indices.astype(np.int32), "mask": np.tri(8, dtype=np.uint8)[None, None],
    }  # fmt: skip
    put(tmp_path / "plain", {}, beside)
    assert convert_checkpoint(tmp_path / "plain", tmp_path / "ours", "w8a16").weights == 1
    put(tmp_path / "from", {}, {**beside, f"up.{name}": CODES_OF_OTHERS[name]})
    with pytest.raises(InvalidTensor, match=rf"^up\.{name} is .*: codes, but what belongs to them is not there"):
        convert_checkpoint(tmp_path / "from", tmp_path / "other", "w8a16")


def put(directory: Path, settings: dict[str, Any], tensors: dict[str, np.ndarray], beside: str = "config.json") -> None:
    directory.mkdir()
    said = {"quantization_config": settings} if beside == "config.json" else settings
    (directory / beside).write_text(json.dumps(said))
    save_safetensors(directory / "model.safetensors", tensors)


PARTS = {
    "gptq": ({"quant_method": "gptq", "bits": 4}, ".", lambda r: write_gptq(r, 8, 64, 4, 32, 1, False), "qweight"),
    "pack-quantized": (
        {"quant_method": "compressed-tensors"}, ".", lambda r: write_pack_quantized(r, 8, 64, 4, 32, True, False), "weight_packed",
    ),
    "bitsandbytes": ({"quant_method": "bitsandbytes"}, ".weight", lambda r: write_bitsandbytes(r, 8, 64, 64, True), ""),
    "mxfp4": ({"quant_method": "mxfp4"}, "", lambda r: write_mxfp4(r, 8, 64), "_blocks"),
    "fp8": ({"quant_method": "fp8"}, ".", lambda r: write_float8(r, 8, 64, (1, 64)), "weight"),
    "hqq": ({"quant_method": "hqq"}, ".", lambda r: write_hqq(r, 8, 64, 4, 32), "W_q"),
}  # fmt: skip


@pytest.mark.parametrize("form", PARTS)
def test_scales_without_codes_are_no_layer_that_is_gone(tmp_path: Path, form: str) -> None:
    settings, dot, write, main = PARTS[form]
    tensors = {
        f"{layer}{dot}{ending}": tensor
        for layer in ("first", "second")
        for ending, tensor in write(np.random.default_rng(0)).tensors.items()
    }
    del tensors[f"second{dot}{main}"]
    put(tmp_path / "from", settings, tensors)
    with pytest.raises(MissingTensor, match=r"second.* is there, but no codes are"):
        convert_checkpoint(tmp_path / "from", tmp_path / "to")
    assert not (tmp_path / "to").exists()


SAID = {
    "g_idx": ({"quant_method": "gptq", "bits": 4, "desc_act": True}, lambda r: write_gptq(r, 8, 64, 4, 32, 1, True)),
    "weight_zero_point": (
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "symmetric": False}}}},
        lambda r: write_pack_quantized(r, 8, 64, 4, 32, True, False),
    ),
    "weight_g_idx": (
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "actorder": "group"}}}},
        lambda r: write_pack_quantized(r, 8, 64, 4, 32, False, True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("part", SAID)
def test_what_the_configuration_speaks_of_is_there(tmp_path: Path, part: str) -> None:
    settings, write = SAID[part]
    made = write(np.random.default_rng(0))
    put(tmp_path / "from", settings, {f"proj.{ending}": tensor for ending, tensor in made.tensors.items()})
    convert_checkpoint(tmp_path / "from", tmp_path / "whole")
    np.testing.assert_allclose(
        read_weight(open_checkpoint(tmp_path / "whole"), "proj").dequantize(), made.weight, rtol=1e-14
    )
    del made.tensors[part]
    put(tmp_path / "less", settings, {f"proj.{ending}": tensor for ending, tensor in made.tensors.items()})
    with pytest.raises(MissingTensor, match=rf"proj\.{part} is missing: the configuration says"):
        convert_checkpoint(tmp_path / "less", tmp_path / "to")


def test_old_checkpoints_of_awq_say_what_they_are_beside(tmp_path: Path) -> None:
    made = write_awq_gemv(np.random.default_rng(0), 16, 128, 64)
    settings = {"zero_point": True, "q_group_size": 64, "w_bit": 4, "version": "GEMV"}
    put(tmp_path / "from", settings, {f"proj.{ending}": t for ending, t in made.tensors.items()}, "quant_config.json")
    convert_checkpoint(tmp_path / "from", tmp_path / "to")
    np.testing.assert_allclose(
        read_weight(open_checkpoint(tmp_path / "to"), "proj").dequantize(), made.weight, rtol=1e-14
    )
    assert not (tmp_path / "to" / "quant_config.json").exists()


def test_pickles_are_named(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    for path in (tmp_path, tmp_path / "pytorch_model.bin"):
        with pytest.raises(InvalidCheckpoint, match="is a pickle, which may run code") as raised:
            open_checkpoint(path)
        assert "safe_serialization=True" in str(raised.value)


@pytest.mark.parametrize(("said", "message"), [
    (quark("fp4", "e5m3"), "global_quant_config: weight: scale_format: 'e5m3', where one of float, float32, e8m0 is due"),
    (quark("int4", **{"*.up": {"weight": [{"dtype": "fp8_e4m3"}, {"dtype": "int4"}]}}), r"layer_quant_config: \*\.up: weight: .*, where a table is due"),
    ({**quark("int4"), "algo_config": [{"name": "rotation", "online_r1_rotation": True}]}, "where ways to find codes that rotate no activations"),
    ({**quark("int4"), "export": {"pack_method": "turned"}}, "up.weight is words of Quark's in the order 'turned'"),
    (quark("int4", **{"*.down": {"weight": {"dtype": "uint4"}}}), "of int4 and uint4"),
])  # fmt: skip
def test_what_quark_writes_and_nobody_reads_is_refused(tmp_path: Path, said: dict[str, Any], message: str) -> None:
    written = quark_int4(np.random.default_rng(0))
    save_safetensors(tmp_path / "model.safetensors", {f"up.{end}": one for end, one in written.tensors.items()})
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": said}))
    with pytest.raises(InvalidTensor, match=message):
        convert_checkpoint(tmp_path, tmp_path / "ours")
