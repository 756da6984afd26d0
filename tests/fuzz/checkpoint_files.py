"""Mutated files of weights: whatever is in one, it is read or refused in a sentence that names it, at once and in little memory.

    python tests/fuzz/checkpoint_files.py 0 19999 --workers 2
    python tests/fuzz/checkpoint_files.py 4711                    what a seed is, and what happens to it

A seed takes one small checkpoint of any form that can be read, and damages it: bytes of a file, values of its JSON (header, configuration,
index, texts within tensors), or its tensors (types, shapes, numbers, which there are).  It is then opened, every tensor is read, and it is converted.
"""

from __future__ import annotations

import argparse
import collections
import copy
import functools
import json
import multiprocessing
import os
import random
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).resolve().parents[1]
for room in ("quant", "checkpoints", "conversion"):
    sys.path.insert(0, str(TESTS / "unit" / room))

from checkpoint_writers import write_gguf_blocks  # noqa: E402
from more_writers import write_torchao_int4  # noqa: E402
from test_convert import FORMS as FIRST_FORMS  # noqa: E402
from test_more_forms import FORMS as MORE_FORMS  # noqa: E402
from test_safetensors import gguf_of  # noqa: E402

from tilewright.checkpoints import GGUFFile, SafetensorsFile, open_checkpoint, save_safetensors  # noqa: E402
from tilewright.checkpoints.directory import INDEX  # noqa: E402
from tilewright.conversion import convert_checkpoint  # noqa: E402
from tilewright.errors import TilewrightError  # noqa: E402
from tilewright.matmul import PackedWeight  # noqa: E402
from tilewright.quant import quantize  # noqa: E402

Files = dict[str, bytes]

MOST_SECONDS = 1.0
"""Of processor time, to open a file and to read its tensors; as many again to convert it."""

MOST_MEMORY = 1 << 30
"""Bytes that a process may have more than before: files are of a few kilobytes."""


# Checkpoints --------------------------------------------------------------------------------------------


def _files_in(directory: Path) -> Files:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@functools.cache
def seeds() -> dict[str, Files]:
    """A small checkpoint of each form, by name."""
    rng = np.random.default_rng(0)
    made: dict[str, Files] = {}
    with tempfile.TemporaryDirectory() as name:
        for kind, (settings, dot, write) in {**FIRST_FORMS, **MORE_FORMS}.items():
            tensors = {"model.norm.weight": rng.standard_normal(5).astype(np.float32)}
            for layer in ("a.proj", "b.proj")[: 1 + ("gptq" in kind)]:
                tensors |= {layer + dot + ending: tensor for ending, tensor in write(rng).tensors.items()}
            config = {"model_type": "tiny", "quantization_config": settings}
            made[kind] = _checkpoint(Path(name) / "a", tensors, config, 2 if kind in ("gptq", "fp8 blocks") else 1)
        written, about = write_torchao_int4(rng, 8, 64, 32)
        tensors = {f"up.{ending}": tensor for ending, tensor in written.tensors.items()}
        made["torchao"] = _checkpoint(
            Path(name) / "a", tensors, {"quantization_config": {"quant_method": "torchao"}}, 1, {"up.weight": about}
        )
        place = Path(name) / "m.gguf"
        kinds = {"q": (2, "Q4_0"), "k": (8, "Q8_0")}
        weights = {
            f"blk.0.{n}.weight": (number, [6, 64], write_gguf_blocks(rng, 6, 64, kind).tensors[""].tobytes())
            for n, (number, kind) in kinds.items()
        }
        gguf_of(place, {**weights, "norm": (0, [5], np.arange(5, dtype=np.float32).tobytes())})
        made["gguf"] = {"m.gguf": place.read_bytes()}
        shutil.rmtree(Path(name) / "a", ignore_errors=True)
        _write(Path(name) / "a", made["gptq act-order"])
        convert_checkpoint(Path(name) / "a", Path(name) / "ours")
        made["ours"] = _files_in(Path(name) / "ours")
        packed = Path(name) / "packed.safetensors"
        PackedWeight.pack(quantize(rng.standard_normal((8, 64)).astype(np.float32), "int4", group=32)).save(packed)
        made["packed"] = {"packed.safetensors": packed.read_bytes()}
    return made


