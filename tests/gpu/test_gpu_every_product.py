"""Every format, scheme and type of activations on the machine at hand (a processor too: ``-m gpu``), and every number of rows."""

import pytest

torch = pytest.importorskip("torch")

from every_product import CASES, Case, Given  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.proof]

ROWS = (1, 9, 17, 33, 65, 129, 257)
"""One for each kind of kernel; a case takes three."""

EACH_ROW = (
    Case("int4", "g128", "float16"), Case("uint4", "zeros", "bfloat16"), Case("uint4", "fractional zeros", "float16"),
    Case("uint4", "rescaled zeros", "float16"), Case("int8", "channel", "float16"), Case("int1", "g32 bfloat16", "bfloat16"),
    Case("int2", "g16", "float16"), Case("int3", "act-order", "float16"), Case("nf4", "g128", "bfloat16"),
    Case("e2m1", "e8m0", "bfloat16"), Case("e2m1", "e4m3", "float16"), Case("e4m3", "blocks", "bfloat16"),
    Case("int4", "divisors", "float16"), Case("int8", "channel", "int8"), Case("int8", "codes", "int8"), Case("int4", "g128", "int8"),
    Case("uint4", "zeros", "int8"), Case("int4", "two levels", "int8"), Case("ternary", "tensor", "int8"),
    Case("uint2", "fractional zeros", "int8"), Case("int4", "codes", "uint8"), Case("e4m3", "channel", "float8_e4m3fn"),
    Case("e4m3", "blocks", "float8_e4m3fn"), Case("int4", "g128", "float8_e4m3fn"), Case("e2m1", "e8m0", "float8_e4m3fn"),
    Case("int8", "channel", "float16 to int8"), Case("int4", "act-order", "float16 to int8"),
    Case("int4", "g32 bfloat16", "bfloat16 to float8_e4m3fn"), Case("int4", "g128", "float32"), Case("uint3", "g10", "float16"),
    Case("int4", "codes", "int4"), Case("uint2", "packed zeros", "int4"), Case("nf4", "g128", "float64"),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_pair_of_format_scheme_and_activations(case):
    given = Given(case, max(ROWS))
    for place in range(3):
        given.run(ROWS[(case.seed + place * 2) % len(ROWS)])


@pytest.mark.parametrize("case", EACH_ROW, ids=str)
def test_every_number_of_rows(case):
    given = Given(case, 300)
    for rows in range(1, 301):
        given.run(rows)
