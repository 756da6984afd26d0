"""Safetensors and GGUF files: what is written by the formats' descriptions is read, and damage is told."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tilewright.checkpoints import GGUFFile, SafetensorsFile, open_checkpoint, save_safetensors
from tilewright.checkpoints.safetensors import DTYPES
from tilewright.errors import InvalidCheckpoint


def file_of(
    path: Path, entries: dict[str, tuple[str, list[int], bytes]], metadata: dict[str, str] | None = None
) -> Path:
    """A safetensors file by hand: eight bytes of length, JSON, bytes."""
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    body = b""
    for name, (kind, shape, data) in entries.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def test_a_file_written_by_hand_is_read(tmp_path: Path) -> None:
    half = struct.pack("<3e", 1.0, -2.5, 0.0)
    bfloat = b"\x80\x3f\x00\xc0"  # 1.0 and -2.0
    path = file_of(
        tmp_path / "a.safetensors",
        {
            "one": ("U8", [1], b"\x07"),
            "half": ("F16", [3], half),
            "wide": ("BF16", [2, 1], bfloat),
            "none": ("F32", [0, 4], b""),
        },
        {"format": "pt"},
    )
    file = SafetensorsFile(path)
    assert list(file) == ["one", "half", "wide", "none"] and file.metadata == {"format": "pt"}
    assert file["half"].tolist() == [1.0, -2.5, 0.0] and file["one"].tolist() == [7]
    assert file["wide"].dtype.name == "bfloat16" and file["wide"].astype(float).tolist() == [[1.0], [-2.0]]
    assert file["none"].shape == (0, 4) and "gone" not in file
    assert not file["half"].flags.writeable


def test_every_type_survives(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {
        name: rng.integers(0, 2 if name == "BOOL" else 100, (3, 5)).astype(kind) for name, kind in DTYPES.items()
    }
    tensors["scalar"] = np.float32(3.0)
    tensors["turned"] = rng.standard_normal((4, 6)).astype(np.float32).T
    size = save_safetensors(tmp_path / "all.safetensors", tensors, {"by": "us"})
    file = SafetensorsFile(tmp_path / "all.safetensors")
    assert size == sum(np.asarray(t).nbytes for t in tensors.values()) and file.metadata == {"by": "us"}
    for name, array in tensors.items():
        assert file[name].dtype == np.asarray(array).dtype and file[name].shape == np.asarray(array).shape
        assert file[name].tobytes() == np.asarray(array).tobytes()
    assert os.listdir(tmp_path) == ["all.safetensors"]


def test_the_library_of_that_name_agrees(tmp_path: Path) -> None:
    theirs = pytest.importorskip("safetensors.numpy")
    tensors = {"a": np.arange(6, dtype=np.int32).reshape(2, 3), "b": np.ones(3, np.float16)}
    save_safetensors(tmp_path / "ours.safetensors", tensors)
    theirs.save_file(tensors, tmp_path / "theirs.safetensors")
    for name, array in theirs.load_file(tmp_path / "ours.safetensors").items():
        assert (array == tensors[name]).all() and array.dtype == tensors[name].dtype
    assert all((SafetensorsFile(tmp_path / "theirs.safetensors")[name] == tensors[name]).all() for name in tensors)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cannot be read: it is empty"),
        (b"abc", "is cut off, or no safetensors file"),
        (struct.pack("<Q", 10**12) + b"{}", "is cut off, or no safetensors file"),
        (struct.pack("<Q", 4) + b"nope", "cannot be read: its header is not JSON"),
        (struct.pack("<Q", 2) + b"[]", "cannot be read: its header is not a table in JSON"),
        (
            struct.pack("<Q", 8) + b'{"a":{}}',
            ": the header's entry of a lacks a type, shape (of at most 64 dimensions) or place",
        ),
        (
            struct.pack("<Q", 90000) + b'{"a":' * 18000,
            "cannot be read: its header consists of little but brackets and commas",
        ),
        (
            struct.pack("<Q", 500) + b'{"a":' * 100,
            "cannot be read: its header has more than 64 lists within one another",
        ),
        (struct.pack("<Q", 23) + b'{"__metadata__":["a"]} ', ": the header's __metadata__ is not a table of texts"),
    ],
)
def test_files_that_are_none_are_told(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(InvalidCheckpoint) as raised:
        SafetensorsFile(path)
    assert raised.value.message == f"{path}{' ' if message[0] != ':' else ''}{message}"


def test_entries_that_lie_are_told(tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.safetensors", {"a": ("F32", [3], b"\0" * 8)})
    with pytest.raises(InvalidCheckpoint, match=r"a has 8 bytes, which its type F32 and shape \[3\] do not make"):
        SafetensorsFile(path)
    path = file_of(tmp_path / "b.safetensors", {"a": ("F32", [2], b"\0" * 8)})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InvalidCheckpoint, match=r"b.safetensors is cut off: a ends at byte \d+ of \d+"):
        SafetensorsFile(path)
    path = file_of(tmp_path / "c.safetensors", {"a": ("F4_WEIRD", [2], b"\0" * 8)})
    with pytest.raises(InvalidCheckpoint, match="a has elements of type F4_WEIRD"):
        SafetensorsFile(path)


@pytest.mark.parametrize("field", ["dtype", "shape", "data_offsets"])
@pytest.mark.parametrize("value", [None, True, 1.5, "x", {}, [[1]], [-3, -4], [3.0, 4], [True, 12], ["3", 4], [0, -1]])
def test_values_of_other_kinds_in_a_header_are_told(tmp_path: Path, field: str, value: object) -> None:
    entry = {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48], field: value}
    text = json.dumps({"a": entry}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(48))
    with pytest.raises(InvalidCheckpoint):
        SafetensorsFile(tmp_path / "a.safetensors")


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_safetensors(tmp_path / "w.safetensors", {"a": np.zeros(3)})
    before = (tmp_path / "w.safetensors").read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidCheckpoint) as raised:
        save_safetensors(tmp_path / "w.safetensors", {"a": np.ones(5)})
    assert raised.value.message == f"{tmp_path / 'w.safetensors'} cannot be written: No space left on device"
    assert os.listdir(tmp_path) == ["w.safetensors"] and (tmp_path / "w.safetensors").read_bytes() == before


def test_shards_are_one_mapping(tmp_path: Path) -> None:
    save_safetensors(tmp_path / "one.safetensors", {"a": np.zeros(2), "b": np.ones(2)})
    save_safetensors(tmp_path / "two.safetensors", {"c": np.full(2, 2.0)})
    index = {"weight_map": {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = open_checkpoint(tmp_path)
    assert found.shards == {"one.safetensors": ["a", "b"], "two.safetensors": ["c"]}
    assert found["c"].tolist() == [2, 2] and len(found) == 3 and found.shard_of("b") == "one.safetensors"
    os.remove(tmp_path / "two.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"lacks the shard two\.safetensors that its index names"):
        open_checkpoint(tmp_path)
    save_safetensors(tmp_path / "two.safetensors", {"d": np.zeros(2)})
    with pytest.raises(InvalidCheckpoint, match=r"two\.safetensors of .* lacks c, which the index says is in it"):
        open_checkpoint(tmp_path)


def test_the_file_of_transformers_is_the_checkpoint_whatever_is_beside_it(tmp_path: Path) -> None:
    """Mistral's ``consolidated.safetensors``, adapters, a variant."""
    for number, name in enumerate(("model", "consolidated", "adapter_model", "model.fp16")):
        save_safetensors(tmp_path / f"{name}.safetensors", {"a": np.full(3, number, np.float32)})
    found = open_checkpoint(tmp_path)
    assert [*found.shards] == ["model.safetensors"] and not found["a"].any()
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InvalidCheckpoint, match=r"a is both in adapter_model.safetensors and in consolidated"):
        open_checkpoint(tmp_path)