def _checkpoint(
    directory: Path, tensors: dict[str, np.ndarray], config: Any, shards: int, metadata: Any = None
) -> Files:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    names = sorted(tensors)
    where = {}
    for shard in range(shards):
        file = f"model-{shard}.safetensors" if shards > 1 else "model.safetensors"
        save_safetensors(directory / file, {name: tensors[name] for name in names[shard::shards]}, metadata)
        where.update(dict.fromkeys(names[shard::shards], file))
    if shards > 1:
        (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text("{}")
    return _files_in(directory)


def _write(directory: Path, files: Files) -> None:
    directory.mkdir()
    for name, content in files.items():
        (directory / name).write_bytes(content)


# Damages ------------------------------------------------------------------------------------------------

NUMBERS: list[Any] = [0, -1, 1, 2, 3, 5, 7, 63, 64, 127, 255, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 2**70, -(2**63), 10**25, 1e308, -0.0, 0.5, 1.0,
                      float("inf"), float("nan")]  # fmt: skip
TEXTS: list[Any] = ["", "x", "bogus", "4", "-1", "1e9", "x" * 5000, "a\0b", "../model.safetensors", "/dev/zero", "\ud800", "\x1b[2J\x07", "re:(", "re:" + "(a*)*" * 9, "\u202e",
                    "linear", "F32", "U8", "I64", "BOOL", "F64", "BF16", "F8_E8M0", "gptq", "awq", "gptq_v2", "gemm", "gemv", "marlin", "bitblas", "group", "block", "fp8",
                    "int8", "uint4", "int4", "none", "asymmetric", "tilewright", "compressed-tensors", "bitnet", "hqq", "mxfp4"]  # fmt: skip
KEYS = ["bits", "w_bit", "group_size", "q_group_size", "quant_method", "checkpoint_format", "format", "version", "desc_act", "sym", "zero_point", "weight_block_size",
        "config_groups", "transform_config", "linear_class", "dynamic", "extra_config", "packing_format", "activations", "declared_activations", "quant_algo",
        "load_in_4bit", "load_in_8bit", "modules_to_not_convert", "quantization_config", "compression_config", "weight_map", "__metadata__", "num_bits", "strategy",
        "block_structure", "symmetric", "actorder", "targets", "weights", "input_activations", "type", "dtype", "shape", "data_offsets"]  # fmt: skip


def _odd(rng: random.Random, old: Any = None) -> Any:
    """A value that is none of what is expected, or barely."""
    kind = rng.randrange(10)
    if kind < 3:
        if isinstance(old, int) and not isinstance(old, bool) and rng.random() < 0.5:
            return old + rng.choice([-1, 1, 8, -8, old, 2**32])
        return rng.choice(NUMBERS)
    if kind < 6:
        return rng.choice(TEXTS)
    if kind < 7:
        return rng.choice([None, True, False])
    if kind < 9:
        return rng.choice(
            [
                [],
                {},
                [0, 2**70],
                [0, 2**62, 8],
                [1] * 40,
                [1, 2, 3],
                [[1]],
                [None],
                {"a": 1},
                {"": None},
                [True, True],
                [128, 0],
                [-1, 128],
                [0.5, 2],
                ["4", "4"],
                [1] * 65,
            ]
        )
    deep: Any = 1
    for _ in range(rng.choice([3, 70, 300])):
        deep = [deep] if rng.random() < 0.5 else {"a": deep}
    return deep


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container and key of a JSON value."""
    found, waiting = [], [value]
    while waiting:
        one = waiting.pop()
        for key in one if isinstance(one, dict) else range(len(one)):
            found.append((one, key))
            if isinstance(one[key], (dict, list)):
                waiting.append(one[key])
    return found


def damaged_value(rng: random.Random, value: Any) -> Any:
    """JSON with something else in a place or two."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        places = _places(value) if isinstance(value, (dict, list)) else []
        way = rng.randrange(12)
        if not places or way == 0:
            if isinstance(value, dict) and places:
                value[rng.choice(KEYS)] = _odd(rng)
                continue
            return _odd(rng)
        container, key = rng.choice(places)
        if way < 7:
            container[key] = _odd(rng, container[key])
        elif way < 8:
            del container[key]
        elif way < 9 and isinstance(container, dict):
            container[rng.choice([rng.choice(KEYS), str(rng.choice(TEXTS))])] = container.pop(key)
        elif way < 10 and isinstance(container, dict):
            container[rng.choice(KEYS)] = _odd(rng)
        else:
            other, place = rng.choice(places)
            container[key] = (
                copy.deepcopy(other[place]) if place in other or (isinstance(other, list) and place < len(other)) else 0
            )
    return value


def _as_json(rng: random.Random, value: Any) -> bytes:
    text = json.dumps(value).encode()
    if rng.random() < 0.05 and text.startswith(b'{"'):  # a name that stands twice
        name = text[1 : text.index(b'"', 2) + 1]
        text = b"{" + name + b":" + json.dumps(_odd(rng)).encode() + b"," + text[1:]
    if rng.random() < 0.02:
        text = text.decode().encode(rng.choice(["utf-16", "utf-16-be", "utf-32-le", "utf-8-sig", "utf-7", "cp500"]))
    return text


def damaged_bytes(rng: random.Random, content: bytes) -> bytes:
    """Bytes with flips, cuts, holes, doubled parts and numbers in a few places, most of them at the front."""
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 5, 20])):
        if not changed:
            break
        at = rng.randrange(min(len(changed), rng.choice([16, 300, len(changed)])))
        some = rng.choice([1, 2, 4, 8, 40, 500])
        way = rng.randrange(7)
        if way == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif way == 1:
            del changed[at : at + some]
        elif way == 2:
            changed[at:at] = changed[at : at + some]
        elif way == 3:
            changed[at : at + some] = bytes(min(some, len(changed) - at))
        elif way == 4:
            number = rng.choice(
                [0, 1, 2, 9, 255, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1]
            )
            changed[at : at + 8] = struct.pack("<Q", number)[: len(changed[at : at + 8])]
        elif way == 5:
            del changed[at:]
        else:
            changed[at : at + some] = rng.randbytes(min(some, len(changed) - at))
    return bytes(changed)


