"""``tilelang.env``: switches of TileLang's, those that mean something here."""

from __future__ import annotations

import os

from tilewright.options import VARIABLES, options


def disable_cache() -> None:
    """Keep nothing on disk from here on."""
    os.environ[VARIABLES["cache"]] = "0"


def enable_cache() -> None:
    """Keep kernels on disk, which is how it begins."""
    os.environ.pop(VARIABLES["cache"], None)


def is_cache_enabled() -> bool:
    """Whether kernels are kept on disk."""
    return options().cache


class Environment:
    """``env``: the same, and where kernels are kept; any other switch is as the environment has it, or None."""

    disable_cache, enable_cache = staticmethod(disable_cache), staticmethod(enable_cache)
    is_cache_enabled = staticmethod(is_cache_enabled)

    @property
    def TILELANG_CACHE_DIR(self) -> str:
        return str(options().cache_dir)

    @staticmethod
    def is_light_import() -> bool:
        """Never."""
        return False

    def __getattr__(self, name: str) -> str | None:
        if name.startswith("_"):
            raise AttributeError(name)
        return os.environ.get(name)


env = Environment()


def __getattr__(name: str) -> str | None:
    """What TileLang's module has by names in capitals: as the environment has it, or None."""
    if name.isupper():
        return getattr(env, name)  # type: ignore[no-any-return]
    raise AttributeError(f"tilewright has no tilelang.env.{name}")
