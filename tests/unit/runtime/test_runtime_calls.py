"""One memory of calls for kernels, functions compiled on demand and products: whatever the next call brings, it is as one that nothing is known of."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.matmul import Matmul, MatmulConfig, PackedWeight, quant_matmul
from tilewright.quant import quantize
from tilewright.runtime import plans
from tilewright.runtime.call_keys import MISSED, missed
from tilewright.runtime.calls import Calls

torch = pytest.importorskip("torch")
K = 32
WEIGHT = quantize(np.random.default_rng(1).standard_normal((K, K)).astype(np.float32), "int4", group=32)

M = T.dynamic("M")


@T.prim_func
def weighted(X: T.Tensor((M, K), "float32"), factor: T.float32, shift: T.int32, Y: T.Tensor((M, K), "float32")):
    with T.Kernel(M) as row:
        for k in T.Parallel(K):
            Y[row, k] = X[row, k] * factor + T.cast(shift, "float32")


def direct() -> Any:
    @tilewright.jit
    def joined(X, B=None, factor=1.0, twice: bool = False):
        rows, columns = T.const("rows, columns")
        X: T.Tensor[[rows, columns], T.float32]
        if B is not None:
            B: T.Tensor[[columns], T.float32]
        Y = T.empty([rows, columns], T.float32)
        with T.Kernel(rows) as row:
            for k in T.Parallel(columns):
                Y[row, k] = X[row, k] * (2.0 if twice else 1.0) + (B[k] if B is not None else 0.0)
        return Y

    return joined


def matrix(draw: np.random.Generator) -> Any:
    """Activations of one of a few kinds: library, type, rows, order and place in memory, a mode of torch."""
    rows = int(draw.integers(1, 4))
    numbers = draw.standard_normal((rows, K)).astype(np.float32)
    way = draw.integers(11)
    if way == 0:
        return numbers
    if way == 1:
        wide = np.zeros((rows, K + 3), np.float32)
        wide[:, 1 : K + 1] = numbers
        return wide[:, 1 : K + 1]
    if way == 2:
        return np.asfortranarray(numbers)
    if way == 3:
        numbers.flags.writeable = False
        return numbers
    if way == 4:
        return numbers.astype(np.float64)
    tensor = torch.from_numpy(numbers)
    if way == 5:
        return torch.nn.Parameter(tensor, requires_grad=bool(draw.integers(2)))
    if way == 6:
        return torch.cat([torch.zeros(1), tensor.reshape(-1)])[1:].view(rows, K)
    if way == 7:
        return tensor.t().contiguous().t()
    if way == 8:
        return torch.complex(torch.zeros(rows, K), tensor).conj().imag
    if way == 9:
        with torch.inference_mode():
            return tensor.clone()
    return tensor


def scalar(draw: np.random.Generator) -> Any:
    return [2.0, 1, True, 0.0, -0.0, -1.5, 3][draw.integers(7)]


def of_kernel(draw: np.random.Generator) -> tuple[Any, ...]:
    return matrix(draw), scalar(draw), [1, True, 0, 2][draw.integers(4)]


def of_direct(draw: np.random.Generator) -> tuple[Any, ...]:
    bias = [None, torch.ones(K), np.ones(K, np.float32)][draw.integers(3)]
    return (matrix(draw), bias, 1.0, [True, False, 1][draw.integers(3)])[: draw.integers(1, 5)]


def of_product(draw: np.random.Generator) -> tuple[Any, ...]:
    bias = torch.ones(K) if draw.integers(2) else None
    return matrix(draw), (bias if bias is None or draw.integers(4) else bias.numpy())


def product(weight: PackedWeight) -> Callable[..., Any]:
    of_torch = weight.to("cpu")

    def called(x: Any, bias: Any) -> Any:
        return quant_matmul(x, of_torch if isinstance(x, torch.Tensor) else weight, bias=bias)

    return called


USERS: dict[str, tuple[Callable[[], Any], Callable[[np.random.Generator], tuple[Any, ...]]]] = {
    "kernel": (lambda: tilewright.compile(weighted, -1, target="cpu"), of_kernel),
    "direct": (direct, of_direct),
    "product": (lambda: product(PackedWeight.pack(WEIGHT)), of_product),
}


def answer(call: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a call gives: numbers, of what library and type, whether torch follows them; or an error."""
    try:
        found = call(*arguments)
    except Exception as error:
        return type(error), str(error)
    follows = isinstance(found, torch.Tensor) and found.requires_grad
    numbers = found.detach().numpy() if isinstance(found, torch.Tensor) else found
    return type(found), numbers.dtype, numbers.shape, follows, numbers.tobytes()


