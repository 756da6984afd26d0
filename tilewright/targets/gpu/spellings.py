"""How types and functions are spelled in emitted CUDA text: the names of `docs/cuda_vocabulary.md`."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.targets.c_family import Spellings

TYPES: Mapping[str, str] = {
    "bool": "bool", "float16": "tw::half", "bfloat16": "tw::bfloat16", "tfloat32": "tw::tfloat32", "float32": "float",
    "float64": "double", "float8_e4m3fn": "tw::float8_e4m3", "float8_e5m2": "tw::float8_e5m2",
    "float8_e8m0fnu": "tw::float8_e8m0", "float4_e2m1fn": "tw::float4_e2m1", "float8_e4m3fnuz": "tw::float8_e4m3fnuz",
    "float8_e5m2fnuz": "tw::float8_e5m2fnuz", "float8_e4m3b11fnuz": "tw::float8_e4m3b11fnuz",
    "float6_e2m3fn": "tw::float6_e2m3", "float6_e3m2fn": "tw::float6_e3m2",
    **{f"{kind}{bits}": f"{kind}{max(bits, 8)}_t" for kind in ("int", "uint") for bits in (1, 2, 4, 8, 16, 32, 64)},
}  # fmt: skip
"""C++ type of one element; sub-byte integers travel in a byte each."""

KEYWORDS = frozenset(
    """
alignas alignof asm auto bool break case catch char class const constexpr continue decltype default delete do double
else enum explicit extern false float for friend goto if inline int long mutable namespace new operator private
protected public register return short signed sizeof static struct switch template this throw true try typedef
typename union unsigned using virtual void volatile while half tw threadIdx blockIdx blockDim gridDim shared_memory
int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t
""".split()  # noqa: SIM905
)
"""Names that the author's variables may not take: C++'s, and those of the device and of the generated code."""

SPELLINGS = Spellings(TYPES, KEYWORDS, unroll="#pragma unroll")


def spelled(name: str, words: Mapping[str, str]) -> str:
    """The name that a maker gives a function of the IR, or what the emulator has, in the maker's words for some of its
    parts.

    Examples
    --------
    >>> spelled("async_copy_signal_arrive_noinc", {"signal": "mbarrier", "async_copy": "cp_async"})
    'cp_async_mbarrier_arrive_noinc'
    """
    made = f"_{name}_"
    for word, own in words.items():
        made = made.replace(f"_{word}_", f"_{own}_")
    return made[1:-1]
