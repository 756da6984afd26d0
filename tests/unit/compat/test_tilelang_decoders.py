"""Texts of functions that decode a few codes of a thread: every one runs emulated and compiles, beside what it means."""

import contextlib

import numpy as np
import pytest
import tilewright.compat.tilelang.language as T

import tilewright
from tilewright.compat.tilelang import quantize
from tilewright.compat.tilelang.quantize import get_lop3_intrin_group, get_mxfp_intrin_group
from tilewright.errors import CompilerNotFound
from tilewright.formats import WORD_ORDERS
from tilewright.ir.dtypes import dtype
from tilewright.specialization import InvalidUse
from tilewright.targets.cuda.compiler import compile_text

ROWS = 32


def kernel_of(group, count, groups, out, storage, *more):
    """One row a thread: `count` bytes of codes into `groups` numbers, scale and zero point of a row where there are such."""
    filled = groups if out != "int4" else groups // 2
    carrier = out if out != "int4" else "int8"

    @T.prim_func
    def main(
        codes: T.Tensor((ROWS, count), storage), scales: T.Tensor((ROWS,), "float16"),
        zeros: T.Tensor((ROWS,), "float16"), result: T.Tensor((ROWS, filled), carrier),
    ):  # fmt: skip
        with T.Kernel(1, threads=ROWS):
            T.import_source(group["c_source"])
            row = T.get_thread_binding()
            given = T.alloc_local((count,), storage)
            made = T.alloc_local((filled,), carrier)
            scale = T.alloc_local((1,), "float16")
            zero = T.alloc_local((1,), "float16")
            scale[0] = scales[row]
            zero[0] = zeros[row]
            for v in T.vectorized(count):
                given[v] = codes[row, v]
            places = [T.address_of(one[0]) for one in (scale, zero)[: len(more) - 1]]
            T.call_extern(
                group["func_name"], T.address_of(given[0]), T.address_of(made[0]), *places, more[0], dtype=carrier
            )
            for v in T.vectorized(filled):
                result[row, v] = made[v]

    return tilewright.compile(main, target="cuda -arch=sm_90a")


def ran(kernel, codes, scales, zeros, shape, of):
    result = np.full(shape, 1).astype(of)
    kernel.emulate(codes, scales, zeros, result)
    with contextlib.suppress(CompilerNotFound):
        compile_text(kernel.get_kernel_source(), kernel.arch)
    return result


MODES = [(False, None), (True, None), (True, "original"), (True, "rescale"), (True, "quantized")]
CASES = [
    (target, bits, source, *mode)
    for target, bits in WORD_ORDERS for source in ("uint", "int") for mode in MODES
    if (target == "float16" or mode == MODES[0]) and (source == "uint" or mode[1] is None)
]  # fmt: skip


@pytest.mark.parametrize("target, bits, source, scaled, zeros_mode", CASES)
def test_codes_come_out_as_they_were_put_in(target, bits, source, scaled, zeros_mode):
    rng = np.random.default_rng(bits)
    count = 8 if target == "float16" else 16
    codes = rng.integers(0, 1 << bits, (ROWS, 32)).astype(np.int8)
    packed = quantize.interleave_weight(quantize.general_compress(codes, bits), bits, target)[
        :, : count * bits // 8
    ].copy()
    scales, zeros = (rng.integers(1, 9, ROWS).astype(np.float16) for _ in range(2))
    scales /= 8
    group = get_lop3_intrin_group(
        target,
        source,
        bits,
        with_scaling=scaled,
        with_zeros=zeros_mode is not None,
        zeros_mode=zeros_mode or "original",
    )
    more = (count, *(["scale"] if scaled else []), *(["zero"] if zeros_mode else []))
    kernel = kernel_of(group, packed.shape[1], count, target, "int8", *more)
    filled = count if target != "int4" else count // 2
    found = ran(kernel, packed, scales, zeros, (ROWS, filled), np.float16 if target == "float16" else np.int8)
    if target == "int4":
        nibbles = np.stack([found & 15, found >> 4 & 15], -1).reshape(ROWS, count).astype(np.int64)
        found = nibbles - 16 * (nibbles > 7) if source == "int" else nibbles
    wanted = codes[:, :count].astype(np.float64)
    if source == "int":
        wanted = 2 * wanted - 1 if bits == 1 else wanted - (1 << (bits - 1))
    zero, scale = zeros[:, None].astype(np.float64), scales[:, None].astype(np.float64)
    wanted = wanted - zero if zeros_mode in ("original", "quantized") else wanted
    wanted = wanted * scale if scaled else wanted
    assert np.array_equal(found, wanted - zero if zeros_mode == "rescale" else wanted)


def test_twiddled_floats_of_four_bits():
    """Halves of a word, each once high and once low."""
    halves = np.arange(1 << 16).reshape(-1, 64)
    shifts = np.array([[15, 8, 7, 6], [12, 5, 4, 3], [9, 2, 1, 0], [14, 11, 10, 13]])
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    parts = halves[..., None, None] >> shifts & 1
    wanted = np.where(parts[..., 0] == 1, -1.0, 1.0) * table[parts[..., 1] * 4 + parts[..., 2] * 2 + parts[..., 3]]
    group = get_mxfp_intrin_group("bfloat16", T.uint, 4, T.uint8, use_twiddling=True)
    kernel = kernel_of(group, 128, 256, "bfloat16", "uint8", 32)
    for first in (0, 480, 992):
        rows = halves[first : first + ROWS]
        codes = np.stack([rows >> 8, rows & 255], -1).reshape(ROWS, 128).astype(np.uint8)
        found = ran(
            kernel, codes, np.ones(ROWS, np.float16), np.ones(ROWS, np.float16), (ROWS, 256), dtype("bfloat16").numpy
        )
        assert np.array_equal(found.astype(np.float64).reshape(ROWS, 64, 4), wanted[first : first + ROWS])


@pytest.mark.parametrize(
    "options, said",
    [
        ({"out_dtype": "float16", "source_bit": 3}, "no decoding of uint3 to float16"), ({"out_dtype": "int8", "with_scaling": True}, "a scale makes no int8"),
        ({"out_dtype": "float16", "with_zeros": True}, "zero points go with a scale"), ({"out_dtype": "float16", "with_scaling": True, "storage_scope": "warp"}, "words lie in"),
        ({"out_dtype": "float16", "with_scaling": True, "with_zeros": True, "zeros_mode": "mid"}, "no zeros_mode 'mid'"),
    ],
)  # fmt: skip
def test_decodings_that_there_are_none_of(options, said):
    with pytest.raises(InvalidUse, match=said):
        get_lop3_intrin_group(**options)


def test_floats_that_are_not_decoded():
    with pytest.raises(InvalidUse, match="no decoding of floats of 4 bits to float16"):
        get_mxfp_intrin_group("float16", use_twiddling=True)