def test_no_checkpoint_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match="there is no checkpoint"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(InvalidCheckpoint, match="holds no safetensors file"):
        open_checkpoint(tmp_path)


def gguf_string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_of(path: Path, tensors: dict[str, tuple[int, list[int], bytes]], alignment: int = 32) -> Path:
    """A GGUF file by hand: head, metadata of several kinds, infos, aligned data."""
    keys = gguf_string("general.architecture") + struct.pack("<I", 8) + gguf_string("llama")
    keys += gguf_string("general.alignment") + struct.pack("<II", 4, alignment)
    keys += gguf_string("sizes") + struct.pack("<IIQ3i", 9, 5, 3, 1, -2, 3)
    keys += gguf_string("words") + struct.pack("<IIQ", 9, 8, 2) + gguf_string("a") + gguf_string("bc")
    infos, body = b"", b""
    for name, (kind, shape, data) in tensors.items():
        body += b"\xee" * (-len(body) % alignment)
        infos += gguf_string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        infos += struct.pack("<IQ", kind, len(body))
        body += data
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 4) + keys + infos
    path.write_bytes(head + b"\xee" * (-len(head) % alignment) + body)
    return path


@pytest.mark.parametrize("alignment", [32, 64])
def test_gguf(tmp_path: Path, alignment: int) -> None:
    block = np.random.default_rng(0).integers(0, 256, (2, 34)).astype(np.uint8)
    path = gguf_of(
        tmp_path / "m.gguf",
        {
            "norm": (0, [3], struct.pack("<3f", 1, 2, 3)),
            "w": (8, [2, 32], block.tobytes()),
            "h": (1, [2, 1], struct.pack("<2e", 4, 5)),
        },
        alignment,
    )
    file = GGUFFile(path)
    assert file.metadata["general.architecture"] == "llama" and file.metadata["sizes"] == [1, -2, 3]
    assert file.metadata["words"] == ["a", "bc"]
    assert file["norm"].data.tolist() == [1, 2, 3] and file["h"].data.tolist() == [[4], [5]]
    assert file["w"].type == "Q8_0" and file["w"].shape == (2, 32)
    assert (file["w"].data == block.reshape(-1)).all()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InvalidCheckpoint, match=r"m\.gguf is cut off: h ends at byte \d+ of \d+"):
        GGUFFile(path)["h"]
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InvalidCheckpoint, match=r"m\.gguf is cut off at byte 40"):
        GGUFFile(path)
    path.write_bytes(b"GGML")
    with pytest.raises(InvalidCheckpoint, match=r"m\.gguf is no GGUF file"):
        GGUFFile(path)


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_damage_anywhere_is_an_error_of_the_file_or_none(tmp_path: Path, form: str) -> None:
    path, rng = tmp_path / f"m.{form}", random.Random(0)
    if form == "gguf":
        gguf_of(path, {"a": (0, [4, 2], bytes(32)), "w": (8, [2, 32], bytes(68))})
    else:
        file_of(path, {"a": ("F32", [4, 2], bytes(32)), "h": ("BF16", [3], bytes(6))}, {"format": "pt"})
    whole = path.read_bytes()
    for _ in range(1500):
        damaged = bytearray(whole[: rng.choice([len(whole), rng.randrange(len(whole))])])
        for place in rng.choices(range(len(damaged)), k=2) if damaged else ():
            damaged[place] = rng.choice([0, 1, 127, 255, rng.randrange(256)])
        path.write_bytes(damaged)
        with contextlib.suppress(InvalidCheckpoint):
            file: Mapping[str, object] = GGUFFile(path) if form == "gguf" else SafetensorsFile(path)
            assert all(file[name] is not None for name in file)


def test_a_gguf_file_without_alignment_is_told(tmp_path: Path) -> None:
    path = gguf_of(tmp_path / "m.gguf", {})
    path.write_bytes(path.read_bytes().replace(struct.pack("<II", 4, 32), struct.pack("<II", 4, 0)))
    with pytest.raises(InvalidCheckpoint, match=r"m\.gguf says that its tensors begin at multiples of 0"):
        GGUFFile(path)
