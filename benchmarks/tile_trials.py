"""Tiles beside cuBLAS on products of some sizes: data that the model of `kernels/tile_launches.py` is fitted to.

    PYTHONPATH=.:tests/gpu python benchmarks/tile_trials.py 320x3584x3584:160x64t/2x1,64x144 206x7168x18432:5 [--random 20 --seed 3]

Tiles are ``rows x columns``, ``t`` where the weight's rows are the instruction's, ``p`` for consumers in turn, ``/along N x along M``
for a cluster that shares loads, ``+parts`` of K, ``*slots``; slots are as many as fit otherwise.  ``first~second`` with columns in
front, ``6144=256x192/1x2~4096=128x256``, is a product in two parts.  A number is the model's choice and so many others of different
sizes, those that it thinks fastest; random products (`gemm_shapes.py`) get `--others`.  All are compiled at once, beforehand.  Times
are paced as in `gemm.py`.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import replace

import torch
from ahead import build_all, on_this_card
from gemm import output, timed
from gemm import random as random_matrix
from gemm_shapes import PAUSE, sizes

from tilewright.kernels.dense_matmul import dense_matmul
from tilewright.kernels.roofline import HOPPER
from tilewright.kernels.tile_choice import DenseProduct
from tilewright.kernels.tile_launches import Parts, cycles, cycles_of_parts
from tilewright.kernels.tiles import ROW_BYTES, SHARED_BYTES, STAGING_BYTES, Tiles

FORM = re.compile(r"(\d+)x(\d+)(t?)(p?)(?:/(\d+)x(\d+))?(?:\+(\d+))?(?:\*(\d+))?$")

Size = tuple[int, int, int]


def tiles_of(word: str, M: int, N: int) -> Tiles:
    """The candidate that a word names, or tiles that are no candidate."""
    found = FORM.match(word)
    assert found, word
    rows, columns, turned, in_turn, along_N, along_M, splits, stages = found.groups()
    cluster = (int(along_N or 1), int(along_M or 1))
    for one in DenseProduct(N, 1).suited_tiles(M):  # whatever K is
        same = (one.block_M, one.block_N, one.swapped) == (int(rows), int(columns), bool(turned))
        same = same and one.ping_pong == bool(in_turn)
        if same and (one.cluster or (1, 1)) == cluster and one.splits == int(splits or 1):
            return replace(one, stages=int(stages)) if stages else one
    slots = int(stages or (SHARED_BYTES - STAGING_BYTES) // ((int(rows) + int(columns)) * ROW_BYTES))
    high = int(columns if turned else rows)
    threads = 128 if in_turn else 256 if high % 128 == 0 else 2 * high
    parts = {"cluster": cluster, "splits": int(splits or 1), "ping_pong": bool(in_turn), "turned": bool(turned)}
    return Tiles(int(rows), int(columns), ROW_BYTES // 2, slots, threads, **parts)


def parts_of(word: str, M: int, N: int) -> Parts:
    """The parts that a word names."""
    found = []
    for part in word.split("~"):
        columns, _, tiles = part.rpartition("=")
        found.append((int(columns or N), tiles_of(tiles, M, int(columns or N))))
    return tuple(found)


def word_of(parts: Parts) -> str:
    """What `parts_of` reads."""
    words = []
    for columns, one in parts:
        along_N, along_M = one.cluster or (1, 1)
        letters = "t" * one.swapped + "p" * one.ping_pong
        word = f"{one.block_M}x{one.block_N}{letters}/{along_N}x{along_M}+{one.splits}*{one.stages}"
        words.append(f"{columns}={word}" if len(parts) > 1 else word)
    return "~".join(words)


def reckoned(parts: Parts, M: int, K: int) -> float:
    """Cycles by the model."""
    return cycles_of_parts(parts, M, K)


def others(M: int, N: int, K: int, count: int) -> list[Parts]:
    """The model's choice, and the fastest by it of tiles of other sizes."""
    chosen = DenseProduct(N, K).fastest_parts(M)
    found, seen = [chosen], {frozenset((chosen[0][1].block_M, chosen[0][1].block_N, chosen[0][1].splits))}
    for tiles in sorted(DenseProduct(N, K).suited_tiles(M), key=lambda one: cycles(one, M, N, K, HOPPER)):
        key = frozenset((tiles.block_M, tiles.block_N, tiles.splits))
        if len(found) <= count and (key not in seen or len(chosen) > 1):
            seen.add(key)
            found.append(((N, tiles),))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--others", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    asked: dict[Size, list[Parts]] = {}
    for case in options.cases:
        size, _, words = case.partition(":")
        M, N, K = map(int, size.split("x"))
        tried = asked.setdefault((M, N, K), [])
        for word in words.split(","):
            more = others(M, N, K, int(word)) if word.isdigit() else [parts_of(word, M, N)]
            tried += [one for one in more if one not in tried]
    for size in sizes(options.random, options.seed):
        asked.setdefault(size, []).extend(others(*size, options.others))
    library = on_this_card(dense_matmul)

    def kernel(size: Size, parts: Parts) -> object:
        return library(*size[1:], "bfloat16", None, "bfloat16", tiles=parts)

    build_all([lambda size=size, one=one: kernel(size, one) for size, tried in asked.items() for one in tried])
    for (M, N, K), tried in asked.items():
        a, b = (random_matrix(rows, K, torch.bfloat16) for rows in (M, N))
        runs = {"cublas": lambda a=a, b=b: torch.mm(a, b.T)}
        expected = runs["cublas"]().float()
        told = {"cublas": 0.0}
        for parts in tried:
            run, word = output(kernel((M, N, K), parts), M, N, torch.bfloat16, a, b), word_of(parts)
            found, again = run().clone(), run()
            wrong = (found.float() - expected).abs().max() > 1e-2 * expected.abs().max()
            if wrong or not torch.equal(found, again):
                print(f"{M}x{N}x{K} {word}: WRONG, repeats {torch.equal(found, again)}", flush=True)
                continue
            runs[word], told[word] = run, reckoned(parts, M, K)
        times = timed(runs, options.rounds, PAUSE)
        for name, seconds in times.items():
            ratio = times["cublas"] / seconds
            print(f"{f'{M}x{N}x{K}':18} {name:30} {seconds * 1e6:8.2f} us  {ratio:.3f}  {told[name]:9.0f}", flush=True)


if __name__ == "__main__":
    main()
