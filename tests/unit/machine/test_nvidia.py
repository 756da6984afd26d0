"""Records of NVIDIA's GPUs against their data sheets, which one a driver's name or a target means, and the model of speed on each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.ir.dtypes import ALL
from tilewright.kernels.roofline import Work, cycles_of, hopper_speed, speed_of
from tilewright.kernels.tile_choice import DenseProduct, fastest_alone
from tilewright.kernels.tile_launches import cycles, cycles_of_parts
from tilewright.kernels.tiles import ceil_div
from tilewright.machine.nvidia import DEVICES, device_of
from tilewright.targets.cuda.arch import named, with_rates
from tilewright.targets.registry import resolve

SHEETS = {
    "H200": (989, 4.8), "H100": (989, 3.35), "H100 PCIe": (756, 2.0), "H20": (148, 4.0), "A100": (312, 2.04), "L40S": (362, 0.864),
    "RTX 4090": (165, 1.008), "RTX 5090": (209.5, 1.792),
}  # fmt: skip
"""Tera-operations a second of dense products of 16 bits with sums of float32, and terabytes a second."""

CORES = (78, 108, 114, 128, 132, 142)


@pytest.mark.parametrize("name", SHEETS)
def test_records_say_what_data_sheets_say(name: str) -> None:
    device = next(one for one in DEVICES if one.name == name)
    tera, terabytes = SHEETS[name]
    arch = with_rates(named(device.arch + "a" * (device.arch == "sm_90")), name)
    arch = resolve(f"cuda -arch={arch.name} -cores={device.cores}")[1] if name != "H100" else arch
    assert arch.rates == device.rates and device.rates.source
    for kind in ("float16", "bfloat16"):
        found = arch.product_rate(ALL[kind], ALL[kind]) * device.cores * device.rates.cycles / 1e12
        assert found == pytest.approx(tera, rel=0.02)
    assert device.rates.bytes / 1e12 == pytest.approx(terabytes, rel=0.02)


@pytest.mark.parametrize(
    ("called", "arch", "name"),
    [
        ("NVIDIA H200", "sm_90a", "H200"), ("NVIDIA H100 80GB HBM3", "sm_90a", "H100"), ("NVIDIA H100 PCIe", "sm_90a", "H100 PCIe"),
        ("NVIDIA H20", "sm_90", "H20"), ("NVIDIA A100-SXM4-80GB", "sm_80", "A100"), ("NVIDIA L40S", "sm_89", "L40S"),
        ("NVIDIA GeForce RTX 4090", "sm_89", "RTX 4090"), ("NVIDIA GeForce RTX 5090", "sm_120a", "RTX 5090"),
    ],
)  # fmt: skip
def test_a_driver_s_name_means_one_record(called: str, arch: str, name: str) -> None:
    found = device_of(arch, name=called)
    assert found is not None and found.name == name
    assert device_of("sm_75") is None


def test_more_of_anything_takes_no_less_time() -> None:
    """And a machine that does more of anything takes no longer."""
    chance = np.random.default_rng(3)
    for _ in range(200):
        speed, blocks = hopper_speed(int(chance.choice(CORES))), int(chance.integers(1, 2000))
        spans = {"steps": 7, "products": 20, "shared": 17, "loads": 17, "memory": 28, "lanes": 17, "exchange": 10}
        sizes = {name: float(2 ** chance.uniform(0, span)) for name, span in spans.items()}
        turns = -(-blocks // speed.cores)
        work = Work(
            size=2, blocks=blocks, resident=speed.cores, waves=turns, apart=0.3, fixed=46.0, ends=500.0, **sizes
        )
        base = cycles_of(work, speed)
        assert base > speed.rates.launch
        for name in (*sizes, "fixed", "ends"):
            more = replace(work, **{name: getattr(work, name) * 1.5 + 1})
            assert cycles_of(more, speed) >= base * (1 - 2e-3), (
                name
            )  # what heat costs is a share of all cycles of a step
        rates = replace(
            speed.rates, bytes=2 * speed.rates.bytes, lanes=2 * speed.rates.lanes, shared=2 * speed.rates.shared
        )
        assert cycles_of(work, replace(speed, rates=rates)) <= base


@pytest.mark.parametrize("cores", CORES)
@pytest.mark.parametrize(("N", "K"), [(4096, 4096), (2112, 7168), (6144, 4096), (28672, 8192), (24576, 1536)])
def test_tiles_of_every_machine_are_plausible(cores: int, N: int, K: int) -> None:
    """Enough blocks for the machine where there is work for them, no more waves than tiles twice as large would have, and no fewer
    cycles on fewer multiprocessors."""
    speed = hopper_speed(cores)
    for M in (1, 16, 63, 200, 777, 1100, 4096):
        tiles = fastest_alone(DenseProduct(N, K, speed=speed), M)[0][0]
        blocks = ceil_div(M, tiles.block_M) * ceil_div(N, tiles.block_N) * tiles.splits
        least = ceil_div(M, 64) * ceil_div(N, 64)
        assert blocks >= min(least, cores) // 2
        along_N, along_M = tiles.cluster or (1, 1)
        assert along_N * along_M * tiles.splits <= 8
        parts = DenseProduct(N, K, speed=speed).fastest_parts(M)
        assert sum(columns for columns, _ in parts) == N
        assert cycles_of_parts(parts, M, K, speed) <= cycles(tiles, M, N, K, speed)


def test_a_target_says_how_many_multiprocessors_and_so_which_gpu() -> None:
    assert speed_of(resolve("cuda -arch=sm_90a -cores=78")[1]) == hopper_speed(78) != hopper_speed(114)
    assert speed_of(resolve("cuda -arch=sm_90a")[1]) == hopper_speed()
    of_rest = speed_of(resolve("cuda -arch=sm_90a -cores=100")[1])
    assert of_rest.cores == 100 and of_rest.rates == hopper_speed().rates