def damaged_header(rng: random.Random, content: bytes) -> bytes:
    """A safetensors file with another header."""
    length = struct.unpack("<Q", content[:8])[0]
    text = _as_json(rng, damaged_value(rng, json.loads(content[8 : 8 + length])))
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def damaged_inside(rng: random.Random, content: bytes) -> bytes:
    """A sound safetensors file in which another JSON text stands, in a tensor or in its metadata; other tensors where there is none."""
    header, _, tensors = _taken_apart(content)
    metadata = header.get("__metadata__") or {}
    inside = [("metadata", name) for name, text in sorted(metadata.items()) if text[:1] in ("[", "{")]
    inside += [("tensor", name) for name, (_, _, data) in sorted(tensors.items()) if data[:1] + data[-1:] == b"{}"]
    if not inside:
        return damaged_tensors(rng, content)
    where, name = rng.choice(inside)
    old = metadata[name] if where == "metadata" else tensors[name][2].decode()
    if rng.random() < 0.9:
        new = json.dumps(damaged_value(rng, json.loads(old)))
    else:
        new = damaged_bytes(rng, old.encode()).decode("latin1")
    if where == "metadata":
        metadata[name] = new
    else:
        tensors[name] = ("U8", [len(new.encode())], new.encode())
    return _put_together(metadata, tensors)


TYPES = (
    "BOOL",
    "U8",
    "I8",
    "U16",
    "I16",
    "U32",
    "I32",
    "U64",
    "I64",
    "F16",
    "F32",
    "F64",
    "BF16",
    "F8_E4M3",
    "F8_E5M2",
    "F8_E8M0",
)


