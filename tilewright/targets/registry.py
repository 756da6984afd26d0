"""Which target a request means: a name, options after it, a dict, or ``"auto"``."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.errors import TilewrightError, an
from tilewright.machine.arch import Arch
from tilewright.options import options, target_marker, target_option
from tilewright.targets.base import TARGETS, Target, UnknownTarget, find_target
from tilewright.targets.cpu.target import CPU
from tilewright.targets.cuda.target import CUDA
from tilewright.targets.hip.target import HIP
from tilewright.targets.metal.target import METAL


class InvalidTarget(TilewrightError):
    """A target request that cannot be read."""


PREFERENCE = (CUDA.name, HIP.name, METAL.name, CPU.name)
"""Order in which ``"auto"`` looks for a machine that is present."""


def resolve(request: object = "auto") -> tuple[Target, Arch]:  # whatever a user says
    """The target and the architecture for a request.

    Parameters
    ----------
    request : ``"auto"`` (TILEWRIGHT_TARGET where set, else the best machine present), a name with options
        (``"cuda -arch=sm_90a"``), a dict (``{"kind": "cuda", "arch": "sm_90a"}``), or an `Arch`.

    Raises
    ------
    UnknownTarget, InvalidTarget : no such target or architecture, or a request of another kind.
    """
    if isinstance(request, Arch):
        return find_target(request.target), request
    if request is None or request == "auto":
        chosen = options().target
        if chosen:
            return resolve(chosen)
        return _best_present()
    name, settings = _parse(request)
    target = find_target(_DEVICES.get(name, name))
    if settings:
        return target, target.arch(settings)
    arch = target.detect()
    return target, arch if arch is not None else target.arch({})


def resolve_device(device: str) -> tuple[Target, Arch]:
    """The target and the architecture for arrays on a device (``"cuda:1"``): what TILEWRIGHT_TARGET says of that kind
    of machine where it says something, else the machine that is present."""
    kind = device.split(":")[0]
    if target_marker() and kind != "auto" and target_option():
        found = resolve(target_option())
        if found[0] is find_target(_DEVICES.get(kind, kind)):
            return found
    return resolve(kind)


def _best_present() -> tuple[Target, Arch]:
    for name in PREFERENCE:
        target = TARGETS.get(name)
        arch = target.detect() if target is not None else None
        if target is not None and arch is not None:
            return target, arch
    raise UnknownTarget("no machine that tilewright knows is present", hint=f"known targets: {', '.join(TARGETS)}")


def _parse(request: object) -> tuple[str, dict[str, str]]:
    if isinstance(request, str):
        name, *flags = request.split()
        settings: dict[str, str] = {}
        for flag in flags:
            key, equals, value = flag.lstrip("-").partition("=")
            if not flag.startswith("-") or not equals:
                raise InvalidTarget(f"cannot read {flag!r} in target {request!r}", hint='write "cuda -arch=sm_90a"')
            settings[_KEYS.get(key, key)] = value
        return name, settings
    if isinstance(request, Mapping):
        settings = {_KEYS.get(str(key), str(key)): str(value) for key, value in request.items()}
        if "kind" not in settings:
            raise InvalidTarget(
                f"the target {dict(request)!r} has no kind", hint='write {"kind": "cuda", "arch": "sm_90a"}'
            )
        return settings.pop("kind"), settings
    raise InvalidTarget(
        f"{an(type(request).__name__)} is no target", hint='pass "auto", "cpu", "cuda -arch=sm_90a" or a dict'
    )


_DEVICES = {"mps": METAL.name}
"""Targets by torch's names of their devices, where these are others."""

_KEYS = {"mcpu": "arch", "march": "arch", "target": "kind", "name": "kind"}
