"""Calls of a weight with any number of rows: each by the kernel that is chosen for its own rows, of few kernels in all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.kernels.recipe import Request
from tilewright.matmul import PackedWeight
from tilewright.matmul import product as products
from tilewright.matmul.product import Product
from tilewright.matmul.tiers import dispatch
from tilewright.quant import quantize

RNG = np.random.default_rng(4)


def test_rows_that_one_kernel_serves_prepare_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    held = PackedWeight.pack(quantize(RNG.standard_normal((256, 512)), "int4", group=128, scale_dtype="float16"))
    made: list[Any] = []
    prepare = products.prepare
    monkeypatch.setattr(products, "prepare", lambda *given: made.append(given[-1]) or prepare(*given))
    seen = {}
    for rows in (5, 7, 300, 301, 5, 300):
        x = np.zeros((rows, 512), np.float16)
        seen[rows] = Product.of(x, held, target="cuda -arch=sm_90a").prepared
    assert seen[5] is seen[7] and seen[300] is seen[301] and seen[5] is not seen[300]
    assert len(made) == 2


def test_the_choice_takes_the_calls_own_rows_and_the_machines_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    held = PackedWeight.pack(quantize(RNG.standard_normal((4096, 4096)), "int4", group=128, scale_dtype="float16"))
    for cores in (78, 132):
        x = np.zeros((777, 4096), np.float16)
        made: list[Any] = []
        monkeypatch.setattr(products, "prepare", lambda *given, made=made: made.append(given))
        Product.of(x, held, target=f"cuda -arch=sm_90a -cores={cores}")
        ((weight, request, machine, _, options),) = made
        assert request.rows == 777 and options["blocks"] <= cores == machine.arch.cores
        assert options == dispatch.chosen(weight, request, machine)


def test_tuning_is_kept_for_rows_up_to_the_next_power_of_two() -> None:
    request = Request("float16", "float16", rows=777)
    assert request.kind.rows == 1024 and request.kind == request.kind.kind
    assert [Request("float16", "float16", rows=rows).kind.rows for rows in (0, 1, 2, 3)] == [1, 1, 2, 4]
