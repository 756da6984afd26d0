"""The direct style, as the JIT uses it: declarations, sizes, arguments; and what tells the styles apart."""

import inspect
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright.interpreter import interpret
from tilewright.ir.nodes import Var
from tilewright.language.direct import DirectFunction, is_factory
from tilewright.language.mistakes import WrongArguments
from tilewright.language.mistakes_of_scopes import ChoiceNotKnown, MissingAnnotation, SizeMismatch, UnboundSize
from tilewright.language.tensors import TensorType
from tilewright.specialization import JITFunction


def scale(A, n: T.int32, factor: float = 2.0, block: int = 16, dtype: str = "float32"):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), dtype)
    C = T.empty((M, N), dtype)
    with T.Kernel(T.ceildiv(M * N, block)) as b:
        for i in T.Parallel(block):
            place = b * block + i
            C[place // N, place % N] = A[place // N, place % N] * factor + n
    return C


def test_parameters_have_kinds() -> None:
    kinds = [(p.name, p.kind, str(p.dtype)) for p in DirectFunction(scale).parameters]
    assert kinds == [
        ("A", "tensor", "None"), ("n", "scalar", "int32"), ("factor", "constant", "None"),
        ("block", "constant", "None"), ("dtype", "constant", "None"),
    ]  # fmt: skip


def test_two_steps() -> None:
    direct = DirectFunction(scale)
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    runtime, constants = direct.split(array, n=5, block=8)
    assert list(runtime) == ["A", "n"]
    assert constants == {"factor": 2.0, "block": 8, "dtype": "float32"}
    declaration = direct.declare(constants)
    assert list(declaration.tensors) == ["A"] and list(declaration.sizes) == ["M", "N"]
    sizes = declaration.bind({"A": (3, 4)})
    assert sizes == {"M": 3, "N": 4}
    prim = direct.trace(constants, sizes)
    assert [p.name for p in prim.params] == ["A", "n", "C"]
    assert prim.function.outputs == (prim.params[-1],)
    assert prim.params[0].shape == (3, 4)  # type: ignore[union-attr]
    (result,) = interpret(prim.function, list(runtime.values()))
    np.testing.assert_array_equal(result, array * 2 + 5)


def test_binding_checks_ranks_and_agreement() -> None:
    def product(A, B):
        M, N, K = T.const("M, N, K")
        A: T.Tensor((M, K), "float32")
        B: T.Tensor((K, N), "float32")
        with T.Kernel(1):
            T.clear(A)

    declaration = DirectFunction(product).declare({})
    with pytest.raises(SizeMismatch) as caught:
        declaration.bind({"A": (2, 3), "B": (4, 5)})
    assert caught.value.message == "product: K is 3 as extent 1 of 'A', but 4 as extent 0 of 'B'"
    with pytest.raises(SizeMismatch) as caught:
        declaration.bind({"A": (2, 3), "B": (4,)})
    assert caught.value.message == "product: the tensor 'B' has shape (4,), but 2 dimensions are declared"


def test_sizes_come_from_strides_too() -> None:
    def kernel(A):
        N, row = T.const("N, row")
        A: T.StridedTensor((N, 8), (row, 1), "float32")
        with T.Kernel(N):
            T.clear(A)

    direct = DirectFunction(kernel)
    declaration = direct.declare({})
    assert declaration.bind({"A": (4, 8)}, {"A": (20, 1)}) == {"N": 4, "row": 20}
    with pytest.raises(UnboundSize):
        declaration.bind({"A": (4, 8)})
    assert direct.trace({}, {"N": 4, "row": 20}).params[0].strides == (20, 1)  # type: ignore[union-attr]


def test_dynamic_sizes_stay_variables() -> None:
    def kernel(A):
        m = T.dynamic("m")
        N = T.const("N")
        A: T.Tensor((m, N), "float32")
        with T.Kernel(m):
            T.clear(A[0:1, :])

    direct = DirectFunction(kernel)
    declaration = direct.declare({})
    assert declaration.bind({"A": (100, 8)}) == {"N": 8}
    buffer: Any = direct.trace({}, {"N": 8}).params[0]
    assert isinstance(buffer.shape[0], Var) and buffer.shape[1] == 8


def suited_rows(A, rows: int = 0):
    m = T.dynamic("m")
    A: T.Tensor((m, 8), "float32")
    C = T.empty((m, 8), "float32")
    width = rows or T.suited(lambda lines, columns: 4 if lines <= columns else 16, m, 8)
    if width == 16:
        width = T.suited(lambda lines: 32 if lines > 100 else 16, m)
    with T.Kernel(T.ceildiv(m, width)) as block:
        T.copy(A[block * width : block * width + width, :], C[block * width : block * width + width, :])
    return C


def test_a_call_runs_the_kernel_that_suits_its_sizes() -> None:
    """Compiled when first asked for, right for all others too."""
    copied = JITFunction(suited_rows, "cpu", None)
    arrays = {
        lines: np.random.default_rng(lines).random((lines, 8), np.float32) for lines in (1, 5, 8, 9, 40, 101, 130)
    }
    kernels = {lines: copied.compile(array) for lines, array in arrays.items()}
    for lines, array in arrays.items():
        np.testing.assert_array_equal(copied(array), array)
        np.testing.assert_array_equal(kernels[101](array), array)
        assert copied.compile(array) is kernels[lines]
    assert len(set(map(id, kernels.values()))) == 3
    assert kernels[5] is kernels[8] and kernels[9] is kernels[40] and kernels[101] is kernels[130]
    assert copied.compile(arrays[5], rows=32) is copied.compile(arrays[130], rows=32)


@pytest.mark.parametrize(
    "choose, sizes, problem",
    [
        (lambda m: [m], ("m",), "its choice is a list, which is not hashable"),
        (lambda m: m, ("k",), "k is no extent of a tensor"),
        (lambda m: m, ("m + 1",), "a size is a symbolic int32, but should be a symbol of T.dynamic or a number"),
    ],
)
def test_what_cannot_be_chosen_by(choose: Any, sizes: Any, problem: str) -> None:
    def kernel(A):
        m, k = T.dynamic("m, k")
        A: T.Tensor((m, 8), "float32")
        T.suited(choose, *({"m": m, "k": k, "m + 1": m + 1}[name] for name in sizes))
        with T.Kernel(m):
            T.clear(A[0:1, :])

    with pytest.raises(ChoiceNotKnown) as caught:
        JITFunction(kernel, "cpu", None).compile(np.zeros((4, 8), np.float32))
    assert caught.value.message == f"T.suited cannot choose: {problem}"


def test_annotations_in_the_signature() -> None:
    def kernel(A: T.Tensor((8,), "float32"), B, n: T.int64 = 3):
        B: T.Tensor((8,), "float32")
        with T.Kernel(1):
            T.copy(A, B)

    direct = DirectFunction(kernel)
    assert [p.kind for p in direct.parameters] == ["tensor", "tensor", "scalar"]
    assert isinstance(direct.declare({}).tensors["A"], TensorType)
    assert [p.name for p in direct.trace({}, {}).params] == ["A", "B", "n"]


def biased(A, bias=None):
    N = T.const("N")
    A: T.Tensor((N,), "float32")
    if bias is not None:
        bias: T.Tensor((N,), "float32")
    C = T.empty((N,), "float32")
    with T.Kernel(1):
        for i in T.Parallel(N):
            C[i] = A[i] if bias is None else A[i] + bias[i]
    return C


def test_tensors_may_be_left_out() -> None:
    direct = DirectFunction(biased)
    A, bias = np.ones(4, np.float32), np.full(4, 3, np.float32)
    for arguments, expected in (((A,), 1), ((A, bias), 4), ((A, None), 1)):
        runtime, constants = direct.split(*arguments)
        declaration = direct.declare(constants)
        assert list(declaration.tensors) == list(runtime)
        prim = direct.trace(constants, declaration.bind(dict.fromkeys(runtime, (4,))))
        (result,) = interpret(prim.function, list(runtime.values()))
        np.testing.assert_array_equal(result, np.full(4, expected))


def test_several_outputs_in_the_order_of_return() -> None:
    def kernel(A):
        A: T.Tensor((8,), "float32")
        first = T.empty(8)
        second = T.empty((2, 4), "int32")
        with T.Kernel(1):
            T.copy(A, first)
            T.clear(second)
        return second, first

    function = DirectFunction(kernel).trace({}, {}).function
    assert [(b.name, b.shape, b.dtype.name) for b in function.outputs] == [
        ("second", (2, 4), "int32"), ("first", (8,), "float32"),
    ]  # fmt: skip


def test_wrong_calls_name_the_signature() -> None:
    direct = DirectFunction(scale)
    with pytest.raises(WrongArguments) as caught:
        direct.split(np.zeros((2, 2)), 3, blok=4)
    assert caught.value.message == "scale has no argument 'blok'"
    assert caught.value.hint == ("did you mean 'block'? scale(A, n, factor=2.0, block=16, dtype='float32')")


def test_a_tensor_that_is_never_declared_is_named() -> None:
    def kernel(A, wide=False):
        if wide:
            A: T.Tensor((8,), "float32")
        with T.Kernel(1):
            pass

    with pytest.raises(MissingAnnotation) as caught:
        DirectFunction(kernel).declare({"wide": False})
    assert caught.value.message == "the parameter 'A' of kernel has no annotation"


def test_factories_are_told_from_direct_functions() -> None:
    def factory(N):
        @T.prim_func
        def main(A: T.Tensor((N,), "float32")):
            with T.Kernel(1):
                T.clear(A)

        return main

    def outer(N):
        return factory(N)

    assert is_factory(factory) and is_factory(outer)
    assert not is_factory(scale) and not is_factory(biased)
    assert outer(4).params[0].shape == (4,)


def test_the_library_is_imported_without_reading_its_sources() -> None:
    """Factories say what they return, by their annotation or by a name in their body."""
    read = (
        "import tilewright.matmul, tilewright.language.source as s; print([c.co_name for c, _ in s._SOURCES.values()])"
    )
    found = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True)
    assert found.stdout.strip() in ("[]", "['matmul']")  # the one kernel of the direct style has its parameters there


