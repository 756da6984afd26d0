"""Converting checkpoints of every form, sharded or not; what goes wrong leaves nothing behind."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "quant"))
from checkpoint_writers import (
    Written,
    write_awq_gemm,
    write_awq_gemv,
    write_bitnet,
    write_bitsandbytes,
    write_float8,
    write_gguf_blocks,
    write_gptq,
    write_int8,
    write_mxfp4,
    write_pack_quantized,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "checkpoints"))
from test_safetensors import gguf_of

from tilewright.checkpoints import SafetensorsFile, open_checkpoint, save_safetensors
from tilewright.cli import main
from tilewright.conversion import convert_checkpoint, quantization_scheme
from tilewright.errors import (
    CannotQuantize,
    InvalidCheckpoint,
    InvalidTensor,
    MissingTensor,
    TilewrightWarning,
    UnknownFormat,
)
from tilewright.quant import quantize
from tilewright.quant.files import read_weight, weight_tensors

N, K = 24, 128

FORMS: dict[str, tuple[dict[str, Any], str, Callable[[np.random.Generator], Written]]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32}, ".", lambda r: write_gptq(r, N, K, 4, 32, 1, False)),
    "gptq act-order": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "checkpoint_format": "gptq_v2"}, ".",
        lambda r: write_gptq(r, N, K, 4, 32, 2, True),
    ),
    "gptq 3 bits": ({"quant_method": "gptq", "bits": 3, "group_size": -1}, ".", lambda r: write_gptq(r, N, K, 3, K, 1, False)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, ".", lambda r: write_awq_gemm(r, N, K, 32)),
    "awq gemv": (
        {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "GEMV"}, ".", lambda r: write_awq_gemv(r, N, K, 64)
    ),
    "bitsandbytes": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True}, ".weight", lambda r: write_bitsandbytes(r, N, K, 64, True)
    ),
    "pack-quantized": (
        {"quant_method": "compressed-tensors", "format": "pack-quantized",
         "config_groups": {"group_0": {"weights": {"num_bits": 4, "strategy": "group", "group_size": 32}}}}, ".",
        lambda r: write_pack_quantized(r, N, K, 4, 32, True, False),
    ),
    "int8": ({"quant_method": "compressed-tensors", "format": "int-quantized"}, ".", lambda r: write_int8(r, N, K, 1)),
    "fp8": ({"quant_method": "compressed-tensors", "format": "float-quantized"}, ".", lambda r: write_float8(r, N, K, (1, K))),
    "fp8 blocks": (
        {"quant_method": "fp8", "weight_block_size": [16, 32]}, ".",
        lambda r: renamed(write_float8(r, N, K, (16, 32)), "weight_scale", "weight_scale_inv"),
    ),
    "bitnet": ({"quant_method": "bitnet", "linear_class": "bitlinear"}, ".", lambda r: write_bitnet(r, N, K, True)),
    "autobitnet": ({"quant_method": "bitnet", "linear_class": "autobitlinear"}, ".", lambda r: write_bitnet(r, N, K, False)),
    "mxfp4": ({"quant_method": "mxfp4"}, "", lambda r: write_mxfp4(r, N, K)),
}  # fmt: skip


def renamed(written: Written, old: str, new: str) -> Written:
    return Written({new if name == old else name: t for name, t in written.tensors.items()}, written.weight)


def checkpoint_of(directory: Path, form: str, shards: int = 1) -> dict[str, np.ndarray]:
    """A checkpoint of four layers, a norm and a bias, its tensors dealt out to shards one by one; the layers' weights."""
    settings, dot, write = FORMS[form]
    rng = np.random.default_rng(len(form))
    tensors: dict[str, np.ndarray] = {"model.norm.weight": rng.standard_normal(K).astype(np.float32)}
    weights = {}
    for layer in range(4):
        name = f"model.layers.{layer}.proj"
        written = write(rng)
        weights[name] = written.weight
        tensors |= {name + dot + ending: tensor for ending, tensor in written.tensors.items()}
        tensors[f"{name}.bias"] = rng.standard_normal(N).astype(np.float16)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "tiny", "quantization_config": settings}))
    (directory / "tokenizer.json").write_text("{}")
    names = sorted(tensors)
    where = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors" if shards > 1 else "model.safetensors"
        save_safetensors(directory / file, {name: tensors[name] for name in names[shard::shards]})
        where.update(dict.fromkeys(names[shard::shards], file))
    if shards > 1:
        (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return weights


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shards", [1, 3])
def test_every_form_becomes_ours(tmp_path: Path, form: str, shards: int) -> None:
    weights = checkpoint_of(tmp_path / "from", form, shards)
    done = convert_checkpoint(tmp_path / "from", tmp_path / "to")
    made, source = open_checkpoint(tmp_path / "to"), open_checkpoint(tmp_path / "from")
    assert (
        done.weights == 4 and done.kept == 5 and len(made.shards) == len(list((tmp_path / "to").glob("*.safetensors")))
    )
    for name, expected in weights.items():
        np.testing.assert_allclose(read_weight(made, name).dequantize(), expected, rtol=1e-15, atol=1e-15)
        assert (made[f"{name}.bias"] == source[f"{name}.bias"]).all()
    assert (made["model.norm.weight"] == source["model.norm.weight"]).all()
    assert not any(ending in name for name in made for ending in ("qzeros", "packed", "absmax", "_blocks", "scale_inv"))
    settings = made.config["quantization_config"]
    # transformers gives random weights for a quant_method that it does not know, and an error where there is none
    assert (
        settings["quantized_by"] == "tilewright"
        and "quant_method" not in settings
        and made.config["model_type"] == "tiny"
    )
    assert (tmp_path / "to" / "tokenizer.json").is_file()
    assert done.bytes_after == sum(made[name].nbytes for name in made)


def test_ours_stays_ours(tmp_path: Path) -> None:
    weights = checkpoint_of(tmp_path / "from", "gptq act-order")
    convert_checkpoint(tmp_path / "from", tmp_path / "once")
    convert_checkpoint(tmp_path / "once", tmp_path / "twice")
    once, twice = open_checkpoint(tmp_path / "once"), open_checkpoint(tmp_path / "twice")
    assert set(once) == set(twice) and all((once[name] == twice[name]).all() for name in once)
    assert len(weights) == 4


def test_experts_of_mxfp4_become_weights_of_their_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    experts = [write_mxfp4(rng, 8, 64) for _ in range(3)]
    stacked = {f"experts.up{e}": np.stack([w.tensors[e] for w in experts]) for e in ("_blocks", "_scales")}
    save_safetensors(tmp_path / "model.safetensors", stacked)
    assert convert_checkpoint(tmp_path / "model.safetensors", tmp_path / "to.safetensors").weights == 3
    made = SafetensorsFile(tmp_path / "to.safetensors")
    for e, written in enumerate(experts):
        assert (read_weight(made, f"experts.up.{e}").dequantize() == written.weight).all()


@pytest.mark.parametrize(("type_name", "number"), [("Q4_0", 2), ("Q8_0", 8)])
def test_gguf(tmp_path: Path, type_name: str, number: int) -> None:
    written = write_gguf_blocks(np.random.default_rng(0), 6, 64, type_name)
    norm = np.arange(5, dtype=np.float32)
    gguf_of(
        tmp_path / "m.gguf",
        {
            "blk.0.attn_q.weight": (number, [6, 64], written.tensors[""].tobytes()),
            "blk.0.norm.weight": (0, [5], norm.tobytes()),
        },
    )
    assert main(["convert", str(tmp_path / "m.gguf")]) == 0
    made = open_checkpoint(tmp_path / "m-tilewright")
    np.testing.assert_allclose(read_weight(made, "blk.0.attn_q").dequantize(), written.weight, rtol=1e-15)
    assert (made["blk.0.norm.weight"] == norm).all()
    assert made.config["gguf"]["general.architecture"] == "llama"


def dense_checkpoint(directory: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    names = [
        "model.embed_tokens",
        "model.layers.0.q_proj",
        "model.layers.0.mlp.gate_proj",
        "model.layers.0.mlp.gate",
        "lm_head",
    ]
    tensors = {f"{name}.weight": rng.standard_normal((N, K)).astype(np.float16) for name in names}
    tensors["model.layers.0.input_layernorm.weight"] = rng.standard_normal(K).astype(np.float16)
    directory.mkdir()
    save_safetensors(directory / "model.safetensors", tensors)
    return tensors


def test_dense_weights_by_a_scheme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = dense_checkpoint(tmp_path / "from")
    assert main(["convert", str(tmp_path / "from"), "--scheme", "w4a16-g32-asym"]) == 0
    assert ": 2 weights, 4 other tensors, 31 kB became" in capsys.readouterr().out
    made = open_checkpoint(tmp_path / "from-tilewright")
    for layer in ("model.layers.0.q_proj", "model.layers.0.mlp.gate_proj"):
        expected = quantize(tensors[f"{layer}.weight"], "uint4", group=32, zeros="group", scale_dtype="float16")
        assert (read_weight(made, layer).dequantize() == expected.dequantize()).all()
    for kept in ("model.embed_tokens.weight", "lm_head.weight", "model.layers.0.mlp.gate.weight"):
        assert (made[kept] == tensors[kept]).all()
    assert made.config["quantization_config"]["scheme"] == "w4a16-g32-asym"
    assert main(["convert", str(tmp_path / "from"), "--scheme", "int8", "--skip", "q_proj", "--overwrite"]) == 0
    assert "model.layers.0.q_proj.weight" in open_checkpoint(tmp_path / "from-tilewright")
    assert "lm_head.qweight" in open_checkpoint(tmp_path / "from-tilewright")


def test_a_weight_without_codes_is_named(tmp_path: Path) -> None:
    save_safetensors(tmp_path / "a.safetensors", {"up.weight": np.full((2, 4), np.inf, np.float32)})
    with pytest.raises(CannotQuantize) as raised:
        convert_checkpoint(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "w8a16")
    assert (
        raised.value.message == "up.weight: up.weight is inf at [0, 0]"
        or raised.value.message == "up.weight is inf at [0, 0]"
    )
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_nothing_to_convert_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dense_checkpoint(tmp_path / "from")
    assert main(["convert", str(tmp_path / "from")]) == 1
    shown = capsys.readouterr().err
    assert f"{tmp_path / 'from'} has no weight to convert" in shown
    assert "its weights are dense: give a --scheme, w4a16 for example" in shown


@pytest.mark.parametrize("source", ["", "/"])
def test_what_has_no_name_is_no_checkpoint(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", source]) == 1
    assert capsys.readouterr().err.startswith(f"error: '{source}' names no checkpoint\n")


@pytest.mark.parametrize("source", ["Llama-3.1-8B", "../Llama-3.1-8B/"])
def test_the_result_is_beside_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    dense_checkpoint(tmp_path / "Llama-3.1-8B")
    monkeypatch.chdir(tmp_path if source == "Llama-3.1-8B" else tmp_path / "Llama-3.1-8B")
    assert main(["convert", source, "--scheme", "w8a16"]) == 0
    assert sorted(os.listdir(tmp_path)) == ["Llama-3.1-8B", "Llama-3.1-8B-tilewright"]


@pytest.mark.parametrize("source", [".", "./", "..", "../"])
def test_nothing_is_written_outside_of_this_folder_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    dense_checkpoint(tmp_path / "Llama-3.1-8B")
    (tmp_path / "Llama-3.1-8B" / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "Llama-3.1-8B" / ("inside" if ".." in source else ""))
    assert main(["convert", source, "--scheme", "w8a16"]) == 1
    said = capsys.readouterr().err
    assert f"error: {source!r} says where the checkpoint is and not what it is called" in said
    assert "help: -o PATH says where, " in said and "Llama-3.1-8B-tilewright for example" in said
    assert os.listdir(tmp_path) == ["Llama-3.1-8B"]
    assert main(["convert", source, "--scheme", "w8a16", "-o", str(tmp_path / "asked")]) == 0
    assert sorted(os.listdir(tmp_path)) == ["Llama-3.1-8B", "asked"]


def test_a_single_file_is_named_where_nothing_is_to_convert(tmp_path: Path) -> None:
    save_safetensors(tmp_path / "a.safetensors", {"up.weight": np.ones((2, 4), np.float32)})
    with pytest.raises(CannotQuantize, match=r"/a\.safetensors has no weight to convert"):
        convert_checkpoint(tmp_path / "a.safetensors", tmp_path / "b.safetensors")


def test_what_exists_is_not_replaced_unasked(tmp_path: Path) -> None:
    checkpoint_of(tmp_path / "from", "int8")
    convert_checkpoint(tmp_path / "from", tmp_path / "to")
    (tmp_path / "to" / "precious").write_text("x")
    with pytest.raises(InvalidCheckpoint, match="to exists"):
        convert_checkpoint(tmp_path / "from", tmp_path / "to")
    assert (tmp_path / "to" / "precious").is_file()
    convert_checkpoint(tmp_path / "from", tmp_path / "to", overwrite=True)
    assert not (tmp_path / "to" / "precious").exists() and sorted(os.listdir(tmp_path)) == ["from", "to"]


def test_only_checkpoints_are_replaced(tmp_path: Path) -> None:
    source = tmp_path / "models" / "from"
    checkpoint_of(source, "int8")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "precious").write_text("x")
    (tmp_path / "notes").write_text("x")
    (tmp_path / "link").symlink_to(source)
    (tmp_path / "models" / "other.safetensors").write_text("x")
    for destination, message in (
        ("home", "is not replaced: it holds precious and no checkpoint"),
        ("notes", "is a file"),
        ("models", f"cannot be replaced: {source} is in it"),
        ("models/from", "would replace what it is made of"),
        ("models/../link", "would replace what it is made of"),
    ):
        with pytest.raises(InvalidCheckpoint) as raised:
            convert_checkpoint(source, tmp_path / destination, overwrite=True)
        assert raised.value.message == f"{tmp_path / destination} {message}"
    assert (tmp_path / "home" / "precious").is_file() and (source / "model.safetensors").is_file()
    file = source / "model.safetensors"
    with pytest.raises(InvalidCheckpoint, match="would replace what it is made of"):
        convert_checkpoint(file, file, overwrite=True)
    (tmp_path / "empty").mkdir()
    convert_checkpoint(source, tmp_path / "empty", overwrite=True)
    assert (tmp_path / "empty" / "model.safetensors").is_file()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_broken_conversion_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, overwrite: bool
) -> None:
    checkpoint_of(tmp_path / "from", "gptq", shards=3)
    if overwrite:
        (tmp_path / "to").mkdir()
        (tmp_path / "to" / "old.safetensors").write_text("x")
    written, fsync = [], os.fsync

    def fails_the_second_time(file: int) -> None:
        written.append(file)
        if len(written) == 2:
            raise error
        fsync(file)

    monkeypatch.setattr(os, "fsync", fails_the_second_time)
    with pytest.raises(InvalidCheckpoint if isinstance(error, OSError) else KeyboardInterrupt):
        convert_checkpoint(tmp_path / "from", tmp_path / "to", overwrite=overwrite)
    assert len(written) == 2
    assert sorted(os.listdir(tmp_path)) == (["from", "to"] if overwrite else ["from"])
    assert not overwrite or os.listdir(tmp_path / "to") == ["old.safetensors"]


def test_mistakes_in_a_checkpoint_name_the_tensor(tmp_path: Path) -> None:
    checkpoint_of(tmp_path / "from", "gptq")
    file = tmp_path / "from" / "model.safetensors"
    tensors = dict(SafetensorsFile(file))
    del tensors["model.layers.2.proj.scales"]
    save_safetensors(file, tensors)
    with pytest.raises(MissingTensor) as raised:
        convert_checkpoint(tmp_path / "from", tmp_path / "to")
    assert raised.value.message == "model.layers.2.proj.scales is missing: a GPTQ weight needs it"
    (tmp_path / "from" / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "quip"}}))
    with pytest.raises(InvalidTensor, match="the checkpoint is quantised by 'quip'"):
        convert_checkpoint(tmp_path / "from", tmp_path / "to")
    assert os.listdir(tmp_path) == ["from"]


