"""Architectures: limits, occupancy against the manual's examples, and how targets name them."""

from __future__ import annotations

import pytest

from tilewright.targets.base import UnknownTarget
from tilewright.targets.cuda import arch as architectures
from tilewright.targets.cuda.arch import ARCHITECTURES, arch, named


@pytest.mark.parametrize(
    ("name", "shared", "warps", "blocks"),
    [("sm_80", 166912, 64, 32), ("sm_86", 101376, 48, 16), ("sm_89", 101376, 48, 24), ("sm_90a", 232448, 64, 32), ("sm_120a", 101376, 48, 24)],
)  # fmt: skip
def test_limits(name, shared, warps, blocks):
    found = ARCHITECTURES[name]
    assert found.shared_bytes == shared
    assert (found.warps_per_multiprocessor, found.blocks_per_multiprocessor) == (warps, blocks)


@pytest.mark.parametrize(
    ("threads", "registers"), [(128, 255), (256, 255), (384, 168), (512, 128), (640, 96), (768, 80), (1024, 64)]
)
def test_registers_that_one_block_can_have(threads, registers):
    found = ARCHITECTURES["sm_90a"]
    assert found.launch_registers(threads) == registers
    assert found.occupancy(threads, registers, 0) >= 1
    if registers < 255:
        assert found.occupancy(threads, registers + 8, 0) == 0


def test_two_blocks_share_the_registers():
    assert ARCHITECTURES["sm_90a"].launch_registers(384, 2) == 80


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "barriers", "blocks"),
    [
        (128, 32, 0, 1, 16),  # warps: 64 / 4
        (256, 128, 0, 1, 2),  # registers
        (128, 32, 76 << 10, 1, 2),  # 77 KB each of 228
        (128, 32, 0, 16, 4),  # named barriers up to 15: seen on an H200
        (128, 32, 232448, 1, 1),
        (128, 32, 232449, 1, 0),
        (32, 16, 0, 1, 32),
    ],
)
def test_occupancy(threads, registers, shared, barriers, blocks):
    assert ARCHITECTURES["sm_90a"].occupancy(threads, registers, shared, barriers) == blocks


def test_a_name_may_leave_out_its_prefix_and_cores_may_be_said():
    found = arch({"arch": "90a", "cores": "7"})
    assert (found.name, found.cores, found.target) == ("sm_90a", 7, "cuda")
    assert found.has("wgmma") and not named("sm_90").has("wgmma")


def test_capabilities_grow():
    assert named("sm_80").copy_engine is None and named("sm_120").copy_engine is not None
    assert named("sm_89").has("mma_fp8") and not named("sm_90a").has("mma_fp8")
    assert named("sm_100a").vector_bytes == 32 and named("sm_90a").vector_bytes == 16


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"arch": "sm_99"}, "no architecture 'sm_99'", "sm_90"),
        ({"arch": "sm_90a", "speed": "1"}, "no option 'speed'", "arch, cores"),
        *(
            ({"arch": "sm_90a", "cores": cores}, f"cores={cores} is no number of multiprocessors: a GPU has one", "132")
            for cores in ("many", "0", "-1", "²", "1.5")
        ),
    ],
)
def test_unknown_names_are_refused(options, message, hint):
    with pytest.raises(UnknownTarget, match=message) as caught:
        arch(options)
    assert hint in str(caught.value)


def test_no_name_and_no_device(monkeypatch):
    monkeypatch.setattr(architectures, "find_driver", lambda: None)
    with pytest.raises(UnknownTarget, match="names no architecture") as caught:
        arch({})
    assert "-arch=sm_90a" in str(caught.value) and "kernel.emulate(...)" in str(caught.value)


class FakeDriver:
    """A machine with one device."""

    def __init__(self, major, minor):
        self.values = {75: major, 76: minor, 16: 77, 38: 1 << 20}

    def device_count(self):
        return 1

    def name(self, device):
        return "a GPU that no record names"

    def attribute(self, device, number):
        return self.values.get(number, 0)


@pytest.mark.parametrize(
    ("capability", "name"),
    [((8, 0), "sm_80"), ((8, 7), "sm_86"), ((9, 0), "sm_90a"), ((10, 0), "sm_100a"), ((12, 0), "sm_120a"), ((12, 1), "sm_120")],
)  # fmt: skip
def test_detection_takes_the_best_code_that_runs(monkeypatch, capability, name):
    monkeypatch.setattr(architectures, "find_driver", lambda: FakeDriver(*capability))
    found = architectures.detect()
    assert (found.name, found.cores, found.l2_bytes) == (name, 77, 1 << 20)
    assert found.matrix_instructions and found.copy_instructions


def test_what_is_built_for_an_h200_elsewhere_is_found_on_one(monkeypatch):
    driver = FakeDriver(9, 0)
    driver.values |= {16: 132, 38: 62_914_560}  # the driver of an H200 says so (27 November 2026)
    driver.name = lambda device: "NVIDIA H200"
    monkeypatch.setattr(architectures, "find_driver", lambda: driver)
    assert architectures.detect() == architectures.arch({"arch": "sm_90a", "cores": "132"})


def test_a_device_without_code_is_no_device(monkeypatch):
    monkeypatch.setattr(architectures, "find_driver", lambda: FakeDriver(7, 5))
    assert architectures.detect() is None


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_registers_are_loaded_and_stored_by_every_power_of_two(name):
    """Numbers of every size have an access of one number, and vectors of them one of each width up to the widest."""
    sizes = {one.function: one.bytes for one in named(name).copy_instructions}
    for space, widest in (("", 16), ("_global", named(name).vector_bytes)):
        assert (
            sizes[f"load{space}"] == sizes[f"store{space}"] == tuple(widest >> by for by in range(widest.bit_length()))
        )