def test_annotations_as_texts(tmp_path: Path) -> None:
    """``from __future__ import annotations`` keeps annotations as texts; names of enclosing functions count."""
    text = textwrap.dedent(
        """
        from __future__ import annotations
        import tilewright.language as T

        def factory(M, dtype):
            N = M * 2
            @T.prim_func
            def main(A: T.Tensor((M, N), dtype), n: T.int32):
                with T.Kernel(1):
                    T.clear(A)
            return main

        def direct(A, n: T.int32, wide: bool = True):
            A: T.Tensor((8,), "float32")
            with T.Kernel(1):
                T.clear(A)
        """
    )
    path = tmp_path / "texts.py"
    path.write_text(text, encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), names)
    assert names["factory"](3, "int8").params[0].shape == (3, 6)
    assert [p.kind for p in DirectFunction(names["direct"]).parameters] == ["tensor", "scalar", "constant"]


def test_threads_trace_independently() -> None:
    """Each thread has a builder of its own."""
    direct = DirectFunction(scale)
    constants = {"factor": 2.0, "block": 8, "dtype": "float32"}
    expected = str(direct.trace(constants, {"M": 3, "N": 4}))
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.extend(str(direct.trace(constants, {"M": 3, "N": 4})) for _ in range(5)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 20


def test_the_authors_function_is_left_alone() -> None:
    before = inspect.getsource(scale), scale.__code__
    DirectFunction(scale).trace({"factor": 1.0, "block": 8, "dtype": "float16"}, {"M": 3, "N": 4})
    assert (inspect.getsource(scale), scale.__code__) == before


def test_a_kernel_knows_the_machine_that_it_is_compiled_for() -> None:
    seen = []

    def fill(X):
        N = T.const("N")
        X: T.Tensor((N,), "float32")
        Y = T.empty((N,), "float32")
        seen.append(T.machine())
        with T.Kernel(1):
            T.copy(X, Y)
        return Y

    made = JITFunction(fill, "cuda -arch=sm_80", None)
    kernel = made.compile(np.zeros(4, np.float32))
    made.trace(np.zeros(4, np.float32))
    assert seen == [kernel.arch, None]


def without_annotation(A, B):
    A: T.Tensor((8,), "float32")
    with T.Kernel(1):
        for i in T.Parallel(8):
            A[i] = B[i]


def test_an_array_for_a_parameter_without_annotation() -> None:
    """NumPy would else be indexed by the program's loops."""
    array = np.ones(8, np.float32)
    with pytest.raises(MissingAnnotation, match="the parameter 'B' of without_annotation has no annotation"):
        JITFunction(without_annotation, "cpu", None)(array, array)


def test_a_size_that_no_tensor_has_is_passed_by_name():
    """TileLang's programs pass what only the grid or the body asks for; each value is a kernel of its own."""

    @tilewright.jit(target="cpu")
    def kernel(A, B, block: int = 32):
        N, blocks, scale = T.const("N, blocks, scale")
        A: T.Tensor((N,), "float32")
        B: T.Tensor((N,), "float32")
        with T.Kernel(blocks, threads=32) as b:
            for i in T.Parallel(block):
                B[b * block + i] = A[b * block + i] * scale

    a = np.arange(128, dtype=np.float32)
    for blocks, scale in ((4, 3), (2, 3), (4, 2.5), (4, 3)):
        for run in (kernel, kernel.interpret):
            b = np.zeros_like(a)
            run(a, b, blocks=blocks, scale=scale)
            np.testing.assert_array_equal(b, np.where(np.arange(128) < 32 * blocks, a * scale, 0))
    emulated, b = kernel.on("cuda -arch=sm_90a"), np.zeros_like(a)
    emulated.emulate(a, b, blocks=4, scale=3, schedule="random", seed=1)
    np.testing.assert_array_equal(b, a * 3)
    with pytest.raises(UnboundSize, match="no argument gives the size 'blocks'"):
        kernel(a, b, scale=3)
    with pytest.raises(WrongArguments, match="no argument and no size 'blokcs'"):
        kernel(a, b, blokcs=4, scale=3)
