"""One thing changed in a sound checkpoint of every form: it is read as what it then stands for, or refused; a sample here, all of it in ``make proof``."""

from __future__ import annotations

import collections
import json
import struct
import sys
from pathlib import Path
from typing import Any

import misread_schemas as schemas
import misread_writer as writer
import numpy as np
import pytest
import test_closed_world as closed
from checkpoint_writers import Written, write_gguf_blocks, write_gptq

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "checkpoints"))
from test_safetensors import gguf_of

from tilewright.checkpoints import GGUFFile, open_checkpoint, save_safetensors
from tilewright.checkpoints.directory import arrays_of
from tilewright.conversion import convert_checkpoint
from tilewright.errors import InvalidCheckpoint, InvalidTensor
from tilewright.quant.files import read_weight


def judged(variations: list[writer.Variation]) -> collections.Counter[str]:
    with np.errstate(all="ignore"):
        found = [(one, writer.verdict(one)) for one in variations]
    wrong = [f"{one.form}: {one.what}: {said}" for one, said in found if said not in ("right", "refused")]
    assert not wrong, "\n".join(wrong[:20])
    return collections.Counter(said for _, said in found)


def test_a_sample() -> None:
    counts = judged(writer.sample(1, 400))
    assert counts["right"] > 40 and counts["refused"] > 200


@pytest.mark.proof
@pytest.mark.parametrize("form", closed.NAMES)
def test_every_companion(form: str) -> None:
    assert judged([writer.base(form)]) == {"right": 1}
    judged([*writer.companions(form), *writer.notes(form), *writer.wider(form)])


@pytest.mark.parametrize("name", schemas.SCHEMAS)
def test_every_word(name: str) -> None:
    """Of each producer's whole configuration; a word that no version has is named in every table."""
    counts = judged([*writer.words(name), *writer.values(name)])
    assert counts["right"] and counts["refused"]


SAID = {"quant_method": "gptq", "bits": 4, "group_size": 32}


@pytest.mark.parametrize(
    ("beside", "version"), [({**SAID, "checkpoint_format": "gptq_v2"}, 2), (SAID, 1), ({"bits": 4}, 1)]
)
def test_what_the_quantisers_own_file_says_more(tmp_path: Path, beside: dict[str, Any], version: int) -> None:
    """transformers' configuration may lack what GPTQModel's file beside it says: which version zero points are of."""
    written = write_gptq(np.random.default_rng(0), 24, 128, 4, 32, version, False)
    found = converted(tmp_path, written, SAID, {"quantize_config.json": beside})
    np.testing.assert_allclose(found, written.weight, rtol=1e-14)


@pytest.mark.parametrize(
    ("word", "value"), [("checkpoint_format", "gptq_v2"), ("bits", 8), ("group_size", 64), ("desc_act", True)]
)
def test_files_that_contradict_one_another_are_refused(tmp_path: Path, word: str, value: Any) -> None:
    said = {**SAID, "checkpoint_format": "gptq", "desc_act": False}
    with pytest.raises(
        InvalidTensor, match=f"the configuration says {word}: .*, and the quantiser's own file beside it"
    ):
        written = write_gptq(np.random.default_rng(0), 24, 128, 4, 32, 1, False)
        converted(tmp_path, written, said, {"quantize_config.json": {**said, word: value}})


def converted(place: Path, written: Written, said: dict[str, Any], files: dict[str, Any]) -> np.ndarray:
    save_safetensors(place / "model.safetensors", {f"up.{name}": tensor for name, tensor in written.tensors.items()})
    for name, value in {"config.json": {"quantization_config": said}, **files}.items():
        (place / name).write_text(json.dumps(value))
    convert_checkpoint(place, place / "ours")
    return np.asarray(read_weight(open_checkpoint(place / "ours"), "up").to_dense())


def test_blocks_of_another_version_are_refused(tmp_path: Path) -> None:
    """ggml's blocks had other layouts before version 2, and may have later."""
    data = write_gguf_blocks(np.random.default_rng(0), 6, 64, "Q4_0").tensors[""].tobytes()
    for version in (2, 3):
        place = tmp_path / f"{version}.gguf"
        gguf_of(place, {"blk.0.attn_q.weight": (2, [6, 64], data)})
        key, old = b"general.quantization_version", place.read_bytes()
        count = struct.unpack("<Q", old[16:24])[0]
        said = struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, version)
        head, rest = old[:16] + struct.pack("<Q", count + 1) + said, old[24:]
        end = old.index(b"blk.0.attn_q.weight") + len("blk.0.attn_q.weight") + 4 + 16 + 4 + 8
        body = old[-(-end // 32) * 32 :]
        text = head + rest[: end - 24]
        place.write_bytes(text + bytes(-len(text) % 32) + body)
        if version == 2:
            assert GGUFFile(place)["blk.0.attn_q.weight"].data.tobytes() == data
            continue
        with pytest.raises(InvalidCheckpoint, match=r"says general\.quantization_version: 3"):
            GGUFFile(place)


@pytest.mark.parametrize("value", [[0.5, 2.0], ["a"], float("inf"), 1 << 70, [[1]]])
def test_metadata_of_any_kind_have_a_name(value: Any) -> None:
    """What lies in a file of torch beside a weight is no number, text or list of sizes: it is there all the same, and nobody reads it."""
    assert [name for name, _ in arrays_of("", {"up": {"meta": {"strange": value, "nothing": None}}})] == [
        "up.meta.strange"
    ]
