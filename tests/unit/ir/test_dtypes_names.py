"""Names of number types: every spelling of every library finds its record."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilewright.errors import UnknownDType
from tilewright.ir.dtypes import ALL, dtype


@pytest.mark.parametrize("record", ALL.values(), ids=str)
def test_a_record_is_found_by_its_name_and_its_text(record) -> None:  # type: ignore[no-untyped-def]
    assert dtype(record.name) is record and dtype(record) is record
    assert dtype(f"{record.name}x4") == record.with_lanes(4) and str(record.with_lanes(4)) == f"{record.name}x4"


@pytest.mark.parametrize(
    "name", ["bool", "int8", "uint16", "int32", "int64", "uint64", "float16", "float32", "float64"]
)
def test_numpy_types_are_found(name: str) -> None:
    assert dtype(np.dtype(name)).name == name
    assert dtype(getattr(np, name if name != "bool" else "bool_")).name == name


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn"])
def test_ml_dtypes_are_found(name: str) -> None:
    assert dtype(np.dtype(getattr(ml_dtypes, name))).name == name


def test_python_types_are_found() -> None:
    assert [dtype(kind).name for kind in (bool, int, float)] == ["bool", "int32", "float32"]


@pytest.mark.parametrize("wrong", ["float33", np.dtype("complex64"), object(), None, 3, [1], {}, slice(1)])
def test_what_is_no_number_type_is_refused(wrong: object) -> None:
    with pytest.raises(UnknownDType):
        dtype(wrong)


def test_a_misspelt_name_gets_a_suggestion() -> None:
    with pytest.raises(UnknownDType) as caught:
        dtype("float8_e8m0fnx")
    assert str(caught.value).startswith("unknown dtype 'float8_e8m0fnx'\n  help: did you mean 'float8_e8m0fnu'")
