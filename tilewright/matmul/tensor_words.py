"""What others' code asks of a layer's weight as of a tensor: its sizes, its device, its numbers."""

from __future__ import annotations

from typing import Any, overload

import numpy as np

from tilewright import errors
from tilewright.libraries import torch
from tilewright.matmul.arrays import device_of
from tilewright.runtime.tensors import is_torch


class TensorWords:
    """A weight of codes, to those who take it for the matrix that the codes stand for.

    Sizes are the matrix's. What gives numbers gives new ones, float32, each time: writing to them changes no code.
    """

    shape: tuple[int, int]
    held: dict[str, Any]
    ndim, grad = 2, None

    def to_dense(self) -> np.ndarray:
        """The matrix, ``[N, K]`` float64."""
        raise NotImplementedError

    @property
    def place(self) -> str:
        """The name of the device that it is on: ``"cpu"``, ``"cuda:0"``."""
        return device_of(self.held["codes"])

    @property
    def device(self) -> torch.device | str:
        """Where it is, as torch says it of a tensor; ``"cpu"`` for NumPy's arrays."""
        codes = self.held["codes"]
        return codes.device if is_torch(codes) else self.place

    @property
    def requires_grad(self) -> bool:
        """Codes have no gradient."""
        return False

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        self.requires_grad_(wanted)

    def requires_grad_(self, wanted: bool = True) -> TensorWords:
        """The weight itself, which wants no gradient. Raises CannotQuantize where it is to want one."""
        if wanted:
            raise errors.CannotQuantize(
                "codes have no gradient", hint="train an adapter beside the layer, or dequantize the model"
            )
        return self

    def dim(self) -> int:
        """Two."""
        return self.ndim

    @overload
    def size(self) -> tuple[int, int]: ...
    @overload
    def size(self, dim: int) -> int: ...
    def size(self, dim: int | None = None) -> int | tuple[int, int]:
        """The extents, or one of them."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """How many numbers the matrix has."""
        return self.shape[0] * self.shape[1]

    def detach(self) -> torch.Tensor:
        """The matrix, a float32 tensor of torch ``[N, K]``."""
        return torch.from_numpy(self.to_dense().astype(np.float32)).to(self.device)

    float = detach

    @property
    def T(self) -> torch.Tensor:
        """The matrix's transpose, float32."""
        return self.detach().T

    def t(self) -> torch.Tensor:
        """As `T`."""
        return self.T
