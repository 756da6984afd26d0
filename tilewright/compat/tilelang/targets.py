"""Targets as TileLang and TVM spell them: names, dicts, ``Target`` objects, the environment's default; and what
programs ask of them."""

from __future__ import annotations

import contextvars
import importlib.util
import json
import os
import types
from collections.abc import Callable

from tilewright.compat.machines import architecture_of, version_of
from tilewright.compat.testing import is_present
from tilewright.compat.tilelang.elsewhere import inside
from tilewright.language.dtypes import NumberType
from tilewright.libraries import torch
from tilewright.specialization import InvalidUse
from tilewright.targets.registry import TARGETS, resolve

KINDS = {
    "cpu": "cpu", "c": "cpu", "llvm": "cpu", "cuda": "cuda", "cutedsl": "cuda", "tileir": "cuda",
    "nvptx": "cuda", "rocm": "hip", "auto": "auto",
}  # fmt: skip
"""For each kind of TVM's what it is here."""

DEFAULT = "TILELANG_DEFAULT_TARGET"

_OPEN: contextvars.ContextVar[tuple[Target, ...]] = contextvars.ContextVar("open targets", default=())


class Target:
    """A target by its name, its options (``"cuda -arch=sm_90"``) or as a dict.

    Attributes
    ----------
    kind : an object whose ``name`` is the kind.
    attrs, keys : its options, and words that say what it can do.
    """

    def __init__(self, target: object, host: object = None) -> None:
        self.attrs = _attributes(target)
        self.kind = types.SimpleNamespace(name=self.attrs.pop("kind"))
        self.arch = self.attrs.get("arch", "")
        self.host = host
        self.keys = ["cuda", "gpu"] if KINDS.get(self.kind.name) == "cuda" else ["cpu"]

    @staticmethod
    def current(allow_none: bool = True) -> Target | None:
        """The target of the innermost ``with target:`` that is open, None where none is."""
        return next(reversed(_OPEN.get()), None)

    def __enter__(self) -> Target:
        """What is compiled for ``"auto"`` within is compiled for this."""
        _OPEN.set((*_OPEN.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        _OPEN.set(_OPEN.get()[:-1])

    def export(self) -> dict[str, object]:
        """The target as a dict."""
        return {"kind": self.kind.name, **self.attrs}

    def with_host(self, host: object) -> Target:
        """The same target; what runs beside a device is tilewright's business."""
        return Target(self.export(), host)

    def __str__(self) -> str:
        return " ".join([self.kind.name, *(f"-{name}={value}" for name, value in self.attrs.items())])

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


def _attributes(target: object) -> dict[str, object]:
    """Kind and options of a target."""
    if isinstance(target, Target):
        return target.export()
    if isinstance(target, dict):
        return {"kind": "auto", **target}
    text = str(target).strip()
    if text.startswith("{"):
        return dict(json.loads(text))
    kind, *words = text.split() or ["auto"]
    if kind.startswith("nvidia/"):
        found = architecture_of(kind)
        return {"kind": "cuda", **({"arch": found} if found else {})}
    pairs = (word.lstrip("-").partition("=") for word in words)
    return {"kind": kind, **{name: value for name, _, value in pairs}}


def request(target: object) -> str:
    """A program's target as `tilewright.compile` takes it; options that only TVM has are left out. Raises InvalidUse
    for a kind of machine that there is no target for."""
    if target is None or (isinstance(target, str) and target == "auto"):
        target = Target.current() or os.environ.get(DEFAULT) or "auto"
    attributes = _attributes(target)
    written = str(attributes["kind"])
    kind = KINDS.get(written, written if written in TARGETS else None)
    if kind is None:
        raise InvalidUse(f"there is no target {written!r}", hint=f"targets: {', '.join(KINDS)}")
    arch = str(attributes.get("arch") or (attributes.get("mcpu") if written == "hip" else None) or "")
    if kind == "auto" or not arch or (kind == "cpu" and written != "cpu"):
        return kind
    return f"{kind} -arch={'sm_90a' if arch == 'sm_90' else arch}"  # TileLang's sm_90 has the instructions of sm_90a


def determine_target(target: object = "auto", return_object: bool = False) -> object:
    """The target that a request means on this machine, as a `Target` where `return_object`, else as what was asked
    with."""
    if isinstance(target, Target):
        return target
    if target == "auto":
        found, arch = resolve(request("auto"))
        target = f"{found.name} -arch={arch.name}" if found.name == "cuda" else "c"
    request(target)
    return Target(target) if return_object else target


def _checks(name: str, maker: str) -> Callable[[], bool]:
    def check() -> bool:
        return is_present(name)

    check.__doc__ = f"Whether there is a GPU of {maker}'s that programs can run on."
    return check


check_cuda_availability, check_hip_availability = _checks("cuda", "NVIDIA"), _checks("hip", "AMD")
check_metal_availability = _checks("metal", "Apple")


def compute_version(target: object = None) -> tuple[int, int]:
    """Major and minor number of a target's architecture, (0, 0) for a processor."""
    return version_of(resolve(request(target))[1])


def _is(kind: str, *majors: int) -> Callable[[object], bool]:
    def ask(target: object) -> bool:
        found = resolve(request(target))[0].name
        return found == kind and (not majors or compute_version(target)[0] in majors)

    ask.__doc__ = f"Whether a target is {kind}" + (f" of compute capability {majors[0]}." if majors else ".")
    return ask


target_is_hip, target_is_metal = _is("hip"), _is("metal")
target_is_cuda, target_is_hopper, target_is_sm100 = _is("cuda"), _is("cuda", 9), _is("cuda", 10)
target_is_ampere, target_is_volta, target_is_sm120 = _is("cuda", 8), _is("cuda", 7), _is("cuda", 12)


def target_get_warp_size(target: object) -> int:
    """Threads of a warp."""
    return 32


def determine_fp8_type(fp8_format: str = "e4m3") -> NumberType:
    """The type of eight bits that this machine has for a format, ``"e4m3"`` or ``"e5m2"``."""
    known = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
    if fp8_format not in known:
        raise InvalidUse(f"there is no format {fp8_format!r} of eight bits", hint=" or ".join(map(repr, known)))
    return NumberType(known[fp8_format])


def determine_torch_fp8_type(fp8_format: str = "e4m3") -> torch.dtype:
    """The same as torch's type."""
    return determine_fp8_type(fp8_format).as_torch()


def _of_tvm(name: str) -> object:
    """A module of TVM's, or what stands for a name of its own, which imports and says so when it is used."""
    if name.startswith("__"):
        raise AttributeError(name)
    module = f"{__package__}.tvm.{name}"
    return importlib.import_module(module) if importlib.util.find_spec(module) else inside("tvm", name)


tvm = types.ModuleType("tvm", "What programs ask of ``tilelang.tvm``: targets and names of number types.")
tvm.DataType = NumberType  # type: ignore[attr-defined]
tvm.__getattr__ = _of_tvm  # type: ignore[method-assign]
tvm.__path__ = []
