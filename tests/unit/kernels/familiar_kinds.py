"""All programs of the `familiar_*` files by name: the tests of this folder and those on the GPU run them."""

from functools import partial

import familiar_convolutions
import familiar_gathers

PROGRAMS = {
    **{f"rows, {style}": partial(familiar_gathers.rows_of_a_list, style) for style in familiar_gathers.STYLES},
    "convolution": familiar_convolutions.convolution,
    "depthwise convolution": familiar_convolutions.depthwise,
}
