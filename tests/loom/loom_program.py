"""``python loom_program.py PROGRAM``: a program of TileLang's kind whose kernels are emulated texts for a GPU that nobody makes."""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any

os.environ["TILEWRIGHT_TARGET"] = "loom -arch=loom64"

from loom_target import made

from tilewright.compat.tilelang.modules import answer_tilelang
from tilewright.errors import MissingCapability, NotAsynchronous, SharedMemoryExceeded
from tilewright.runtime.kernel import Kernel

called = Kernel.__call__


def emulated(self: Kernel, *arguments: Any, **named: Any) -> Any:
    """What a call of a kernel does where there is no device; one for a processor runs as it is."""
    if self.target.emulation is None:
        return called(self, *arguments, **named)
    return self.emulate(*self._binder.in_order(arguments, named))


if __name__ == "__main__":
    Kernel.__call__ = emulated  # type: ignore[method-assign]
    with made():
        answer_tilelang()
        try:
            runpy.run_path(sys.argv[1], run_name="__main__")
        except (MissingCapability, NotAsynchronous, SharedMemoryExceeded) as error:
            print("refused:", str(error).split("\n")[0])
        except AssertionError as error:  # some programs gather what is said and assert that it is nothing
            if MissingCapability.__name__ not in str(error):
                raise
