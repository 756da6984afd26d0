"""What the author's control flow becomes: the program's where values are symbolic, Python's where they are known."""

import textwrap
from pathlib import Path

import numpy as np
import pytest
from traced_text import expect

import tilewright.language as T
from tilewright.interpreter import interpret
from tilewright.language.mistakes import LoopOutsideKernel, NumberExpected, UnsupportedStatement


def test_if_on_symbols_is_recorded_and_on_constants_decided() -> None:
    wide = True

    @T.prim_func
    def kernel(A: T.Tensor((8,), "float32"), n: T.int32):
        with T.Kernel(1):
            if wide:
                A[0] = 1.0
            else:
                A[0] = 2.0
            if n > 3:
                A[1] = 1.0
            elif n == 2:
                A[1] = 2.0
            elif wide:
                A[1] = 3.0
            else:
                A[1] = 4.0

    expect(
        kernel,
        """
        A[0] = 1.0
        if n > 3:
            A[1] = 1.0
        else:
            if n == 2:
                A[1] = 2.0
            else:
                A[1] = 3.0
        """,
    )


@pytest.mark.parametrize(("mode", "value"), [("relu", 1), (("scale", 3), 4), (None, 9)])
def test_match_is_pythons(mode, value) -> None:
    @T.prim_func
    def kernel(A: T.Tensor((8,), "int32"), n: T.int32):
        with T.Kernel(1):
            match mode:
                case "relu":
                    A[0] = 1
                case ("scale", factor) if factor > 2:
                    by = n + factor
                    if n > 3:
                        A[0] = by
                case _:
                    A[0] = 9

    ends = {1: "A[0] = 1", 9: "A[0] = 9", 4: "if n > 3:\n    A[0] = n + 3"}
    expect(kernel, ends[value])


def test_match_on_symbols_is_refused() -> None:
    with pytest.raises(UnsupportedStatement, match="`match` of a value of the program is not supported"):

        @T.prim_func
        def kernel(A: T.Tensor((8,), "float32"), n: T.int32):
            with T.Kernel(1):
                match n:
                    case 3:
                        A[0] = 1.0


def test_range_is_a_loop_of_the_program_and_a_list_is_pythons() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32"), n: T.int32):
        with T.Kernel(1):
            for i in range(4):
                A[i] = 0.0
            for i in range(n, 64, 2):
                A[i] = 1.0
            for i in range(9, 0, -4):
                A[i] = 2.0
            for i in [5, 6]:
                A[i] = 3.0
            for position, value in enumerate((7.0, 8.0)):
                A[position] = value
            for i, value in zip(list(range(2)), "ab", strict=True):
                A[i] = ord(value)

    expect(
        kernel,
        """
        for i in range(4):
            A[i] = 0.0
        for i in range(n, 64, 2):
            A[i] = 1.0
        for i in range(3):
            A[9 + i * -4] = 2.0
        A[5] = 3.0
        A[6] = 3.0
        A[0] = 7.0
        A[1] = 8.0
        A[0] = 97.0
        A[1] = 98.0
        """,
    )


def test_every_kind_of_loop() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64, 64), "float32"), n: T.int32):
        with T.Kernel(1):
            for i in T.serial(1, n):
                A[i, 0] = 0.0
            for i in T.unroll(4):
                A[i, 0] = 0.0
            for i in T.vectorized(8):
                A[i, 0] = 0.0
            for i, j in T.grid(2, n):
                A[i, j] = 0.0
            for i, j in T.Parallel(8, n, coalesced_width=4):
                A[i, j] = 0.0
            for k in T.Pipelined(2, n, num_stages=3, order=[0], stage=[1]):
                A[k, 0] = 0.0

    expect(
        kernel,
        """
        for i in range(1, n):
            A[i, 0] = 0.0
        for i in unroll(4):
            A[i, 0] = 0.0
        for i in vectorize(8):
            A[i, 0] = 0.0
        for i in range(2):
            for j in range(n):
                A[i, j] = 0.0
        for i, j in parallel(8, n, coalesced_width=4):
            A[i, j] = 0.0
        for k in pipelined(2, n, num_stages=3, order=(0,), stage=(1,)):
            A[k, 0] = 0.0
        """,
    )


def test_while_break_and_continue() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32"), n: T.int32):
        with T.Kernel(1):
            i = T.alloc_var("int32", init=0)
            while i < n and A[i] > 0:
                i += 1
                if i == 7:
                    continue
                A[i] = 0.0
            while True:
                i -= 1
                if i < 0:
                    break
            count = 0
            while count < 2:
                count += 1
                A[count] = 5.0

    expect(
        kernel,
        """
        i = scalar(int32[()], initial=0)
        while i[()] < n and A[i[()]] > 0.0:
            i[()] = i[()] + 1
            if i[()] == 7:
                continue
            A[i[()]] = 0.0
        while True:
            i[()] = i[()] - 1
            if i[()] < 0:
                break
        A[1] = 5.0
        A[2] = 5.0
        """,
    )