def test_a_weight_survives_its_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number, (to, options) in enumerate(
        [
            ("uint3", {"group": 16, "zeros": "group"}),
            ("nvfp4", {}),
            ("e3m2", {"group": 8}),
            ("ternary", {"group": None}),
        ]
    ):
        weight = quantize(rng.standard_normal((5, 48)), to, **options)
        save_safetensors(tmp_path / f"{number}.safetensors", weight_tensors(weight, "w"))
        made = read_weight(SafetensorsFile(tmp_path / f"{number}.safetensors"), "w")
        assert (made.dequantize() == weight.dequantize()).all() and made.block == weight.block
        older = weight_tensors(weight, "w")
        older["w._extra_state"] = older.pop("w.weight")
        assert (read_weight(older, "w").dequantize() == weight.dequantize()).all()
    with pytest.raises(MissingTensor, match=r"v\.qweight is missing: a quantised weight has one"):
        read_weight({}, "v")
    tensors = weight_tensors(weight, "w")
    with pytest.raises(InvalidTensor, match=r"w\.qweight is uint8 \[5, 3\], where uint8 \[5, 12\] is due"):
        read_weight({**tensors, "w.qweight": np.zeros((5, 3), np.uint8)}, "w")
    with pytest.raises(InvalidTensor, match=r"w\.weight holds no metadata that can be read"):
        read_weight({**tensors, "w.weight": np.zeros(3, np.uint8)}, "w")


