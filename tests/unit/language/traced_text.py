"""The printed statements of a traced kernel, for tests that compare them."""

import textwrap

import tilewright.language as T


def body(prim: T.PrimFunc) -> str:
    """The printed statements of the (only) kernel."""
    lines = str(prim).splitlines()
    start = next(i for i, line in enumerate(lines) if line.lstrip().startswith("with kernel"))
    return textwrap.dedent("\n".join(lines[start + 1 :])).strip()


def expect(prim: T.PrimFunc, text: str) -> None:
    assert body(prim) == textwrap.dedent(text).strip()