def test_break_and_continue_of_python_loops_stay_pythons() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32"), n: T.int32):
        with T.Kernel(1):
            for i in [0, 1, 2, 3, 4]:
                if i == 1:
                    continue
                if i == 3:
                    break
                for j in range(n):
                    if j == 5:
                        break
                    A[j] = i

    text = """
        for j in range(n):
            if j == 5:
                break
            A[j] = {}.0
    """
    expect(kernel, textwrap.dedent(text.format(0)).rstrip() + textwrap.dedent(text.format(2)).rstrip())


def test_conditional_expressions_and_logic() -> None:
    known = 3

    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32"), n: T.int32, flag: T.bool):
        with T.Kernel(1):
            A[0] = 1.0 if n > 2 else A[1]
            A[1] = 1.0 if known > 2 else undefined
            if (flag and not n < 3) or known == 2:
                A[2] = 1.0
            if known == 2 and undefined:
                A[3] = 1.0
            if 0 < n <= 5 < known + n:
                A[4] = 1.0
            if n:
                A[5] = 1.0
            if known > 2 and n > 2:
                A[6] = 1.0

    expect(
        kernel,
        """
        A[0] = 1.0 if n > 2 else A[1]
        A[1] = 1.0
        if flag and not n < 3:
            A[2] = 1.0
        if n > 0 and n <= 5 and 3 + n > 5:
            A[4] = 1.0
        if n != 0:
            A[5] = 1.0
        if n > 2:
            A[6] = 1.0
        """,
    )


def test_names_are_values_and_alloc_var_is_a_place() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32"), n: T.int32):
        with T.Kernel(1) as block:
            row = block * 8 + n
            old = A[row]
            A[row] = 0.0
            A[row + 1] = old
            A[2], A[3] = A[3], A[2]
            total = T.alloc_var("float32")
            total = 1
            copy = total
            total += copy
            first = second = A[5]
            A[6] = first + second

    expect(
        kernel,
        """
        old: float32 = A[block * 8 + n]
        A[block * 8 + n] = 0.0
        A[block * 8 + n + 1] = old
        value: float32 = A[3]
        value_1: float32 = A[2]
        A[2] = value
        A[3] = value_1
        total = scalar(float32[()])
        total[()] = 1.0
        copy: float32 = total[()]
        total[()] = total[()] + copy
        first: float32 = A[5]
        second: float32 = A[5]
        A[6] = first + second
        """,
    )


def test_a_name_may_be_rebound_in_its_own_block() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32"), n: T.int32):
        with T.Kernel(1):
            for i in range(n):
                x = A[i]
                x = x * 2
                A[i] = x
            for i in range(n):
                x = A[i] + 1
                A[i] = x

    array = np.arange(64, dtype=np.float32)
    expected = np.where(np.arange(64) < 5, array * 2 + 1, array)
    interpret(kernel.function, [array, 5])
    np.testing.assert_array_equal(array, expected)


def test_return_ends_the_block() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((8,), "float32")):
        with T.Kernel(8) as block:
            if block > 2:
                return
            A[block] = 1.0

    expect(kernel, "if block > 2:\n    return\nA[block] = 1.0")


def test_asserts_and_prints() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((8,), "float32"), n: T.int32):
        with T.Kernel(1):
            assert len("ab") == 2, "Python's own"
            assert n > 0, "n must be positive"
            T.device_assert(n < 9)
            T.assume(n % 4 == 0)
            print("n is", n, A)
            T.print(A[0], msg="first")
            breakpoint(A)

    expect(
        kernel,
        """
        assert n > 0, "n must be positive"
        assert n < 9
        assume(n % 4 == 0)
        print("n is", n, A)
        print("first", A[0])
        breakpoint(A)
        """,
    )