@pytest.mark.parametrize(
    ("name", "format", "group", "zeros", "activations"),
    [
        ("w4a16", "uint4", 128, None, None), ("w4a16-g64-asym", "uint4", 64, "group", None), ("w8a8", "int8", None, None, "int8"),
        ("w8a8-fp8", "e4m3", None, None, "float8_e4m3fn"), ("w4a8", "int4", 128, None, "int8"), ("mxfp4", "mxfp4", None, None, None),
        ("nf4-g64", "nf4", 64, None, None), ("w2a8-channel", "int2", None, None, "int8"), ("w1a16", "int1", 128, None, None),
        ("w4a8-fp8", "int4", 128, None, "float8_e4m3fn"), ("int4-sym", "int4", 128, None, None),
    ],
)  # fmt: skip
def test_schemes(name: str, format: str, group: int | None, zeros: str | None, activations: str | None) -> None:
    scheme = quantization_scheme(name)
    assert (scheme.format, scheme.group, scheme.zeros, scheme.activations) == (format, group, zeros, activations)
    weight = np.random.default_rng(0).standard_normal((4, 256))
    assert np.abs(scheme.quantize(weight).dequantize() - weight).max() < 4.0


@pytest.mark.parametrize("name", ["w4a17", "uint9", "w4a16-quick", "mxfp4-g16", "mxfp4-asym"])
def test_schemes_that_are_none(name: str) -> None:
    with pytest.raises(UnknownFormat):
        quantization_scheme(name)


