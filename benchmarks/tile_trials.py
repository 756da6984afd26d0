"""Tiles by hand beside cuBLAS on products of some sizes: data that the model of `kernels/tiles.py` is fitted to.

    PYTHONPATH=.:tests/gpu python benchmarks/tile_trials.py 320x3584x3584:160x64t/2x1,64x144/1x1 206x7168x18432:208x64t/2x1

Tiles are ``rows x columns``, ``t`` where the weight's rows are the instruction's, ``/along N x along M`` for a cluster that shares
loads, ``+parts`` of K, ``*slots``; slots are as many as fit otherwise.  Times are paced as in `gemm.py`.
"""

from __future__ import annotations

import re
import sys

import torch
from gemm import output, timed
from gemm import random as random_matrix
from gemm_shapes import PAUSE

from tilewright.kernels.dense_matmul import dense_matmul
from tilewright.kernels.tiles import CORES, Tiles, candidates, cycles

FORM = re.compile(r"(\d+)x(\d+)(t?)(?:/(\d+)x(\d+))?(?:\+(\d+))?(?:\*(\d+))?$")


def tiles_of(word: str, M: int, N: int) -> Tiles:
    """The candidate that a word names."""
    found = FORM.match(word)
    assert found, word
    rows, columns, turned, along_N, along_M, splits, stages = found.groups()
    cluster = (int(along_N or 1), int(along_M or 1))
    for one in candidates(M, N):
        same = (one.block_M, one.block_N, one.turned) == (int(rows), int(columns), bool(turned))
        if same and (one.cluster or (1, 1)) == cluster and one.splits == int(splits or 1):
            changed = {name: getattr(one, name) for name in Tiles.__slots__}
            return Tiles(**{**changed, "stages": int(stages)} if stages else changed)
    raise SystemExit(f"{word} is no candidate for {M} rows and {N} columns")


def main() -> None:
    for case in sys.argv[1:]:
        size, _, words = case.partition(":")
        M, N, K = map(int, size.split("x"))
        a, b = (random_matrix(rows, K, torch.bfloat16) for rows in (M, N))
        runs = {"cublas": lambda a=a, b=b: torch.mm(a, b.T)}
        expected = runs["cublas"]().float()
        tried = {word: tiles_of(word, M, N) for word in words.split(",")}
        for word, tiles in tried.items():
            run = output(dense_matmul(N, K, "bfloat16", None, "bfloat16", tiles=tiles), M, N, torch.bfloat16, a, b)
            found, again = run().clone(), run()
            wrong = (found.float() - expected).abs().max() > 1e-2 * expected.abs().max()
            if wrong or not torch.equal(found, again):
                print(f"{size} {word}: WRONG, repeats {torch.equal(found, again)}", flush=True)
                continue
            runs[word] = run
        times = timed(runs, 7, PAUSE)
        for name, seconds in times.items():
            reckoned = f"{cycles(tried[name], M, N, K, CORES):9.0f} cycles" if name in tried else ""
            ratio = times["cublas"] / seconds
            print(f"{size:18} {name:18} {seconds * 1e6:8.2f} us  {ratio:.3f}  {reckoned}", flush=True)


if __name__ == "__main__":
    main()