def damaged_tensors(rng: random.Random, content: bytes) -> bytes:
    """A sound safetensors file whose tensors are other ones."""
    header, _, tensors = _taken_apart(content)
    metadata = header.get("__metadata__")
    for _ in range(rng.choice([1, 1, 2, 3])):
        if not tensors:
            break
        name = rng.choice(sorted(tensors))
        kind, shape, data = tensors[name]
        way = rng.randrange(9)
        if way == 0:
            del tensors[name]
        elif way == 1:
            other = rng.choice(sorted(tensors))
            tensors[name], tensors[other] = tensors[other], tensors[name]
        elif way == 2:
            tensors[
                rng.choice(
                    [
                        name + "x",
                        name.rpartition(".")[0] + ".weight",
                        name.removesuffix("s"),
                        "a",
                        name.replace("proj", "q"),
                    ]
                )
            ] = tensors.pop(name)
        elif way == 3:
            tensors[name] = _of(rng.choice(TYPES), None, data)
        elif way == 4:
            size = len(data) // max(1, _width(kind))
            tensors[name] = _of(
                kind,
                rng.choice(
                    [[size], [1, size], [size, 1], [1, 1, size], list(reversed(shape)), [0], [], [0, 5], [size, 0]]
                ),
                data,
            )
        elif way == 5:
            tensors[name] = _of(kind, shape, rng.randbytes(len(data)))
        elif way == 6:
            tensors[name] = _of(kind, shape, rng.choice([b"\xff", b"\x7f", b"\x80", b"\0"]) * len(data))
        elif way == 7:
            cut = [max(0, extent + rng.choice([-1, 0, 1])) for extent in shape]
            tensors[name] = _of(kind, cut, data + data + bytes(4096))
        else:
            at = rng.randrange(len(data) or 1)
            tensors[name] = _of(kind, shape, data[:at] + rng.randbytes(min(4, len(data) - at)) + data[at + 4 :])
    return _put_together(metadata, tensors)


def _taken_apart(content: bytes) -> tuple[dict[str, Any], bytes, dict[str, tuple[str, list[int], bytes]]]:
    length = struct.unpack("<Q", content[:8])[0]
    header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    tensors = {
        name: (e["dtype"], e["shape"], body[slice(*e["data_offsets"])])
        for name, e in header.items()
        if name != "__metadata__"
    }
    return header, body, tensors


def _put_together(metadata: dict[str, str] | None, tensors: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    made, out = {}, b""
    for name, (kind, shape, data) in tensors.items():
        made[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(out), len(out) + len(data)]}
        out += data
    text = json.dumps({**({"__metadata__": metadata} if metadata else {}), **made}).encode()
    return struct.pack("<Q", len(text)) + text + out


def _width(kind: str) -> int:
    return int("".join(c for c in kind.partition("_")[0] if c.isdigit()) or 8) // 8