@pytest.mark.parametrize("name", ["w4a16-g16", "w4a16-g16-asym", "mxfp4", "w8a8", "nvfp4", "bitnet"])
def test_slabs_of_rows_are_as_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = np.random.default_rng(0).standard_normal((11, 64))
    scheme = quantization_scheme(name)
    whole = scheme.quantize(weight)
    monkeypatch.setattr(sys.modules["tilewright.quant.quantize"], "AT_ONCE", 192)
    slabs = scheme.quantize(weight)
    assert (slabs.codes == whole.codes).all() and (slabs.dequantize() == whole.dequantize()).all()


def test_links_that_lead_out_of_the_checkpoint_are_not_copied(tmp_path: Path) -> None:
    checkpoint_of(tmp_path / "from", "int8")
    (tmp_path / "secret").write_text("of this machine")
    (tmp_path / "from" / "notes.txt").write_text("its own")
    for name, to in (
        ("tokenizer.json", tmp_path / "secret"),
        ("merges.txt", Path("../secret")),
        ("LICENSE", Path("notes.txt")),
        ("gone", Path("nowhere")),
    ):
        (tmp_path / "from" / name).unlink(missing_ok=True)
        (tmp_path / "from" / name).symlink_to(to)
    (tmp_path / "from" / "folder").symlink_to(tmp_path)
    with pytest.warns(TilewrightWarning, match="outside of the checkpoint: it is not copied") as caught:
        convert_checkpoint(tmp_path / "from", tmp_path / "to")
    assert len(caught) == 2
    made = sorted(path.name for path in (tmp_path / "to").iterdir())
    assert made == ["LICENSE", "config.json", "model.safetensors", "notes.txt"]
    assert not any(
        path.is_symlink() or "machine" in path.read_text(errors="replace") for path in (tmp_path / "to").iterdir()
    )


