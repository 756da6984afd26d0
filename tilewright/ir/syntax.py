"""Questions about Python's syntax trees, in which programs are read."""

from __future__ import annotations

import ast


def items(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]


def dotted(node: ast.expr) -> str:
    """``cpu.dot4``, empty where it is not such a name."""
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return node.id if isinstance(node, ast.Name) else ""


def first_name(node: ast.expr) -> str:
    """The identifier that an expression like ``a.b(c)[d]`` starts with, empty where there is none."""
    while isinstance(node, (ast.Call, ast.Attribute, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def called(node: ast.expr) -> str:
    """The name of what is called; empty where that is no name."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
