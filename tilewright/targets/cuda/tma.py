"""Maps of tensors as NVIDIA's copy engine reads them, encoded by the driver."""

from __future__ import annotations

import ctypes
import functools

from tilewright.targets.cuda.driver import require_driver
from tilewright.targets.gpu.copies.tensor_maps import BoxDescriptor

_TYPES = {
    "uint8": 0, "int8": 0, "bool": 0, "float8_e4m3fn": 0, "float8_e5m2": 0, "float8_e8m0fnu": 0, "float8_e4m3fnuz": 0,
    "float8_e5m2fnuz": 0, "float8_e4m3b11fnuz": 0, "float6_e2m3fn": 0, "float6_e3m2fn": 0, "uint16": 1, "int16": 1,
    "uint32": 2, "int32": 3, "uint64": 4, "int64": 5, "float16": 6,
    "float32": 7, "float64": 8, "bfloat16": 9, "tfloat32": 7,
}  # fmt: skip
"""CUtensorMapDataType by dtype.  8-bit floats travel as bytes, and tfloat32 as float32: the engine's own tfloat32 (11)
rounds and flushes subnormals on the way, which no other copy does."""

_BRINGS_256_BYTES = 3
"""CU_TENSOR_MAP_L2_PROMOTION_L2_256B: what a load brings into the second-level cache."""


@functools.lru_cache(maxsize=4096)
def encoded(described: BoxDescriptor) -> bytes:
    """The 128 bytes that the hardware reads, made once per distinct tensor and box.

    Raises DriverError without a GPU's driver."""
    driver = require_driver("encoding a tensor map")
    rank = len(described.extents)
    storage = ctypes.create_string_buffer(128 + 64)
    base = ctypes.addressof(storage)
    aligned = (base + 63) // 64 * 64
    result = driver.library.cuTensorMapEncodeTiled(
        ctypes.c_void_p(aligned),
        _TYPES[described.dtype.name],
        rank,
        ctypes.c_void_p(described.address),
        (ctypes.c_uint64 * rank)(*described.extents),
        (ctypes.c_uint64 * max(rank - 1, 1))(*described.strides),
        (ctypes.c_uint32 * rank)(*described.box),
        (ctypes.c_uint32 * rank)(*described.element_strides),
        0,
        int(described.swizzle),
        _BRINGS_256_BYTES,
        int(described.nan_fill),
    )
    driver.check(result, "cuTensorMapEncodeTiled", f"describing {described}")
    return ctypes.string_at(aligned, 128)