def test_snapshots_of_the_hubs_cache_are_links_into_it(tmp_path: Path) -> None:
    checkpoint_of(tmp_path / "files", "int8")
    blobs, snapshot = tmp_path / "models--x" / "blobs", tmp_path / "models--x" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted((tmp_path / "files").iterdir())):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    convert_checkpoint(snapshot, tmp_path / "to")
    assert (tmp_path / "to" / "tokenizer.json").read_text() == "{}" and not (
        tmp_path / "to" / "tokenizer.json"
    ).is_symlink()


@pytest.mark.parametrize(
    ("form", "said", "message"),
    [
        ("bitnet", {"linear_class": "bogus"}, "linear_class: 'bogus', where one of bitlinear, autobitlinear is due"),
        ("gptq", {"checkpoint_format": "bogus"}, "checkpoint_format: 'bogus', where one of gptq, gptq_v2, "),
        ("gptq", {"bits": "four"}, "bits: 'four', where a number of bits from 1 to 16 is due"),
        ("gptq", {"bits": True}, "bits: True, where"),
        ("awq", {"bits": [4]}, r"bits: \[4\], where"),
        ("awq", {"group_size": 0}, "group_size: 0, where a number of columns, or -1 for all is due"),
        ("awq", {"group_size": 2**70}, "group_size: 1180591620717411303424, where"),
        ("fp8 blocks", {"weight_block_size": [0, 2**70]}, r"weight_block_size: \[0, 1180591620717411303424\], where rows and columns"),
        ("fp8 blocks", {"weight_block_size": "ab"}, "weight_block_size: 'ab', where"),
        ("pack-quantized", {"config_groups": [1]}, r"config_groups: \[1\], where a table is due"),
        ("pack-quantized", {"config_groups": {"a": 1}}, "config_groups: a: 1, where a table is due"),
        ("pack-quantized", {"config_groups": {"a": {"weights": "x"}}}, "config_groups: a: weights: 'x', where a table is due"),
        ("pack-quantized", {"config_groups": {"a": {"weights": {"num_bits": "x" * 999}}}}, "num_bits: 'xxx.* ..., where"),
        ("pack-quantized", {"transform_config": {"config_groups": {"a": {"apply": 1}}}}, "apply: 1, where a list is due"),
        ("gptq", {"quant_method": ["gptq"]}, r"quant_method: \['gptq'\], where a text is due"),
    ],
)  # fmt: skip
def test_what_a_configuration_cannot_say_is_told(tmp_path: Path, form: str, said: dict[str, Any], message: str) -> None:
    checkpoint_of(tmp_path / "from", form)
    config = json.loads((tmp_path / "from" / "config.json").read_text())
    config["quantization_config"] |= said
    (tmp_path / "from" / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidTensor, match=message) as caught:
        convert_checkpoint(tmp_path / "from", tmp_path / "to")
    assert caught.value.message.startswith(f"{tmp_path / 'from'}: the configuration says ")
    assert os.listdir(tmp_path) == ["from"]


