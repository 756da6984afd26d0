"""What files may claim: whatever is in one, it is refused in a sentence, at once, before anything is made of its numbers."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from busy import takes

sys.path.insert(0, str(Path(__file__).parent))

from test_safetensors import gguf_of

from tilewright.checkpoints import GGUFFile, SafetensorsFile, bounds, open_checkpoint, save_safetensors
from tilewright.errors import InvalidCheckpoint

MEGABYTE = 1 << 20


def header(text: bytes, body: int = 64) -> bytes:
    return struct.pack("<Q", len(text)) + text + bytes(body)


def shaped(numbers: bytes) -> bytes:
    return header(b'{"a":{"dtype":"F32","shape":[' + numbers + b'],"data_offsets":[0,8]}}')


def many(piece: bytes, total: int = 3 * MEGABYTE) -> bytes:
    return b",".join([piece] * (total // (len(piece) + 1)))


def entries(*places: tuple[str, int, int]) -> bytes:
    parts = [
        f'"{name}":{{"dtype":"U8","shape":[{end - begin}],"data_offsets":[{begin},{end}]}}'
        for name, begin, end in places
    ]
    return header(("{" + ",".join(parts) + "}").encode())


def gguf(tensors: int = 0, keys: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + rest


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def tensor(name: bytes, extents: list[int], kind: int = 24, place: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, kind, place)


BOMBS: dict[str, tuple[bytes, str]] = {
    "a shape of 100,000 numbers": (shaped(many(b"1000000000000000000", 2_000_000)), "shape (of at most 64 dimensions)"),
    "a shape of 65 numbers": (shaped(b",".join([b"1"] * 65)), "shape (of at most 64 dimensions)"),
    "a shape of 64 numbers": (shaped(b",".join([b"9223372036854775807"] * 64)), "a has 8 bytes, which its type F32"),
    "numbers of 4,000 digits": (shaped(b",".join([b"9" * 4000] * 2000)), "a number of more than 64 digits"),
    "a number beyond 64 bits": (shaped(b"9" * 20), "lacks a type, shape"),
    "a million ones": (shaped(many(b"1", 2 * MEGABYTE)), "little but brackets and commas"),
    "empty lists": (header(b'{"a":[' + many(b"[]") + b"]}"), "little but brackets"),
    "empty tables": (header(b'{"a":[' + many(b"{}") + b"]}"), "little but brackets"),
    "deep lists": (header(b"[" * MEGABYTE), "little but brackets"),
    "deep tables with long names": (header((b'{"' + b"x" * 60 + b'":') * 70), "more than 64 lists within one another"),
    "values without end": (header(b'{"a":[' + many(b'"abcdefg"', 17 * MEGABYTE) + b"]}"), "more than 1572864 values"),
    "quotes": (header(b'"' * MEGABYTE), "is not JSON"),
    "escapes": (header(b'{"a":"' + b'\\"' * MEGABYTE), "is not JSON"),
    "Infinity": (header(b'{"a":Infinity}'), "its header says Infinity"),
    "a name twice": (entries(("a", 0, 8), ("a", 8, 16)), "says a name twice"),
    "a field twice": (header(b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}'), "says a name twice"),
    "bytes of two tensors": (entries(("a", 0, 8), ("b", 7, 12)), "b and a share bytes"),
    "bytes in bytes": (entries(("a", 0, 20), ("b", 4, 8), ("c", 20, 30)), "b and a share bytes"),
    "text of two bytes a letter": (header('{"\\"":[' .encode("utf-16-le") + many("{}".encode("utf-16-le")) + b"]\0}\0"), "header is not JSON"),
    "text of four bytes a letter": (header('{}'.encode("utf-32-be")), "is not JSON"),
    "text behind a mark": (header(b"\xef\xbb\xbf{}"), "is not JSON"),
    "letters that are none": (header(b'{"a\xff":1}'), "is not JSON in UTF-8"),
    "a name that clears the screen": (header(b'{"\\u001b[2J":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'), r"name is no readable text: '\x1b[2J'"),
    "a name that turns the line round": (header('{"a\u202eb":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'.encode()), r"'a\u202eb'"),
    "GGUF with a name that clears the screen": (gguf(1, 0, tensor(b"\x1b[2J", [1])), r"'\x1b[2J'"),
    "GGUF of 400,000 dimensions": (gguf(1, 0, tensor(b"a", [1 << 63] * 400_000)), "a has 400000 dimensions; 64 are read at most"),
    "GGUF of many tensors": (gguf(1 << 60), "1152921504606846976 tensors"),
    "GGUF of many keys": (gguf(0, 1 << 60), "1152921504606846976 keys"),
    "GGUF with an endless text": (gguf(0, 1, struct.pack("<Q", 1 << 62) + b"abc"), "is cut off"),
    "GGUF with endless texts": (gguf(0, 1, text(b"k") + struct.pack("<IIQ", 9, 8, 1 << 20) + bytes(8 << 10)), "is cut off"),
    "GGUF with an endless array": (gguf(0, 1, text(b"k") + struct.pack("<IIQ", 9, 0, 1 << 60)), "arrays of 1152921504606846976 elements"),
    "GGUF with arrays of arrays": (gguf(0, 1, text(b"k") + struct.pack("<IIQ", 9, 9, 1 << 20) + bytes(12 << 20)), "67108864 elements and more"),
    "GGUF with deep arrays": (gguf(0, 1, text(b"k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 100_000), "9 deep"),
    "GGUF with an array of nothing known": (gguf(0, 1, text(b"k") + struct.pack("<IIQ", 9, 77, 0)), "unknown kind 77"),
    "GGUF with a key twice": (gguf(0, 2, (text(b"k") + struct.pack("<IB", 0, 1)) * 2), "says 'k' twice"),
    "GGUF with a tensor twice": (gguf(2, 0, tensor(b"a", [1]) * 2), "two tensors 'a'"),
    "GGUF with bytes of two tensors": (gguf(2, 0, tensor(b"a", [40]) + tensor(b"b", [32], place=32) + bytes(100)), "b and a share bytes"),
}  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
def test_claims_are_bounded(tmp_path: Path, bomb: str) -> None:
    content, message = BOMBS[bomb]
    path = tmp_path / ("a.gguf" if bomb.startswith("GGUF") else "a.safetensors")
    path.write_bytes(content)
    found: list[InvalidCheckpoint] = []

    def refused() -> None:
        with pytest.raises(InvalidCheckpoint) as caught:
            open_checkpoint(path)
        found.append(caught.value)

    assert takes(1.0, refused)
    assert str(path) in found[0].message and message in found[0].message and len(str(found[0])) < 3000


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_empty_shapes_that_are_too_large(tmp_path: Path, kind: str) -> None:
    """No bytes, and more elements along the other dimensions than arrays can have: that was NumPy's ValueError."""
    path, sizes = tmp_path / f"a.{kind}", [0, 1 << 62, 8]
    if kind == "gguf":
        path.write_bytes(gguf(1, 0, tensor(b"a", sizes) + bytes(64)))
    else:
        path.write_bytes(header(b'{"a":{"dtype":"F32","shape":%a,"data_offsets":[0,0]}}' % sizes))
    with pytest.raises(InvalidCheckpoint, match="a has the shape"):
        open_checkpoint(path)["a"]


