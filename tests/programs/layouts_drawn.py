"""Fragments of matrix instructions built up from one instruction's, and drawn."""

import os
import tempfile

import tilelang.language as T
from tilelang.tools import plot_layout


def shared_16x16_to_mma_32x8(i, j):
    thread_id = 4 * (i % 8) + (j % 8) // 2
    return thread_id, 4 * (j // 8) + (i // 8) * 2 + (j % 2)


def make_mma_load_base_layout(dtype="float16", matrix="A"):
    def forward_thread(i, j):
        lane_id, _ = shared_16x16_to_mma_32x8(i, j)
        return lane_id

    def forward_index(i, j):
        _, local_id = shared_16x16_to_mma_32x8(i, j)
        return local_id

    return T.Fragment([16, 16], forward_thread_fn=forward_thread, forward_index_fn=forward_index)


block_rows, block_cols, warp_rows, warp_cols, chunk = 2, 2, 4, 4, 2
base_layout = make_mma_load_base_layout()
print(base_layout)
warp_layout = base_layout.repeat([block_rows, 1], repeat_on_thread=True).replicate(block_cols)
block_layout = warp_layout.repeat([warp_rows, chunk], repeat_on_thread=False, lower_dim_first=False)
print(warp_layout)
print(block_layout)
assert base_layout.get_thread_size() == 32
assert warp_layout.get_thread_size() == 128, warp_layout.get_thread_size()
assert list(block_layout.get_input_shape()) == [128, 32]
with tempfile.TemporaryDirectory() as d:
    plot_layout(base_layout, save_directory=d, name="base_layout", formats="svg")
    print(os.listdir(d))
    plot_layout(block_layout, save_directory=d)
    print(sorted(os.listdir(d)))