def test_what_another_method_says_is_its_own_business(tmp_path: Path) -> None:
    checkpoint_of(tmp_path / "from", "gptq")
    (tmp_path / "from" / "config.json").write_text(
        json.dumps({"quantization_config": {"quant_method": "vptq", "bits": 4.25}})
    )
    with pytest.raises(InvalidTensor, match="quantised by 'vptq'"):
        convert_checkpoint(tmp_path / "from", tmp_path / "to")


def test_a_scheme_says_nothing_of_codes_that_are_there(tmp_path: Path) -> None:
    """int4 codes became weights of a "w8a8" checkpoint, whose activations were rounded from then on; and those of a
    checkpoint by such a scheme, once converted again, were not any more."""
    rng = np.random.default_rng(0)
    dense = {f"layers.{i}.weight": rng.standard_normal((N, K)).astype(np.float32) for i in range(2)}
    save_safetensors(tmp_path / "dense.safetensors", dense)

    def converted(source: str, made: str, *rest: Any, **named: Any) -> Any:
        convert_checkpoint(tmp_path / f"{source}.safetensors", tmp_path / f"{made}.safetensors", *rest, **named)
        return json.loads(SafetensorsFile(tmp_path / f"{made}.safetensors").metadata["quantization_config"])

    assert converted("dense", "codes", "int4-g32")["scheme"] == "int4-g32"
    message = r"codes.safetensors has no dense weight for the scheme {}: it is of codes\n  help: without a scheme"
    for scheme in ("w8a8", "int8-g32"):
        with pytest.raises(CannotQuantize, match=message.format(scheme)):
            converted("codes", "again", scheme)
    converted("dense", "half", "int4-g32", skip="1")
    with pytest.raises(CannotQuantize, match="multiplied as what they come as, the scheme w8a8 as int8"):
        converted("half", "again", "w8a8")
    assert converted("half", "both", "w8a16")["activations"] is None
    for made in (converted("dense", "rounded", "w8a8"), converted("rounded", "copied")):
        assert (made["scheme"], made["activations"]) == ("w8a8", "int8")