@pytest.mark.parametrize("user", list(USERS))
def test_a_call_is_what_it_is_where_nothing_is_known(user: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random kinds one after another, some again and again, in modes of torch; a memory that forgets all beside it."""
    make, draws = USERS[user]
    draw = np.random.default_rng(7)
    calls = [draws(draw) for _ in range(40)]
    modes = [contextlib.nullcontext, torch.no_grad, torch.inference_mode]
    order = [
        (calls[i], modes[draw.integers(3)]) for i in draw.integers(40, size=150) for _ in range(draw.integers(1, 4))
    ]

    def answers(known: Callable[..., Any]) -> list[tuple[Any, ...]]:
        found = []
        for arguments, mode in order:
            with mode():
                found.append(answer(known, arguments))
        return found

    hits: list[object] = []
    keep = Calls.keep

    def noted(self: Calls, arguments: Any, plan: Any, *rest: Any, **named: Any) -> None:
        def counted(*given: Any) -> Any:
            result = plan(*given)
            hits.append(result) if result is not MISSED else None
            return result

        keep(self, arguments, counted, *rest, **named)

    monkeypatch.setattr(Calls, "keep", noted)
    found = answers(make())
    assert len(hits) > len(order) / 3, "few calls were known"
    monkeypatch.setattr(Calls, "keep", lambda *_, **__: None)
    assert found == answers(make())


def test_keys_of_other_kinds_are_other_keys() -> None:
    """1, 1.0 and True are equal, and so are 0.0 and -0.0."""
    calls = Calls()
    values = [1, 1.0, True, 0, 0.0, -0.0, False, None, "1", np.ones(1), np.ones(1, np.float32)]
    for value in values:
        calls.keep((value,), lambda given, value=value: ("found", type(value), repr(value)))
    assert len(calls) == len(values)
    for value in [*values, *reversed(values)]:
        assert calls.run(value) == ("found", type(value), repr(value))
    assert calls.run(2) is MISSED and calls.run(object()) is MISSED


def test_plans_that_raise_leave_the_memory_as_it_was() -> None:
    calls, failing = Calls(), [False]

    def plan(given: int) -> int:
        if failing[0]:
            raise ValueError(given)
        return given

    for value in (1, 2.0):
        calls.keep((value,), plan)
    for failing[0], value in itertools.product((False, True, False), (1, 2.0, 2.0, 1)):
        with pytest.raises(ValueError) if failing[0] else contextlib.nullcontext():
            assert calls.run(value) == value


def test_all_begins_anew_behind_so_many_kinds() -> None:
    calls = Calls(most=8)
    for value in range(100):
        calls.keep((value,), lambda given: -given)
        assert calls.run(value) == -value and len(calls) <= 8


def test_kinds_that_were_met_once_are_as_few() -> None:
    calls = Calls(most=8)
    for value in range(100):
        assert not calls.is_second((value,)) and calls.is_second((value,)) and len(calls._met) <= 8


def test_kinds_without_a_plan_take_nobody_s_guard() -> None:
    """However often what a look-up finds is tried first from then on."""
    calls = Calls()
    calls.keep((2,), missed)
    calls.keep((1,), lambda given: -given)
    for _ in range(40):
        assert calls.run(2) is MISSED and calls.run(1) == -1


def test_the_last_kinds_key_is_tried_first() -> None:
    calls, array = Calls(), np.zeros(2)
    calls.keep((1,), missed)
    calls.keep((array,), missed)
    for value in (1, array, 1):
        assert calls.at((value,)) is not None and calls._key(value) is not None


def test_threads_whose_kinds_differ() -> None:
    """Kinds are met by several threads at once: none is given another's key."""
    for _ in range(20):
        calls = Calls()
        start = threading.Barrier(4)
        wrong: list[object] = []

        def work(value: Any, calls: Calls = calls, start: Any = start, wrong: list[object] = wrong) -> None:
            start.wait()
            calls.keep((value,), lambda given: type(given))
            wrong.extend(found for found in (calls.run(value) for _ in range(50)) if found is not type(value))

        threads = [threading.Thread(target=work, args=(value,)) for value in (1, True, 1.0, "1")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_functions_and_operators_share_a_weight() -> None:
    """Each has a memory of its own: they pass as many arguments as they have."""
    packed, x = PackedWeight.pack(WEIGHT), np.ones((2, K), np.float32)
    config = MatmulConfig(
        N=K, K=K, A_dtype="float32", W_dtype="int4", with_scaling=True, group_size=32, out_dtype="float32"
    )
    operator, expected = Matmul(config), quant_matmul(x, PackedWeight.pack(WEIGHT))
    for _ in range(4):
        for call in (quant_matmul, operator):
            for _ in range(3):
                assert np.array_equal(call(x, packed), expected)


def test_a_plan_serves_addresses_that_another_plan_of_its_kind_does_not() -> None:
    kernel = tilewright.compile(weighted, -1, target="cuda -arch=sm_80")
    memory = np.zeros(256, np.uint8)
    launched: list[int] = []
    for rest in (0, 4, 8, 0, 8, 4):
        x = memory[-memory.ctypes.data % 16 + rest :][: 4 * K].view(np.float32).reshape(1, K)
        launch = plans.Launch(lambda *given, rest=rest: launched.append(rest))
        if kernel.plans.launch(x, 1.0, 1) is None:
            assert kernel.plans.run(x, 1.0, 1) is MISSED
            kernel.plans.remember((x, 1.0, 1), [x], launch, None)
        kernel.plans.run(x, 1.0, 1)
        assert launched[-1] == rest
    assert len(kernel.plans) == 1