def test_print_of_known_values_is_pythons(capsys: pytest.CaptureFixture[str]) -> None:
    @T.prim_func
    def kernel(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            print("tracing", 3, sep="-")
            A[0] = 1.0

    assert capsys.readouterr().out == "tracing-3\n"
    expect(kernel, "A[0] = 1.0")


@pytest.mark.parametrize("domain", [(5,), (5, 3), (9, 2, 3), (1, 7)])
@pytest.mark.parametrize("wave_size", [1, 4, 100])
def test_persistent_visits_every_tile_once(domain: tuple[int, ...], wave_size: int) -> None:
    shape = (*domain, *[1] * (3 - len(domain)))

    @T.prim_func
    def kernel(A: T.Tensor(shape, "int32")):
        with T.Kernel(wave_size) as block:
            for position in T.Persistent(domain, wave_size, block, group_size=4):
                place = position if isinstance(position, tuple) else (position,)
                A[(*place, *[0] * (3 - len(domain)))] += 1

    array = np.zeros(shape, np.int32)
    interpret(kernel.function, [array])
    np.testing.assert_array_equal(array, np.ones(shape, np.int32))


def test_function_runs_once_and_sees_later_globals() -> None:
    runs = []

    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32"), n: T.int32):
        runs.append("function")
        with T.Kernel(1):
            for i in range(n):
                runs.append("loop")
                if i > 3:
                    A[i] = 0.0

    assert runs == ["function", "loop"]


def test_the_condition_of_a_while_may_have_effects() -> None:
    @T.prim_func
    def kernel(flags: T.Tensor((4,), "int32")):
        with T.Kernel(1, threads=1):
            while T.atomic_load(flags[0], "acquire") < 5:
                flags[1] += T.atomic_add(flags[0], 2, return_prev=True)

    flags = np.zeros(4, np.int32)
    interpret(kernel.function, [flags])
    assert flags.tolist() == [6, 0 + 2 + 4, 0, 0]


def test_bounds_are_read_once() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            for i in range(A[0]):
                A[0] += i
            for i in T.Parallel(A[1]):
                A[i] = 5

    expect(
        kernel,
        """
        bound: int32 = A[0]
        for i in range(bound):
            A[0] = A[0] + i
        bound_1: int32 = A[1]
        for i in parallel(bound_1):
            A[i] = 5
        """,
    )


def test_augmented_assignment_of_every_kind() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((8,), "int32"), n: T.int32):
        with T.Kernel(1):
            found = [1]
            alias = found
            found += [2]
            assert alias == [1, 2]
            bits = 6
            bits &= 3
            A[0] |= n
            A[1] <<= bits
            A[2] //= 3
            A[3] **= 2
            scale = 2
            scale *= n
            A[4] = scale

    expect(
        kernel,
        """
        A[0] = A[0] | n
        A[1] = A[1] << 2
        A[2] = A[2] // 3
        A[3] = A[3] * A[3]
        A[4] = 2 * n
        """,
    )


def test_kernels_in_a_loop_of_the_host() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((8,), "int32"), n: T.int32):
        for step in range(n):
            with T.Kernel(8) as block:
                A[block] += step
        if n > 2:
            with T.Kernel(1):
                A[0] = -1

    array = np.zeros(8, np.int32)
    interpret(kernel.function, [array, 4])
    assert array.tolist() == [-1, 6, 6, 6, 6, 6, 6, 6]


def test_loops_of_the_program_need_a_kernel_or_a_macro() -> None:
    def clear(A):
        for i in T.Parallel(8):
            A[i] = 0

    with pytest.raises(LoopOutsideKernel) as caught:

        @T.prim_func
        def kernel(A: T.Tensor((8,), "int32")):
            with T.Kernel(1):
                clear(A)

    assert caught.value.message == "T.Parallel is a loop of the program, which Python cannot run"
    assert caught.value.hint == (
        "write `for i in T.Parallel(...)` in a kernel, or in a helper with @T.macro above its `def`"
    )
    span = caught.value.span
    assert span is not None
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[span.line - 1]
    assert line.strip() == "for i in T.Parallel(8):"


def test_parallel_loops_of_any_number_of_dimensions() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((2, 2, 2, 2, 2, 2), "int32")):
        with T.Kernel(1, threads=64):
            for a, b, c, d, e, f in T.Parallel(2, 2, 2, 2, 2, 2, annotations={}):
                A[a, b, c, d, e, f] = a + 2 * f

    found = np.full((2,) * 6, 7, np.int32)
    interpret(kernel.function, [found])
    assert np.array_equal(found, np.arange(2).reshape(2, 1, 1, 1, 1, 1) + np.zeros_like(found) + 2 * np.arange(2))


def test_a_name_of_a_vectors_type_has_the_elements_of_a_slice() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((8,), "float16"), B: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=1):
            first: T.float32x4 = A[0:4]
            B[4:8] = first + first * 2

    a, b = np.arange(8, dtype=np.float16) + 3, np.zeros(8, np.float32)
    interpret(kernel.function, [a, b])
    assert b.tolist() == [0, 0, 0, 0, *(3 * a[:4].astype(np.float32))]
    with pytest.raises(NumberExpected, match="a value of float32x4 is a slice of 3"):

        @T.prim_func
        def wrong(A: T.Tensor((8,), "float32")):
            with T.Kernel(1, threads=1):
                first: T.float32x4 = A[0:3]  # noqa: F841