@pytest.mark.parametrize("scheme", ["w8a8", "w8a8-fp8", "w8a16"])
def test_a_single_file_says_what_a_directory_says(scheme: str, tmp_path: Path) -> None:
    """Activations were rounded for the layers of a directory, and not for those of a file, whose head nobody read."""
    torch = pytest.importorskip("torch")
    from tilewright.conversion import load_quantized

    dense = {"0.weight": np.random.default_rng(0).standard_normal((N, K)).astype(np.float32)}
    save_safetensors(tmp_path / "dense.safetensors", dense)
    x, results = torch.randn(3, K, generator=torch.Generator().manual_seed(0)), []
    for made in ("file.safetensors", "directory"):
        convert_checkpoint(tmp_path / "dense.safetensors", tmp_path / made, scheme)
        model = load_quantized(torch.nn.Sequential(torch.nn.Linear(K, N, bias=False)), tmp_path / made)
        assert model[0].quantize == quantization_scheme(scheme).activations
        results.append(model(x))
    assert torch.equal(*results)
    file = tmp_path / "file.safetensors"
    for text, error in (("{", InvalidCheckpoint), ('{"quantized_by": "tilewright", "version": 7}', InvalidTensor)):
        save_safetensors(file, dense, {"quantization_config": text})
        with pytest.raises(error):
            convert_checkpoint(file, tmp_path / "again.safetensors", "w8a8")
