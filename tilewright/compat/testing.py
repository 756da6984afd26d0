"""What tests of users of BitBLAS and of TileLang ask for alike: marks of tests that need a machine, and comparisons."""

from __future__ import annotations

import importlib.util
import inspect
import math
import sys
from collections.abc import Callable
from typing import Any

from tilewright.compat.machines import version_of
from tilewright.errors import TilewrightError
from tilewright.libraries import torch
from tilewright.targets.registry import TARGETS


class ResultsDiffer(TilewrightError, AssertionError):
    """Results are not those of the reference."""


def main() -> None:
    """Run the tests of the file that calls this."""
    import pytest

    sys.exit(pytest.main([str(inspect.getsourcefile(sys._getframe(1))), *sys.argv[1:]]))


def skips(unless: Callable[[], bool], reason: str) -> Callable[..., Any]:
    """Decorator of tests that are skipped where something does not hold; called without a test, a mark of pytest's."""

    def mark(func: object = None) -> Any:
        import pytest

        found = pytest.mark.skipif(not unless(), reason=reason)
        return found if func is None else found(func)

    mark.__doc__ = f"Mark of a test: {reason}."
    return mark


def is_present(name: str) -> bool:
    """Whether there is a machine of a target that programs can run on."""
    return name in TARGETS and TARGETS[name].detect() is not None


requires_cuda = skips(lambda: is_present("cuda"), "needs an NVIDIA GPU")
requires_rocm = skips(lambda: is_present("hip"), "needs a GPU of AMD's")


def requires_package(*names: str) -> Any:
    """Mark of a test that needs other packages."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return skips(lambda: not missing, f"needs {', '.join(missing)}")()


def requires_version(suits: Callable[[tuple[int, int]], bool], text: str) -> Any:
    """Mark of a test that needs a GPU of NVIDIA's with such a compute capability."""
    found = TARGETS["cuda"].detect()
    return skips(lambda: found is not None and suits(version_of(found)), f"needs a GPU of compute capability {text}")()


def torch_assert_close(
    tensor_a: torch.Tensor,
    tensor_b: torch.Tensor,
    rtol: float = 1e-2,
    atol: float = 1e-3,
    max_mismatched_ratio: float = 0.001,
    verbose: bool = False,
    equal_nan: bool = True,
    check_device: bool = True,
    check_dtype: bool = True,
    check_layout: bool = True,
    check_stride: bool = False,
    base_name: str = "LHS",
    ref_name: str = "RHS",
    **_: object,
) -> bool:
    """Compare two tensors of torch's, of which a small part may differ. Raises ResultsDiffer where more than
    `max_mismatched_ratio` of the elements do, or they are of other shapes, types or devices."""
    facts = [("shape", True), ("device", check_device), ("dtype", check_dtype), ("layout", check_layout)]
    for name, asked in [*facts, ("stride", check_stride)]:
        left, right = getattr(tensor_a, name), getattr(tensor_b, name)
        left, right = (one() if callable(one) else one for one in (left, right))
        if asked and left != right:
            raise ResultsDiffer(f"{base_name} has {name} {left}, {ref_name} has {right}")
    wide = torch.float64 if any(one.dtype.is_floating_point for one in (tensor_a, tensor_b)) else torch.int64
    left, right = (one.detach().cpu().to(wide) for one in (tensor_a, tensor_b))
    wrong = ~torch.isclose(left, right, rtol=rtol, atol=atol, equal_nan=equal_nan)
    count, most = int(wrong.sum()), int(math.prod(left.shape) * max_mismatched_ratio)
    if verbose:
        print(f"{count} of {left.numel()} elements differ, {most} may")
    if count > most:
        place = tuple(torch.nonzero(wrong)[0].tolist())
        raise ResultsDiffer(
            f"{count} of {left.numel()} elements differ, where {most} may; at {place} {base_name} has "
            f"{left[place]:.6g}, "
            f"{ref_name} {right[place]:.6g}"
        )
    return True
