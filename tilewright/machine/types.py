"""Number types that matrix instructions take, by short names."""

from __future__ import annotations

from tilewright.ir.dtypes import ALL

F16, BF16, TF32, F32, F64 = (ALL[name] for name in ("float16", "bfloat16", "tfloat32", "float32", "float64"))
S4, S8, U8, S32 = (ALL[name] for name in ("int4", "int8", "uint8", "int32"))
E4M3, E5M2 = ALL["float8_e4m3fn"], ALL["float8_e5m2"]
