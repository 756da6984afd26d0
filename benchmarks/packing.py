"""How fast weights come into the order of the GPU's kernels, and what a call of `Linear` costs the host.

    PYTHONPATH=. python benchmarks/packing.py [--host]

Packing is the whole call: a weight on the GPU as plain codes, to records that are ready to be multiplied by; bytes are those of
the plain codes, scales and zeros read and of the records written.  ``--host``: microseconds of the host for a call, the GPU left behind.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from tilewright.formats import number_format
from tilewright.ir.dtypes import ALL
from tilewright.matmul import PackedWeight
from tilewright.matmul.tiers import bytes as byte_tier
from tilewright.matmul.tiers import records
from tilewright.nn import Linear

SHAPES = ((4096, 4096), (8192, 8192), (28672, 8192))
KINDS = {
    "int4 g128 float16": ("int4", 128, "float16", False, "float16"),
    "int4 g128 float32 scales": ("int4", 128, "float32", False, "float16"),
    "uint4 g128 zeros": ("uint4", 128, "float16", True, "float16"),
    "int2 g128": ("int2", 128, "float16", False, "float16"),
    "mxfp4 bfloat16": ("e2m1", 32, "float8_e8m0fnu", False, "bfloat16"),
    "e4m3 channels": ("e4m3", 0, "float32", False, "float16"),
    "int4 g128 by int8": ("int4", 128, "float16", False, "int8"),
    "int4 channels by int8": ("int4", 0, "float32", False, "int8"),
}


def weight(kind: str, N: int, K: int) -> PackedWeight:
    """A random weight on the GPU, made there."""
    name, group, scale, zeros, _ = KINDS[kind]
    of, columns = number_format(name), group or K
    arrays: dict[str, Any] = {"codes": torch.randint(0, 255, (N, K * of.bits // 8), dtype=torch.uint8, device="cuda")}
    if of.name == "e4m3":
        arrays["codes"] = arrays["codes"] & 0x77
    scales = torch.rand(N, -(-K // columns), device="cuda") * 0.02 + 0.01
    if scale == "float8_e8m0fnu":
        arrays["scales"] = torch.randint(118, 124, scales.shape, dtype=torch.uint8, device="cuda").view(
            torch.float8_e8m0fnu
        )
    else:
        arrays["scales"] = scales.to(getattr(torch, scale))
    if zeros:
        arrays["zeros"] = torch.randint(0, 16, scales.shape, device="cuda").float()
    return PackedWeight(of, (N, K), arrays, block=(1, columns))


def pack(held: PackedWeight, activations: str) -> Any:
    """The records of a weight for activations of a type."""
    example = held.arrays["codes"]
    if activations == "int8":
        coding = byte_tier.coding_of(held.format, activations)
        assert coding is not None
        return byte_tier.words(held, byte_tier.plan_of(held, coding), coding, example)
    form, own = records.form_of(held.facts, activations), records.coding_of(held.format, ALL[activations])
    assert form is not None and own is not None
    return records.records_of(held, form, own, example).words


def packing() -> None:
    """One line a kind and shape."""
    print(f"{'packing':28}{'shape':>14}{'ms':>9}{'GB/s':>8}  first call ms")
    for kind in KINDS:
        for N, K in SHAPES:
            times = []
            for _ in range(6):
                held = weight(kind, N, K)
                torch.cuda.synchronize()
                begin = time.perf_counter()
                words = pack(held, KINDS[kind][-1])
                torch.cuda.synchronize()
                times.append(time.perf_counter() - begin)
            moved = sum(array.numel() * array.element_size() for array in (*held.arrays.values(), words))
            least = statistics.median(times[1:])
            print(
                f"{kind:28}{N:>8}x{K:<6}{least * 1e3:8.2f}{moved / least * 1e-9:8.1f}  {times[0] * 1e3:.0f}", flush=True
            )


def host_microseconds(call: Callable[[], Any]) -> float:
    """Of one call, the GPU left behind: the least of several runs' medians."""
    found = []
    for _ in range(7):
        torch.cuda.synchronize()
        times = []
        for _ in range(200):
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        found.append(statistics.median(times))
    return min(found) * 1e6


@torch.no_grad()
def host() -> None:
    """A call of `Linear` beside `torch.nn.Linear`'s and the function's, small enough that the GPU keeps up."""
    dense = torch.nn.Linear(512, 512, bias=False).cuda().half()
    layers = {
        "W4A16": Linear.from_float(dense, "int4", group=128),
        "W8A8": Linear.from_float(dense, "int8", group=None, activations="int8"),
    }
    for rows in (1, 16):
        x = torch.randn(rows, 512, device="cuda", dtype=torch.float16)
        line = {
            "torch.nn.Linear": host_microseconds(lambda x=x: dense(x)),
            "functional.linear": host_microseconds(lambda x=x: torch.nn.functional.linear(x, dense.weight)),
            **{name: host_microseconds(lambda x=x, layer=layer: layer(x)) for name, layer in layers.items()},
        }
        print(f"host, M={rows}: " + ", ".join(f"{name} {found:.2f} us" for name, found in line.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", action="store_true")
    print(torch.cuda.get_device_name())
    if parser.parse_args().host:
        host()
    else:
        packing()


if __name__ == "__main__":
    main()
