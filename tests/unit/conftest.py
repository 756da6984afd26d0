"""Rooms below the targets are tested without a maker's compiler."""

from __future__ import annotations

import pytest

WITHOUT_COMPILERS = {"arith", "formats", "interpreter", "ir", "language", "layout", "machine", "ops", "passes"}


@pytest.fixture(autouse=True)
def no_compiler_of_nvidia(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In these rooms who asks for NVRTC fails, also where it is installed."""
    if request.path.parent.name in WITHOUT_COMPILERS:
        asked = (
            "tests of this room run where NVIDIA's compiler is not installed: look at machine code in tests/unit/cuda"
        )
        monkeypatch.setattr("tilewright.targets.cuda.compiler.find_nvrtc", lambda: pytest.fail(asked, pytrace=False))