def _of(kind: str, shape: list[int] | None, data: bytes) -> tuple[str, list[int], bytes]:
    """A tensor with as many bytes as its shape needs; of one dimension where none is given."""
    shape = [len(data) // _width(kind)] if shape is None else shape
    size = int(np.prod(shape, dtype=object)) * _width(kind) if shape else _width(kind)
    return kind, shape, (data + bytes(size))[:size]


@dataclass(frozen=True)
class Case:
    """A damaged checkpoint: of which form, how it was damaged, and its files."""

    form: str
    damage: str
    files: Files


def case_of(seed: int) -> Case:
    """The checkpoint of a seed."""
    rng = random.Random(seed)
    form = rng.choice(sorted(seeds()))
    files = dict(seeds()[form])
    name = rng.choice([name for name in files if name != "tokenizer.json"])
    ways: list[tuple[str, Callable[[random.Random, bytes], bytes]]] = [("bytes", damaged_bytes)]
    if name.endswith(".safetensors"):
        ways += [("header", damaged_header), ("tensors", damaged_tensors), ("inside", damaged_inside)]
    elif name.endswith(".json"):
        ways += [("values", lambda rng, content: _as_json(rng, damaged_value(rng, json.loads(content))))] * 5
    damage, way = rng.choice(ways)
    files[name] = way(rng, files[name])
    if rng.random() < 0.02:
        del files[rng.choice(sorted(files))]
    return Case(form, f"{damage} of {name}", files)


# What happens -------------------------------------------------------------------------------------------


def verdict(seed: int) -> str:
    """``read``, ``refused``, or what went wrong."""
    case = case_of(seed)
    with tempfile.TemporaryDirectory() as name:
        directory, target = Path(name) / "from", Path(name) / "to"
        _write(directory, case.files)
        alone = len(case.files) == 1
        path = directory / next(iter(case.files)) if alone else directory
        found = [_attempt("open", lambda: _open(path))]
        if case.form == "packed":
            found.append(_attempt("load", lambda: PackedWeight.load(path)))
        else:
            found.append(_attempt("convert", lambda: convert_checkpoint(path, target)))
        left = sorted(path.name for path in Path(name).iterdir())
        if left not in (["from"], ["from", "to"]) or sorted(os.listdir(directory)) != sorted(case.files):
            return f"leftovers: {left} {os.listdir(directory)}"
    return next((one for one in found if one not in ("read", "refused")), found[-1])


def _open(path: Path) -> None:
    checkpoint = open_checkpoint(path)
    for name in checkpoint:
        np.asarray(checkpoint[name]).tobytes()
    {".gguf": GGUFFile, ".safetensors": SafetensorsFile}.get(path.suffix, open_checkpoint)(path)


def _attempt(what: str, work: Callable[[], Any]) -> str:
    started = time.process_time()
    try:
        work()
        found = "read"
    except TilewrightError as error:
        found = "refused"
        if not error.message or len(str(error)) > 8000:
            found = f"{what}: a message of {len(str(error))} characters"
        elif not all(character.isprintable() or character in "\n\t" for character in str(error)):
            found = f"{what}: a message that a terminal obeys: {error!a}"
        elif isinstance(error.__cause__, Exception) and not isinstance(error.__cause__, (TilewrightError, OSError)):
            found = f"{what}: no reader's own sentence: {error.message}"  # it came out of the net under all readers
    except Exception as error:
        found = f"{what}: {type(error).__name__}: {error}"
    spent = time.process_time() - started
    return found if spent < MOST_SECONDS else f"{what}: {spent:.1f} seconds ({found})"


def limit_memory() -> None:
    """Let this process have so much more memory than it has."""
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        resource.setrlimit(
            resource.RLIMIT_AS,
            (pages * resource.getpagesize() + MOST_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]),
        )


def judge(first: int, last: int) -> list[tuple[int, str]]:
    """The verdicts of seeds, in a process whose memory is limited."""
    np.seterr(all="ignore")
    return [(seed, _calmly(seed)) for seed in range(first, last + 1)]


def _calmly(seed: int) -> str:
    """The verdict of a seed; one on seconds is asked for again, since what a busy machine makes slow is not slow itself."""
    for _ in range(4):
        found = verdict(seed)
        if " seconds (" not in found:
            break
    return found


def _judged(tasks: Sequence[tuple[int, int]], workers: int) -> Iterator[tuple[int, str]]:
    if workers == 1:
        limit_memory()
        for task in tasks:
            yield from judge(*task)
        return
    with multiprocessing.get_context("spawn").Pool(workers, limit_memory) as pool:
        for verdicts in pool.starmap(judge, tasks, chunksize=1):
            yield from verdicts


def hunt(first: int, last: int, workers: int, chunk: int = 100) -> dict[str, int]:
    """Judge seeds in several processes; how many were read, refused, and went wrong, which is printed."""
    tasks = [(start, min(last, start + chunk - 1)) for start in range(first, last + 1, chunk)]
    counts: collections.Counter[str] = collections.Counter()
    for seed, found in _judged(tasks, workers):
        counts[found if found in ("read", "refused") else "wrong"] += 1
        if found not in ("read", "refused"):
            print(seed, case_of(seed).form, case_of(seed).damage, found[:300].replace("\n", " | "), flush=True)
    print(dict(counts))
    return dict(counts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", type=int, nargs="+", help="one seed, or the first and the last")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--keep", type=Path, help="write the files of a seed there")
    options = parser.parse_args(arguments)
    if len(options.seeds) == 1:
        case = case_of(options.seeds[0])
        if options.keep is not None:
            _write(options.keep, case.files)
        print(case.form, case.damage, verdict(options.seeds[0]))
        return 0
    return int(hunt(*options.seeds, options.workers).get("wrong", 0) > 0)


if __name__ == "__main__":
    sys.exit(main())
