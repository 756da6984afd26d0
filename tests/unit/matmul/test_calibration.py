"""Calibrating a machine: what is measured makes the model right, is kept for the GPU's name, and rubbish is not taken."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright.cli.calibrate import comparison
from tilewright.kernels.roofline import speed_of
from tilewright.kernels.tile_choice import DenseProduct
from tilewright.kernels.tile_launches import cycles_of_parts
from tilewright.machine.nvidia import MEASURED, as_measured, device_of, keep
from tilewright.matmul.calibration import BOUND, COPIED, PLAIN, SMALL, calibrated
from tilewright.options import override
from tilewright.targets.registry import resolve


def test_rates_are_found_again_from_times_of_a_machine_that_has_them() -> None:
    arch = resolve("cuda -arch=sm_90a")[1]
    assert arch.rates is not None
    true = replace(arch.rates, cycles=1.5e9, bytes=3e12, launch=9000.0)
    there = speed_of(replace(arch, rates=true))

    def measure(kernel: Any, shapes: tuple[tuple[int, ...], ...]) -> float:
        if len(shapes) == 1:
            return 8 * COPIED / (PLAIN * true.bytes)
        (M, K), (N, _), _ = shapes
        return cycles_of_parts(DenseProduct(N, K, "bfloat16", there).fastest_parts(M), M, K, there) / true.cycles

    found = calibrated(arch, measure)
    for name in ("cycles", "bytes", "launch"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=0.05), name
    assert (found.products, found.shared, found.cache) == (true.products, true.shared, true.cache)
    assert len(comparison(arch.rates, found)) == len(MEASURED) and BOUND[0] > SMALL[0]


def test_machines_without_warpgroups_have_their_memory_measured() -> None:
    arch = resolve("cuda -arch=sm_80")[1]
    assert arch.rates is not None
    found = calibrated(arch, lambda kernel, shapes: 8 * COPIED / (PLAIN * 1.5e12))
    assert found == replace(arch.rates, bytes=pytest.approx(1.5e12))


def test_what_was_measured_is_kept_for_a_name(tmp_path: Path) -> None:
    device = device_of("sm_90", name="NVIDIA H20")
    assert device is not None
    with override(cache_dir=tmp_path):
        assert as_measured("NVIDIA H20", device.rates) == device.rates
        path = keep("NVIDIA H20", replace(device.rates, cycles=1.7e9, bytes=3.9e12))
        found = as_measured("NVIDIA H20", device.rates)
        assert (found.cycles, found.bytes, found.products) == (1.7e9, 3.9e12, device.rates.products)
        assert "calibrate" in found.source and as_measured("NVIDIA H200", device.rates) == device.rates
        sound = path.read_text()
        for rubbish in (
            "",
            sound.replace("H20", "H200"),  # made for another GPU
            sound[:-4],
            "[]",
            "{}",
            '{"cycles": 0, "bytes": 1, "launch": 1}',
            '{"cycles": NaN, "bytes": 1, "launch": 1}',
        ):
            path.write_text(rubbish)
            assert as_measured("NVIDIA H20", device.rates) == device.rates
        path.unlink()
        os.mkfifo(path)  # nobody writes to it: who read it would wait
        assert as_measured("NVIDIA H20", device.rates) == device.rates
