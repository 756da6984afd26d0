"""`T.im2col`: a tile of the matrix whose rows are the patches that a convolution's window sees."""

from __future__ import annotations

from tilewright.ir import INT32, Parallel, Var
from tilewright.language.buffers import BufferProxy
from tilewright.language.math import if_then_else
from tilewright.language.mistakes import NumberExpected, TileExpected
from tilewright.language.proxies import Scalar, Value, constant, describe
from tilewright.language.recording import called, check_tile_place, in_kernel, statement_here, word


@called("c2d_im2col")
@word
def im2col(
    img: BufferProxy,
    col: object,
    nhw_step: Value,
    c_step: Value,
    kernel: object,
    stride: object = 1,
    dilation: object = 1,
    pad: object = 0,
    eviction_policy: object = None,
    annotations: object = None,
) -> None:
    """``col = patches[nhw_step * rows : , c_step * columns : ]``: row n, y, x of `patches` is the window there,
    channels last.

    Threads gather it, in vectors if channels are contiguous; elements outside of the image are zero.

    Parameters
    ----------
    img : a tensor ``(images, height, width, channels)``.
    col : a shared tile or fragment ``(rows, columns)``.
    nhw_step, c_step : which tile of `patches` it is, counted in tiles.
    kernel, stride, dilation, pad : of a square window: its size, the steps between windows and between its points, the
        zeros around the image.
    eviction_policy, annotations : accepted for TileLang's sake.

    Examples
    --------
    >>> image = T.reshape(A, (1, 8, 8, 64))
    >>> T.c2d_im2col(image, shared, 0, 0, 3, 1, 1, 1)
    """
    what = "T.im2col"
    builder = in_kernel(what)
    check_tile_place(builder, what)
    if not isinstance(img, BufferProxy) or img.buffer.scope != "global" or img.ndim != 4:
        raise TileExpected(f"img of {what}", describe(img), "a tensor (images, height, width, channels)")
    if not isinstance(col, BufferProxy) or col.buffer.scope == "global" or col.ndim != 2:
        raise TileExpected(f"col of {what}", describe(col), "a tile (rows, columns)")
    window, step, gap, zeros = (
        constant(value, f"{name} of {what}")
        for name, value in (("kernel", kernel), ("stride", stride), ("dilation", dilation), ("pad", pad))
    )
    if min(window, step, gap) < 1 or zeros < 0:
        raise NumberExpected(
            what, "a window, stride and dilation from 1 up, and a pad from 0 up", str((window, step, gap, zeros))
        )
    sizes: tuple[Value, ...] = img.shape
    images, height, width, channels = sizes
    rows, columns = col.buffer.static_shape
    down = (height + (2 * zeros - gap * (window - 1) - 1)) // step + 1
    across = (width + (2 * zeros - gap * (window - 1) - 1)) // step + 1
    variables, span = (Var(INT32, "i"), Var(INT32, "j")), statement_here()
    frame = builder.push("T.Parallel", span)
    i, j = (Scalar(var, frame) for var in variables)
    place, deep = nhw_step * rows + i, c_step * columns + j
    y = place % (down * across) // across * step + deep // (window * channels) * gap - zeros
    x = place % across * step + deep // channels % window * gap - zeros
    inside = (y >= 0) & (x >= 0) & (y < height) & (x < width) & (place < images * down * across)
    inside = inside & (deep < window * window * channels)
    col[i, j] = if_then_else(inside, img[place // (down * across), y, x, deep % channels], 0)
    builder.append(Parallel(variables, (rows, columns), builder.pop(frame), span=span))
