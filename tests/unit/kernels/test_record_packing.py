"""Plain codes, scales and zeros into records by a kernel, against `FragmentRecords.pack`, byte for byte."""

import numpy as np
import pytest

from tilewright.formats import pack_plain
from tilewright.ir.dtypes import ALL
from tilewright.kernels.record_packing import order_of, pack_records
from tilewright.machine.fragment_records import FragmentRecords
from tilewright.options import override

F16, BF16 = ALL["float16"], ALL["bfloat16"]


@pytest.mark.parametrize(
    "N, K, bits, form, target",
    [
        (40, 300, 4, FragmentRecords(4, F16, F16, F16, 32), "cuda -arch=sm_80"),
        (33, 129, 8, FragmentRecords(8, BF16, ALL["float8_e8m0fnu"]), "cuda -arch=sm_90a"),
        (20, 130, 3, FragmentRecords(4, F16, F16), "cpu"),
        (70, 200, 2, FragmentRecords(2, ALL["int8"], ALL["int8"], ALL["int8"]), "cpu"),
        (17, 40, 4, FragmentRecords(4, F16), "cpu"),
    ],
    ids=str,
)
def test_records(N, K, bits, form, target):
    rng = np.random.default_rng(0)
    codes, table = (rng.integers(0, 1 << bits, shape).astype(np.uint8) for shape in ((N, K), 1 << bits))
    parts, lines = {"codes": table[codes]}, []
    for name, of in (("scales", form.scale), ("zeros", form.zero)):
        if of is not None:
            raw = rng.integers(1, 120, (N, -(-K // form.group))).astype(f"uint{of.bits}")
            parts[name] = raw.view(of.numpy)
            lines.append(raw)
    with override(target=target):
        kernel = pack_records(form, bits)
    found = np.full(form.shape(N, K), 77, np.uint32)
    run = kernel if target == "cpu" else kernel.emulate
    run(pack_plain(codes, bits), K, table, order_of(form), *lines, found)
    assert np.array_equal(found, form.pack(parts))
