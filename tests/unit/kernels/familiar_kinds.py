"""All programs of the `familiar_*` files by name: the tests of this folder and those on the GPU run them."""

from functools import partial

import familiar_attention as attention
import familiar_backward
import familiar_block_attention as blocks
import familiar_chunks as chunks
import familiar_convolutions as convolutions
import familiar_counts as counts
import familiar_elements as elements
import familiar_experts as experts
import familiar_gathers as gathers
import familiar_gradients as gradients
import familiar_lists as lists
import familiar_low_bit as low_bit
import familiar_products as products
import familiar_rows as rows
import familiar_scans as scans
import familiar_sparse_attention as sparse

PROGRAMS = {
    **{f"rows, {style}": partial(gathers.rows_of_a_list, style) for style in gathers.STYLES},
    "convolution": convolutions.convolution,
    "depthwise convolution": convolutions.depthwise,
    "latent decode": attention.latent_decode,
    "paged decode": attention.paged_decode,
    "ragged sequences": attention.ragged_sequences,
    "attention backward": familiar_backward.backward,
    "chosen rows": sparse.chosen_rows,
    "chosen blocks": sparse.chosen_blocks,
    "retention": scans.retention,
    "chunk scan": scans.chunk_scan,
    "chunk state": scans.chunk_state,
    "fused experts": experts.fused_experts,
    "groups with offsets": experts.groups_with_offsets,
    "expert in a scalar": experts.expert_in_a_scalar,
    "expert in an array": partial(experts.expert_in_a_scalar, array=True),
    "expert of a tile": partial(experts.expert_in_a_scalar, persistent=True),
    "stream of steps": products.stream_of_steps,
    "parts of k": products.parts_of_k,
    "four-bit floats": products.four_bit_floats,
    "largest of rows": rows.largest,
    "radix select": rows.radix_select,
    "running sums": rows.running_sums,
    "layer norm backward": rows.layer_norm_backward,
    "cross entropy": rows.cross_entropy,
    "rotary embedding": rows.rotary,
    "narrow cast": rows.narrow_cast,
    "transposes": elements.transposes,
    "vectors of threads": elements.vectors,
    "product with a row": elements.row_product,
    "seer attention": blocks.seer,
    "listed blocks": blocks.gqa_ragged_list,
    "blocks and columns": lists.blocks_and_columns,
    "latent pages": lists.latent_pages,
    "window and sinks": blocks.sink_window,
    "attention backward in two": gradients.bwd_no_atomics,
    "chosen blocks backward": gradients.nsa_backward,
    "retention backward": gradients.retnet_backward,
    "gated chunks": chunks.gla_chunk,
    "delta rule": chunks.delta_wy,
    "states of chunks": chunks.linear_attention_chunks,
    "sums over blocks": counts.prefix_blocks,
    "routing": counts.moe_routing,
    "histogram": counts.histogram,
    "quantised cache": counts.kv_quant,
    "experts of four bits": low_bit.mxfp4_grouped,
    "packed additions": low_bit.splitk_packed,
    "words of nibbles": low_bit.w4_groupwise_zeros,
    "scaled blocks": low_bit.fp8_two_level,
}

UNORDERED = (
    "attention backward",
    "fused experts",
    "layer norm backward",
    "packed additions",
    "radix select",
    "routing",
)
"""Programs that add floats atomically, or count so: their order is not theirs to say."""
