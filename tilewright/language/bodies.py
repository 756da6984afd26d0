"""What a function's body tells of its style, without running it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable

from tilewright.language.source import source_of

DIRECT_WORDS = ("Kernel", "ClusterKernel", "empty", "const", "launch_thread", "thread_binding")


@functools.lru_cache(maxsize=1024)
def body_facts(function: Callable[..., object]) -> tuple[frozenset[str], bool, bool]:
    """Parameters annotated in the body; whether it holds a T.prim_func; whether it is of the direct style: has words of
    that style, or no result, as where a macro opens the kernel."""
    tree = source_of(function.__code__).tree
    arguments = {argument.arg for argument in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)}
    annotated: set[str] = set()
    has_prim_func, is_direct, has_result = False, False, False
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            has_prim_func = has_prim_func or any(
                "prim_func" in ast.unparse(d) for d in getattr(node, "decorator_list", ())
            )
            continue
        has_result = has_result or (isinstance(node, ast.Return) and node.value is not None)
        if isinstance(node, ast.AnnAssign) and node.value is None and isinstance(node.target, ast.Name):
            annotated.add(node.target.id)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_direct = is_direct or node.func.attr in DIRECT_WORDS
        pending.extend(ast.iter_child_nodes(node))
    return frozenset(annotated & arguments), has_prim_func, is_direct or not has_result


def annotated_in_body(function: Callable[..., object]) -> frozenset[str]:
    """Parameters that the function's body annotates: its tensors."""
    return body_facts(function)[0]
