"""Whether a layer may become one of codes: it does what `torch.nn.Linear` does, and whoever owns it calls it."""

from __future__ import annotations

import ast
import functools
import inspect
import operator
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from tilewright.libraries import torch

_SAID_OF_A_TENSOR = {
    "device", "dim", "dtype", "element_size", "is_cuda", "is_meta", "itemsize", "layout", "ndim", "numel",
    "requires_grad", "shape", "size",
}  # fmt: skip
"""What may be asked of a weight without its numbers."""

_QUESTIONS = {"getattr", "hasattr", "id", "isinstance"}


def quantised_elsewhere(module: Any) -> str | None:
    """What says that a layer's weight is no matrix of numbers: another library has quantised it; None where it is one.

    A tensor of a class that another library made, scales or packed codes beside it (compressed-tensors, transformers'
    fp8), or no weight.
    """
    held = {name for name, tensor in (*module._parameters.items(), *module._buffers.items()) if tensor is not None}
    weight = getattr(module, "weight", None)
    if type(weight) not in (torch.Tensor, torch.nn.Parameter):
        return "no weight" if weight is None else f"a weight of type {type(weight).__name__}"
    beside = sorted(name for name in held if re.search(r"scale|zero_point|packed|absmax|codebook", name))
    return f"{beside[0]} beside its weight" if beside else None


def computes_as_linear(module: Any) -> bool:
    """Whether a layer of a subclass of `torch.nn.Linear` computes what that does: some have one for the sake of
    rounding or of a name.

    It holds a matrix of floats and at most a bias: what has factors or adapters beside it means other numbers than its
    weight's.
    """
    kind: type = type(module)
    # torch's attention takes the weight of this one, and never calls it.
    if kind is torch.nn.modules.linear.NonDynamicallyQuantizableLinear:
        return False
    held = {name for name, tensor in (*module._parameters.items(), *module._buffers.items()) if tensor is not None}
    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    if not {"weight"} <= held <= {"weight", "bias"} or module._modules or module.weight.dtype not in floats:
        return False
    return _multiplies(kind)


@functools.cache
def _multiplies(kind: Any) -> bool:
    """Whether a class gives what `torch.nn.Linear` gives, for a small matrix in the place of its own."""
    from tilewright.nn.probing import in_float32

    with in_float32():
        numbers = torch.Generator().manual_seed(0)
        weight, bias, x = (torch.randn(*shape, generator=numbers) for shape in ((4, 8), (4,), (3, 8)))
        expected = torch.nn.functional.linear(x, weight, bias)
        try:
            probe = kind.__new__(kind)
            torch.nn.Module.__init__(probe)
            probe.in_features, probe.out_features = 8, 4
            probe.weight, probe.bias = torch.nn.Parameter(weight), torch.nn.Parameter(bias)
            found = probe.eval().forward(x)
            return found.shape == expected.shape and bool(torch.allclose(found, expected, atol=1e-5))
        except Exception:  # a stranger's forward may raise anything for what the probe lacks: it is not alike then
            return False


def borrowed_weights(modules: Mapping[str, Any]) -> set[str]:
    """Names of the modules of a model whose weight another one computes with, where it does not call the module.

    That is an owner's ``self.name.weight``, and ``block.attention.output.weight`` of anyone above. Forwards are read
    for that, and the methods that they call: numbers would not tell, since models have several ways.
    """
    names, taken = list(modules), set[str]()
    for name, module in modules.items():
        if not module._modules or type(module).__module__.startswith("torch.nn."):
            continue  # torch's fast ways ask first whether all are plain tensors
        start = f"{name}." if name else ""
        reader = _read(module)
        taken.update(start + part for part in reader.weights)
        for tail in reader.below:
            taken.update(one for one in names if one.startswith(start) and one.endswith(f".{tail}"))
    return taken & set(names)


def _read(module: object) -> _Reader:
    """What a module's forward does, and the methods that it calls."""
    kind: type = type(module)
    reader, methods, seen = _Reader(module), ["forward"], set[str]()
    while methods:
        method = methods.pop()
        if method not in seen:
            seen.add(method)
            reader.visit(_source(kind, method))
            methods += reader.mentioned
    return reader


@functools.cache
def _source(kind: type, method: str) -> ast.AST:
    """What a class does in a method; nothing for what is none, or has no source."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(getattr(kind, method)))))
    except (AttributeError, OSError, TypeError, SyntaxError):
        return ast.Module([], [])


class _Reader(ast.NodeVisitor):
    """Which weights a module's methods compute with, and what else of the module they mention.

    Attributes
    ----------
    weights : names of parts, ``self.name.weight``.
    below : ends of names of parts of others, ``attention.output`` of ``block.attention.output.weight``.
    facts : plain values that the module has: what they rule out is not read.  Training is: codes do not see it.
    """

    def __init__(self, module: object) -> None:
        self.weights, self.below, self.mentioned = set[str](), set[str](), set[str]()
        plain = {name: value for name, value in vars(module).items() if isinstance(value, (bool, int, float, str))}
        self.facts: dict[str, Any] = {**plain, "training": False}

    def visit_If(self, node: ast.If) -> None:
        taken = self._outcome(node.test)
        self.visit(node.test)
        for outcome, statements in ((True, node.body), (False, node.orelse)):
            for statement in statements if taken in (None, outcome) else ():
                self.visit(statement)

    def _outcome(self, test: ast.expr) -> bool | None:
        """What a condition is; None where the module's plain values do not say."""
        if isinstance(test, ast.BoolOp):
            decisive = isinstance(test.op, ast.Or)
            parts = [self._outcome(one) for one in test.values]
            return decisive if decisive in parts else None if None in parts else not decisive
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._outcome(test.operand)
            return None if inner is None else not inner
        try:
            if isinstance(test, ast.Compare) and len(test.ops) == 1:
                return bool(_COMPARISONS[type(test.ops[0])](self._value(test.left), self._value(test.comparators[0])))
            return bool(self._value(test))
        except (KeyError, TypeError):
            return None

    def _value(self, node: ast.expr) -> Any:
        """A constant or a plain value of the module.  Raises KeyError."""
        if isinstance(node, ast.Constant):
            return node.value
        name = _own(node)
        if name is None:
            raise KeyError
        return self.facts[name]

    def visit_Call(self, node: ast.Call) -> None:
        if not (isinstance(node.func, ast.Name) and node.func.id in _QUESTIONS):
            self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if not all(isinstance(operator, (ast.Is, ast.IsNot)) for operator in node.ops):
            self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        owner = node.value
        if isinstance(owner, ast.Attribute) and owner.attr == "weight" and node.attr in _SAID_OF_A_TENSOR:
            return
        part = _own(owner) if node.attr == "weight" else None
        if part is not None:
            self.weights.add(part)
        elif node.attr == "weight":
            self.below.update(_tail(owner))
        self.mentioned.update(one for one in (_own(node),) if one is not None)
        self.generic_visit(node)


_COMPARISONS: dict[type, Any] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip


def _tail(node: ast.expr) -> list[str]:
    """``a.b`` where a node is ``name.a.b`` of at least two parts: one would be any layer's of that name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    return [".".join(parts)] if isinstance(node, ast.Name) and len(parts) > 1 else []


def _own(node: ast.expr) -> str | None:
    """``name`` where a node is ``self.name``."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return node.attr
    return None
