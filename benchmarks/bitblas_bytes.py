"""Products of int8 with weights in BitBLAS's bytes on a GPU, beside our own order and cuBLASLt.

    PYTHONPATH=.:benchmarks python benchmarks/bitblas_bytes.py [--size 1024x17280x3200] [--rounds 15]

*raw*: the kernel that reads BitBLAS's order (``propagate_b=3``) at every call, for a fixed M and for any; *call*: what a program
with ``import bitblas`` gets, which brings a tensor into our order when it is first seen.  Microseconds and TOPS, paced medians, L2
flushed; results are compared with ``torch._int_mm``'s bit by bit.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from gemm import PAUSE, timed
from quant import warm_up

from tilewright.compat import bitblas
from tilewright.matmul import PackedWeight, quant_matmul


def operator(M: Any, N: int, K: int) -> Any:
    """BitBLAS's operator of int8 by int8 with int32 sums."""
    config = bitblas.MatmulConfig(
        M=M, N=N, K=K, A_dtype="int8", W_dtype="int8", accum_dtype="int32", out_dtype="int32", layout="nt",
        propagate_b=3,
    )  # fmt: skip
    return bitblas.Matmul(config, enable_tuning=False)


def runs(M: int, N: int, K: int) -> dict[str, Callable[[], Any]]:
    """Ways to the same product."""
    a = torch.randint(-128, 128, (M, K), dtype=torch.int8, device="cuda")
    w = torch.randint(-128, 128, (N, K), dtype=torch.int8, device="cuda")
    packed = PackedWeight("int8", (N, K), {"codes": w.view(torch.uint8)})
    out = torch.empty(M, N, dtype=torch.int32, device="cuda")
    found = {"torch._int_mm": lambda: torch._int_mm(a, w.T), "our own order": lambda: quant_matmul(a, packed, out=out)}
    for name, rows in (("static", M), ("dynamic", (M,))):
        made = operator(rows, N, K)
        raw = made.transform_weight(w.cpu()).cuda()
        product = made._raw(a, raw, None, None, None, out, None, None)
        found[f"raw, {name}"] = product.run
        found[f"call, {name}"] = lambda made=made, raw=raw: made(a, raw, output=out)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="1024x17280x3200")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    M, N, K = map(int, options.size.split("x"))
    ways = runs(M, N, K)
    expected = ways["torch._int_mm"]()
    for name, run in ways.items():
        assert torch.equal(run(), expected), name
    warm_up()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.size}")
    times = timed(ways, options.rounds, PAUSE)
    for name, seconds in times.items():
        print(f"{name:20}{seconds * 1e6:9.1f} us {2e-12 * M * N * K / seconds:8.1f} TOPS", flush=True)


if __name__ == "__main__":
    main()
