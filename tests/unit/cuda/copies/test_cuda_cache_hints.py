"""cp.async with a hint to the L2 cache: what the machine's assembler makes of it must be instructions that there are."""

from __future__ import annotations

import re

import pytest

import tilewright
import tilewright.language as T
from tilewright.targets.cuda.compiler import compile_text


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("dtype", "columns", "stages"), [("float16", 64, 2), ("float16", 30, 0), ("int8", 36, 0)])
def test_shared_addresses_and_policies_take_no_uniform_register_together(dtype, columns, stages, arch):
    """``LDGSTS [R+UR], desc[UR1]`` is what ptxas 13.0 encoded for conditional copies with a policy: illegal on an H200."""

    @T.prim_func
    def hinted(X: T.Tensor((60, columns), dtype), O: T.Tensor((64, columns), dtype)):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((16, columns), dtype)
            for k in T.Pipelined(4, num_stages=stages):
                T.copy(X[k * 16 : k * 16 + 16, 0:columns], s, eviction_policy="evict_first")
                for i, j in T.Parallel(16, columns):
                    O[k * 16 + i, j] = s[i, j]

    kernel = tilewright.compile(hinted, target=f"cuda -arch={arch}")
    assert "_hint<" in kernel.get_kernel_source()
    copies = re.findall(r"LDGSTS[^;]*", compile_text(kernel.get_kernel_source(), kernel.arch).machine_code())
    assert copies and not [one for one in copies if re.search(r"\+UR\d+\][^;]*desc\[UR1\]", one) and "UR0]" in one]
