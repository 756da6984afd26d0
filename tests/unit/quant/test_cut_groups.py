"""Groups of columns that do not divide K: how long they are is what the configuration says, and no guess."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from checkpoint_writers import Written, write_awq_gemm, write_float8, write_gptq, write_pack_quantized

from tilewright.conversion import float_readers, readers
from tilewright.errors import InvalidTensor
from tilewright.quant.importers.assemble import group_size

N = 16


def gptq(rng: np.random.Generator, K: int, group: int) -> Written:
    """AutoRound's, which has no g_idx."""
    return write_gptq(rng, N, K, 4, group, 1, False)


def awq(rng: np.random.Generator, K: int, group: int) -> Written:
    return write_awq_gemm(rng, N, K, group)


def packed(rng: np.random.Generator, K: int, group: int) -> Written:
    return write_pack_quantized(rng, N, K, 4, group, True, False)


def float8(rng: np.random.Generator, K: int, group: int) -> Written:
    return write_float8(rng, N, K, (1, group))


def int8(rng: np.random.Generator, K: int, group: int) -> Written:
    values, scales = rng.integers(-128, 128, (N, K)).astype(np.int8), rng.uniform(0.1, 1, (N, -(-K // group)))
    wide = np.stack([scales[:, k // group] for k in range(K)], axis=1)
    return Written({"weight": values, "weight_scale": scales}, values * wide)


def modelopt(rng: np.random.Generator, K: int, group: int) -> Written:
    """Two rows a byte."""
    written = int8(rng, K, group)
    values = written.tensors["weight"] >> 4
    nibbles = (values & 15).astype(np.uint8)
    scales = written.tensors["weight_scale"]
    wide = np.stack([scales[:, k // group] for k in range(K)], axis=1)
    return Written({"weight": nibbles[::2] | nibbles[1::2] << 4, "weight_scale": scales}, values * wide)


def of_groups(size: int) -> dict[str, Any]:
    """What compressed-tensors says."""
    weights = {"num_bits": 4, "strategy": "group", "group_size": size}
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


Case = tuple[Callable[[np.random.Generator, int, int], Written], Any, Callable[[int], dict[str, Any]]]
CASES: dict[str, Case] = {
    "gptq": (gptq, readers.gptq, lambda size: {"bits": 4, "group_size": size}),
    "gptq, dynamic": (
        gptq, readers.gptq, lambda size: {"bits": 4, "group_size": 8, "dynamic": {"+:.*up": {"group_size": size}}}
    ),
    "gptq, extra_config": (
        gptq, readers.gptq, lambda size: {"bits": 4, "group_size": size, "extra_config": {"down": {"group_size": 8}}}
    ),
    "awq, extra_config": (
        awq, readers.awq, lambda size: {"group_size": 8, "extra_config": {"up": {"group_size": size}}}
    ),
    "compressed-tensors, packed": (packed, readers.pack_quantized, of_groups),
    "compressed-tensors, int8": (int8, readers.int8, of_groups),
    "compressed-tensors, fp8": (float8, float_readers.float8, of_groups),
    "modelopt": (modelopt, float_readers.modelopt, lambda size: {"quant_algo": "W4A16_AWQ", "group_size": size}),
    "quark, int8": (int8, float_readers.quark, lambda size: {"global_quant_config": {"weight": {"group_size": size}}}),
    "quark, fp8": (float8, float_readers.quark, lambda size: {"global_quant_config": {"weight": {"group_size": size}}}),
}  # fmt: skip


@pytest.mark.parametrize(("K", "group"), [(160, 64), (96, 64), (104, 40), (72, 64)])
@pytest.mark.parametrize("name", CASES)
def test_the_configuration_says_how_long_groups_are(name: str, K: int, group: int) -> None:
    """Two of these are divided evenly by as many groups, of another size."""
    write, read, said = CASES[name]
    written = write(np.random.default_rng(K + group), K, group)
    layer = {f"up.{part}": tensor for part, tensor in written.tensors.items()}
    made = read(layer, "up", said(group))
    np.testing.assert_allclose(made.dequantize(), written.weight, rtol=1e-6)


@pytest.mark.parametrize(("K", "groups", "group", "expected"), [
    (96, 2, None, 48), (96, 2, [64], 64), (96, 2, [64, 32], 64), (96, 2, [-1, 0, 128], 48), (96, 1, [64, 128], 96),
    (5, 3, None, 2), (96, 2, 64, 64), (96, 1, -1, 96),
])  # fmt: skip
def test_sizes_of_groups(K: int, groups: int, group: Any, expected: int) -> None:
    assert group_size("up.scales", K, groups, group) == expected


@pytest.mark.parametrize(("K", "groups", "group", "message"), [
    (160, 3, None, "up.scales has 3 groups of scales for K = 160, the last one shorter than the others, which may be "
     "54 to 79 columns"),
    (160, 3, [32, 128], "up.scales has 3 groups of scales for K = 160, the last one shorter than the others, which may "
     "be 54 to 79 columns"),
    (100, 2, [64, 80], "up.scales has 2 groups of scales for K = 100, the last one shorter than the others, which may "
     "be 64 to 80 columns"),
    (96, 2, 32, "up.scales has 2 groups of scales, which groups of 32 do not make of K = 96"),
    (5, 4, None, "up.scales has 4 groups of scales, which groups of no size do not make of K = 5"),
    (96, 0, None, "up.scales has 0 groups of scales, which groups of no size do not make of K = 96"),
])  # fmt: skip
def test_sizes_that_nobody_says_are_no_guess(K: int, groups: int, group: Any, message: str) -> None:
    with pytest.raises(InvalidTensor) as raised:
        group_size("up.scales", K, groups, group)
    assert raised.value.message == message
