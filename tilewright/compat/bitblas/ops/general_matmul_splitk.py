"""BitBLAS's ``MatmulWithSplitK``: how K is divided among blocks is the kernel's choice here, and tuning's."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.compat.bitblas.ops.general_matmul import Matmul, MatmulConfig
from tilewright.errors import Unsupported


@dataclass(frozen=True)
class MatmulConfigWithSplitK(MatmulConfig):
    """`MatmulConfig` with the parts that K is divided into, which is a wish.

    Raises
    ------
    Unsupported : less than one part.
    """

    k_split: int = 1

    def __post_init__(self) -> None:
        MatmulConfig.__post_init__(self)
        if not isinstance(self.k_split, int) or self.k_split < 1:
            raise Unsupported(f"k_split={self.k_split!r}", ("1, 2, 3, ...",))


class MatmulWithSplitK(Matmul):
    """`Matmul`; sums of the parts of K are added in float32 (int32) and in the same order each time."""

    config: MatmulConfigWithSplitK

    @property
    def k_split(self) -> object:
        """The parts that the configuration asks for."""
        return self.config.k_split
