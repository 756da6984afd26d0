"""From a weight as users have it, numbers or codes in arrays of any type, to codes of its format."""

from __future__ import annotations

import numpy as np

from tilewright.errors import CannotQuantize, InvalidCode, NotRepresentable, WrongArgumentDType
from tilewright.formats import Format


def codes_of(weight: np.ndarray, of: Format) -> np.ndarray:
    """Codes of a weight (of dense formats the elements themselves), none of them rounded or cut off: for integer
    formats of its numbers, -8 to 7 for int4; for the others of codes (integers), values (floats) or elements of the
    format's own type. Raises NotRepresentable, InvalidCode for what the format does not have, named with its index;
    CannotQuantize for no real numbers."""
    if weight.dtype.kind in "cSUOMm" or weight.dtype.names is not None:
        raise CannotQuantize(f"a weight of {weight.dtype} has no codes", hint="real numbers do")
    if of.is_dense:
        return _elements(weight, of)
    if of.dtype is not None and weight.dtype == of.dtype.numpy and of.kind == "float":
        return weight.view(np.uint8)
    if of.kind in ("int", "uint") or weight.dtype.kind not in "iu":
        return of.exact(weight.astype(np.float64))
    codes = within(weight, of, 0)
    of.check(codes)
    return codes


def stored_codes(codes: np.ndarray, of: Format) -> np.ndarray:
    """Codes as bytes of their own, of codes in an array of any integers; those of signed formats may be the numbers
    themselves. Raises InvalidCode for one that the format does not have, WrongArgumentDType for what are no
    integers."""
    if codes.dtype.kind not in "iub":
        raise WrongArgumentDType(
            f"the codes are {codes.dtype}, expected integers", hint="transform_weight takes numbers"
        )
    signed = of.kind == "int" or (of.bits == 8 and codes.dtype == np.int8)
    found = within(codes, of, -(1 << of.bits - 1) if signed else 0)
    of.check(found)
    return found


def within(codes: np.ndarray, of: Format, least: int) -> np.ndarray:
    """Integers from `least` to the largest code as codes.  Raises InvalidCode."""
    wrong = codes >= 1 << of.bits if codes.dtype.itemsize > 1 or of.bits < 8 else np.zeros(codes.shape, bool)
    if codes.dtype.kind == "i":
        wrong = wrong | (codes < least)
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise InvalidCode(int(codes[place]), place, of.name, f"0 to {(1 << of.bits) - 1}")
    return codes.astype(np.uint8) & np.uint8((1 << of.bits) - 1)


def zero_points(packed: np.ndarray, rows: int, bits: int) -> np.ndarray:
    """``[N, K / g]`` zeros of BitBLAS's packed ones, ``[K / g, N * bits / 8]``."""
    stream = np.unpackbits(packed.view(np.uint8), axis=-1, count=rows * bits, bitorder="little")
    return np.packbits(stream.reshape(len(packed), rows, bits), axis=-1, bitorder="little")[..., 0].T


def _elements(weight: np.ndarray, of: Format) -> np.ndarray:
    """Numbers in a dense format's type.  Raises NotRepresentable for those beyond it."""
    with np.errstate(over="ignore"):
        made = weight.astype(of.carrier)
    beyond = ~np.isfinite(made.astype(np.float64)) & np.isfinite(weight.astype(np.float64))
    if beyond.any():
        place = tuple(int(i) for i in np.argwhere(beyond)[0])
        raise NotRepresentable(f"{float(weight[place]):g}", place, of.name, f"{of.minimum:g} to {of.maximum:g}")
    return made