def test_messages_give_terminals_no_orders(tmp_path: Path) -> None:
    save_safetensors(tmp_path / "m.safetensors", {"a": np.zeros(1, np.float32)})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "\x1b]0;x\x07\u202e"}}))
    with pytest.raises(InvalidCheckpoint) as caught:
        open_checkpoint(tmp_path)
    assert r"\x1b]0;x\x07\u202e" in str(caught.value) and "\x1b" not in str(caught.value)


MEASURE = """
import resource, sys
from tilewright.checkpoints import open_checkpoint
from tilewright.errors import TilewrightError
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    found = open_checkpoint(sys.argv[1])
    for name in found:
        found[name].sum()
except TilewrightError:
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.proof
@pytest.mark.parametrize("case", ["texts", "names", "numbers", "wide letters", "vocabulary", "tensors", "weights"])
def test_memory_is_bounded_by_the_file(tmp_path: Path, case: str) -> None:
    """At most twice the file and 20 times its header: the densest of what is let through."""
    path = tmp_path / ("a.gguf" if case == "vocabulary" else "a.safetensors")
    head, body = b"", 0
    if case == "vocabulary":
        words = text(b"ab") * (1 << 21)
        path.write_bytes(gguf(0, 1, text(b"k") + struct.pack("<IIQ", 9, 8, 1 << 21) + words))
        head = words
    else:
        body = 200 * MEGABYTE if case == "weights" else 0
        head = {
            "texts": lambda: b'{"a":[' + many(b'"ab"', 7 * MEGABYTE) + b"]}",
            "names": lambda: b"{" + b",".join(b'"%06x":1' % i for i in range(1_500_000)) + b"}",
            "numbers": lambda: b'{"a":[' + many(b"123456789", 15 * MEGABYTE) + b"]}",
            "wide letters": lambda: b'{"a":[' + many('"\U0001f600"'.encode(), 10 * MEGABYTE) + b"]}",
            "tensors": lambda: b"{" + b",".join(b'"%06x":{"dtype":"U8","shape":[],"data_offsets":[%d,%d]}' % (i, i, i + 1) for i in range(200_000)) + b"}",
            "weights": lambda: json.dumps({"a": {"dtype": "F32", "shape": [body // 4], "data_offsets": [0, body]}}).encode(),
        }[case]()  # fmt: skip
        path.write_bytes(header(head, body or 200_000))
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True)
    grown = int(done.stdout) * (1 if sys.platform == "darwin" else 1024)
    assert grown <= 2 * path.stat().st_size + 20 * len(head) + 8 * MEGABYTE


def test_configurations_are_bounded_too(tmp_path: Path) -> None:
    save_safetensors(tmp_path / "model.safetensors", {"a": np.zeros(3, np.float32)})
    for content, message in ((b"[" * 100_000, "it consists of"), (b"\xff\xfe\x00", "it is not JSON"), (b"[]", "it is not a table"),
                             (b'{"a": ' + b"1" * 5000 + b"}", "a number of more than 64 digits"), (b"", "it is empty")):  # fmt: skip
        (tmp_path / "config.json").write_bytes(content)
        with pytest.raises(InvalidCheckpoint, match=r"config\.json cannot be read") as caught:
            open_checkpoint(tmp_path)
        assert message in caught.value.message
    (tmp_path / "config.json").write_text(
        '{"a": Infinity, "b": 1, "b": 0.10000000000000000555}'
    )  # as some models have it
    assert open_checkpoint(tmp_path).config == {"a": float("inf"), "b": 0.1}


@pytest.mark.parametrize(
    "name", ["x" * 5000, "a/b", "..", ".", "", "a\0b", "\ud800", "/etc/passwd", "../model.safetensors"]
)
def test_shards_are_files_of_the_directory(tmp_path: Path, name: str) -> None:
    """Nor are files that are there, above it or below it."""
    place = tmp_path / "inner"
    (place / "a").mkdir(parents=True)
    for file in (place / "model.safetensors", tmp_path / "model.safetensors", place / "a" / "b"):
        save_safetensors(file, {"a": np.zeros(3, np.float32)})
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(InvalidCheckpoint, match="lacks the shard"):
        open_checkpoint(place)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
@pytest.mark.parametrize("name", ["a.safetensors", "a.gguf"])
def test_nobody_waits_for_a_pipe(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    for opened in (tmp_path, tmp_path / name):
        with pytest.raises(InvalidCheckpoint):
            open_checkpoint(opened)
    with pytest.raises(InvalidCheckpoint, match="it is not a file"):
        (GGUFFile if name == "a.gguf" else SafetensorsFile)(tmp_path / name)
    with pytest.raises(InvalidCheckpoint, match=r"it is not a file|Is a directory"):
        SafetensorsFile(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
@pytest.mark.parametrize(
    "name", ["config.json", "quantize_config.json", "hf_quant_config.json", "model.safetensors.index.json"]
)
@pytest.mark.parametrize("what", ["a pipe", "a link to nothing", "a directory"])
def test_what_says_how_weights_are_meant_is_read_or_refused(tmp_path: Path, name: str, what: str) -> None:
    """A configuration that is there by name, and cannot be read, is not taken for none."""
    save_safetensors(tmp_path / "model.safetensors", {"a": np.zeros(3, np.float32)})
    if what == "a pipe":
        os.mkfifo(tmp_path / name)
    elif what == "a directory":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).symlink_to("blobs-that-were-never-fetched")
    with pytest.raises(InvalidCheckpoint, match=name):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["a.safetensors", "a.gguf"])
def test_a_file_that_is_cut_meanwhile_is_told(tmp_path: Path, name: str) -> None:
    """Whoever asks for a tensor then gets an error; one that was handed out before is the system's."""
    path = tmp_path / name
    if name == "a.gguf":
        gguf_of(path, {"a": (24, [100_000], bytes(100_000))})
    else:
        save_safetensors(path, {"a": np.zeros(100_000, np.int8)})
    opened = open_checkpoint(path)
    assert opened["a"][-1] == 0
    os.truncate(path, 5000)
    with pytest.raises(InvalidCheckpoint, match=r"was cut while it was being read, from \d+ bytes to 5000"):
        opened["a"]


def test_the_limits_are_as_documented() -> None:
    said = (Path(__file__).parents[3] / "docs" / "reliability.md").read_text(encoding="utf-8")
    for limit in (
        bounds.LONGEST_HEADER >> 20,
        bounds.MOST_DIMENSIONS,
        bounds.LONGEST_NUMBER,
        bounds.DEEPEST,
        f"{bounds.MOST_VALUES:,}",
    ):
        assert str(limit) in said
