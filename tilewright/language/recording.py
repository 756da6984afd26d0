"""What words record themselves with: their decorators, the function being recorded, and the author's place."""

from tilewright.language.builder import *  # noqa: F403
from tilewright.language.interface import *  # noqa: F403
from tilewright.language.source import *  # noqa: F403
