"""``tilelang.utils.sparse``: 2:4 sparse tensors of torch's, and what is kept of them."""

from __future__ import annotations

from tilewright.formats import sparse
from tilewright.language.dtypes import NumberType
from tilewright.libraries import torch


def _group(dtype: object) -> int:
    """Neighbours of which half is kept: matrix units take pairs of 32-bit floats."""
    return sparse.PAIR if NumberType(dtype) == "float32" else sparse.GROUP


def get_e_factor(a_dtype: object, meta_dtype: object) -> int:
    """Columns of a dense row that one number of the metadata speaks of."""
    return NumberType(meta_dtype).bits // 4 * _group(a_dtype)


def compress(
    A: torch.Tensor, meta_dtype: object = None, transposed: bool = False, **_: object
) -> tuple[torch.Tensor, torch.Tensor]:
    """What is kept of a sparse tensor, and where it stood.

    Parameters
    ----------
    A : of M rows, half of whose numbers differ from zero.
    meta_dtype : of the second; int16 where None.  A bool in this place is `transposed`, which TileLang had here once.
    transposed : `A` is of K rows, and so is what is kept; the second is of M rows all the same.
    """
    if isinstance(meta_dtype, bool):
        transposed, meta_dtype = meta_dtype, None
    rows = (A.t() if transposed else A).detach().cpu().contiguous()
    numbers, metadata = sparse.compress(rows.double().numpy(), _group(A.dtype))
    kept = torch.from_numpy(numbers)
    words = torch.from_numpy(metadata.copy()).view(
        torch.int16 if meta_dtype is None else NumberType(meta_dtype).as_torch()
    )
    return (kept.t().contiguous() if transposed else kept).to(A.dtype).to(A.device), words.to(A.device)


def _pruned(dense: torch.Tensor, dtype: torch.dtype | None, transposed: bool) -> torch.Tensor:
    group = _group(dtype)
    groups = dense.view(dense.shape[0], -1, group)
    least = groups.abs().double().topk(group // 2, dim=-1, largest=False).indices
    made = groups.scatter(-1, least, torch.zeros_like(groups)).view(dense.shape)
    return (made.t().contiguous() if transposed else made).to(dtype)


def randn_semi_sparse(
    M: int, K: int, dtype: torch.dtype | None = None, device: str | torch.device = "cuda", transposed: bool = False
) -> torch.Tensor:
    """A sparse tensor of normal numbers."""
    return _pruned(torch.randn((M, K), device=device), torch.float16 if dtype is None else dtype, transposed)


def randint_semi_sparse(
    M: int,
    K: int,
    low: int,
    high: int,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cuda",
    transposed: bool = False,
) -> torch.Tensor:
    """A sparse tensor of integers from `low` to below `high`."""
    return _pruned(torch.randint(low, high, (M, K), device=device), torch.int32 if dtype is None else dtype, transposed)


def arange_semi_sparse(
    M: int, K: int, dtype: torch.dtype | None = None, device: str | torch.device = "cuda", transposed: bool = False
) -> torch.Tensor:
    """A sparse tensor of the numbers from 0 on."""
    made = torch.arange(M * K, device=device).view(M, K)
    return _pruned(made, torch.float16 if dtype is None else dtype, transposed)
