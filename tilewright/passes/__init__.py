"""Passes, a file each, and what all of them get: a context, and rewriters that know what holds at a place."""

from tilewright.passes.context import *
from tilewright.passes.scoped import *
