"""CUDA's words for the emulator."""

from __future__ import annotations

from tilewright.ir import NAMED_BARRIERS
from tilewright.targets.cuda.arch import ARCHITECTURES, RESERVED_SHARED
from tilewright.targets.cuda.headers import DIRECTORIES
from tilewright.targets.cuda.instructions import ENGINE, WARP, WARPGROUP
from tilewright.targets.emulation import HOST, WORDS, Vocabulary

_WORDS = {
    "signal": "mbarrier", "async_copy": "cp_async", "box": "tma", "gmma": "wgmma", "group": "warpgroup",
    "load_matrix": "ldmatrix", "store_matrix": "stmatrix", "move_matrix": "movmatrix", "set_registers": "setmaxnreg",
    "grid_wait": "griddepcontrol_wait", "grid_launch": "griddepcontrol_launch_dependents", "peer_address": "mapa",
}  # fmt: skip
"""CUDA's words in names of the functions of the IR, and of what the emulator does and has."""

CUDA = Vocabulary(
    name="cuda",
    folder=HOST / "cuda",
    shared=(WORDS, *DIRECTORIES),
    generated=r"tilewright_wgmma_\w+\.cuh",
    talks=r"\b(tma_reduce_add|bulk_reduce_add|atomic_\w+|load_acquire|store_release|add_release|grid_sync|volatile)\b",
    threads=2048,
    shared_bytes=228 << 10,
    launch_registers=ARCHITECTURES["sm_90a"].launch_registers,
    registers_least=24,
    registers_most=256,
    registers_step=8,
    reserved_bytes=RESERVED_SHARED,
    shared_base=RESERVED_SHARED,
    named_barriers=NAMED_BARRIERS,
    group_warps=WARPGROUP // WARP,
    copy_engine=ENGINE,
    signal_most=(1 << 20) - 1,
    words=_WORDS,
)
"""The words of `docs/cuda_vocabulary.md`, on a multiprocessor of Hopper."""
