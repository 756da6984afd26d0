"""Low-bit weights by activations of 8 bits on a Hopper GPU, beside cuBLAS in bfloat16, cuBLASLt in 8 bits and Humming.

    PYTHONPATH=.:tests/gpu python benchmarks/quant_bytes.py [--cases w4-int8:4096x28672x8192,...] [--rounds 12]

A case is a kind and a size M x N x K.  Kinds: bits of the weight, then the activations' type, ``int8`` or ``e4m3``, then
``-channel`` where scales are those of channels and not of groups of 128, ``-levels`` where those of groups are int8 below one of
each channel.  Activations come quantised, with a scale a token.
*paced* and *sustained* are those of `benchmarks/gemm.py`; peers have neither groups nor, in int8, any scales.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from gemm import PAUSE, Runs, checked, timed
from peers import HUMMING, Humming
from quant import packed, warm_up

import tilewright
from tilewright.ir.dtypes import ALL
from tilewright.kernels.hopper_quant_bytes import byte_quant_matmul
from tilewright.kernels.hopper_quant_bytes_choice import byte_quant_candidates
from tilewright.kernels.running_sums import can_run
from tilewright.machine.fragment_records import FragmentRecords

CASES = ",".join(
    f"{kind}:{M}x{size}"
    for kind, rows, sizes in (
        ("w4-int8", (64, 128, 256, 1024, 4096), ("28672x8192", "8192x28672", "7168x16384")),
        ("w4-e4m3", (64, 128, 256, 1024, 4096), ("28672x8192", "8192x28672", "7168x16384")),
        ("w2-int8-channel", (1, 16, 64, 128, 256, 4096), ("28672x8192",)),
        ("w4-int8-channel", (1, 64, 4096), ("28672x8192",)),
        ("w4-int8-levels", (64, 128, 256, 1024, 4096), ("28672x8192",)),
    )
    for size in sizes
    for M in rows
)


def encoded(form: FragmentRecords, numbers: Any) -> Any:
    """`FragmentRecords.encode` on the GPU."""
    low = (1 << form.bits) - 1
    codes = numbers.to(torch.int32) & low
    if form.operand.is_float:
        codes = torch.where(numbers < 0, codes ^ (low >> 1), codes)
    return codes.to(torch.uint8)


def form_of(kind: str) -> FragmentRecords:
    """The records of a kind."""
    of_weight, activations, *rest = kind.split("-")
    name = {"int8": "int8", "e4m3": "float8_e4m3fn"}[activations]
    scale = {"": ALL["float16"], "channel": None, "levels": ALL["int8"]}["".join(rest)]
    return FragmentRecords(int(of_weight[1:]), ALL[name], scale)


def has_channels(form: FragmentRecords) -> bool:
    """Whether there are scales of channels."""
    return form.scale is None or form.scale.is_integer


def made(kind: str, N: int, K: int, choice: dict[str, Any]) -> Any:
    """A kernel of ours."""
    form = form_of(kind)
    program = byte_quant_matmul.trace(
        N, K, form, activations=str(form.operand), out="bfloat16", by_channel=has_channels(form), **choice
    )
    return tilewright.compile(program, target="cuda -arch=sm_90a")


def case(kind: str, M: int, N: int, K: int, choices: list[dict[str, Any]]) -> Runs:
    """Peers, our choice, and other sizes of ours."""
    form = form_of(kind)
    bits, name, by_channel = form.bits, str(form.operand), has_channels(form)
    half = 1 << (bits - 1)
    numbers = torch.randint(-half, half, (N, K), device="cuda", dtype=torch.int8)
    scales = (torch.rand(N, 1 if by_channel else K // 128, device="cuda") * 0.01 + 0.01).half()
    levels = torch.randint(1, 16, (N, K // 128), device="cuda", dtype=torch.int8) if form.scale == ALL["int8"] else None
    of_tokens = torch.rand(M, device="cuda") * 0.01 + 0.01
    a = torch.randint(-127, 128, (M, K), device="cuda", dtype=torch.int8)
    if name != "int8":
        a = torch.randn(M, K, device="cuda").to(torch.float8_e4m3fn)
    words = packed(form, encoded(form, numbers), scales if levels is None else levels)
    dense = numbers.float() * scales.float().repeat_interleave(K // scales.shape[1], 1)
    if levels is not None:
        dense *= levels.float().repeat_interleave(128, 1)
    expected = (a.float() @ dense.T) * of_tokens[:, None]
    left, right = a.to(torch.bfloat16), dense.to(torch.bfloat16)
    del dense
    runs: Runs = {"cublas bf16": lambda: torch.mm(left, right.T)}
    runs["cublas bf16"].expected = expected.to(torch.bfloat16)
    peers = eight_bits(a, numbers, of_tokens)
    if HUMMING and levels is None:
        codes = (numbers + half).to(torch.uint8)
        humming = Humming(f"uint{bits}", codes, scales.to(torch.bfloat16), a.dtype, torch.bfloat16)
        result = torch.empty(M, N, device="cuda", dtype=torch.bfloat16)
        runs["humming"] = lambda: (humming(a, result, of_tokens[:, None]), result)[1]
    of_channels = scales.float().reshape(-1) if by_channel else torch.ones(1, device="cuda")
    nothing = torch.zeros(1, device="cuda"), torch.zeros(1, 1, device="cuda", dtype=torch.bfloat16)
    ours = byte_quant_candidates(N, K, form, not by_channel, not by_channel and can_run(form, 0, name)).choice(M)
    for choice in [ours, *({**ours, **other} for other in choices)]:
        c = torch.empty(M, N, device="cuda", dtype=torch.bfloat16)
        kernel = made(kind, N, K, choice)

        def run(kernel: Any = kernel, c: Any = c) -> Any:
            kernel(words, a, of_tokens, of_channels, *nothing, c)
            return c

        runs["  " + " ".join(f"{key}{value}" for key, value in choice.items())] = run
    return {**checked(runs, 1e-2), **peers}


def eight_bits(a: Any, numbers: Any, of_tokens: Any) -> Runs:
    """cuBLASLt in 8 bits: another product, of the same size."""
    M, N = a.shape[0], numbers.shape[0]
    if a.dtype == torch.int8:
        return {"cublaslt int32": lambda: torch._int_mm(a, numbers.T)} if M > 16 else {}
    b = numbers.float().to(torch.float8_e4m3fn)
    ones = torch.ones(1, N, device="cuda")

    def scaled() -> Any:
        return torch._scaled_mm(a, b.T, scale_a=of_tokens[:, None], scale_b=ones, out_dtype=torch.bfloat16)

    return {"scaled_mm": scaled} if M % 16 == 0 else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--choices", default="[]", help="what other sizes of the kernel change, a Python list of dicts")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; TFLOP/s and ratio to the first peer")
    for text in options.cases.split(","):
        kind, size = text.split(":")
        M, N, K = map(int, size.split("x"))
        torch.manual_seed(0)
        runs = case(kind, M, N, K, eval(options.choices))
        warm_up()
        paced, sustained = timed(runs, options.rounds, PAUSE), timed(runs, options.rounds, 0.0)
        print(f"\n{text:56}{'us':>8} {'paced':>8} {'ratio':>6} {'sustained':>11} {'ratio':>6}")
        peer = next(iter(runs))
        for name in runs:
            rates = [2e-12 * M * N * K / found[name] for found in (paced, sustained)]
            ratios = [found[peer] / found[name] for found in (paced, sustained)]
            print(
                f"  {name:54}{paced[name] * 1e6:8.1f} {rates[0]:8.1f} {ratios[0]:6.3f} {rates[1]:11.1f} {ratios[1]:6.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
