"""How TileLang's programs call kernels, and what they get: None and addresses for tensors, sizes in sums, torch's tensors, targets."""

import functools
from pathlib import Path

import numpy as np
import pytest
import torch

import tilewright
import tilewright.compat.tilelang as tilelang
import tilewright.language as T
from tilewright.compat.tilelang import quantize
from tilewright.compat.tilelang.targets import Target, request
from tilewright.errors import AssertionFailed, TilewrightError, WrongArgumentKind, WrongArgumentShape
from tilewright.specialization import InvalidUse

TARGETS = ["cpu", "cuda -arch=sm_90a"]


def call(kernel, *arguments):
    return kernel.emulate(*arguments) if kernel.arch.has_threads else kernel(*arguments)


@T.prim_func
def biased(
    A: T.Tensor((40,), "float32"), Bias: T.Tensor((40,), "float32"), C: T.Tensor((40,), "float32"), with_bias: T.bool
):
    with T.Kernel(2, threads=32) as bx:
        for i in T.Parallel(32):
            C[bx * 32 + i] = A[bx * 32 + i]
        if with_bias:
            for i in T.Parallel(32):
                C[bx * 32 + i] += Bias[bx * 32 + i]


@pytest.mark.parametrize("target", TARGETS)
def test_none_for_a_tensor_that_conditions_guard(target):
    kernel = tilewright.compile(biased, target=target)
    a, b = np.random.default_rng(0).standard_normal((2, 40)).astype(np.float32)
    for bias, wanted in ((None, a), (b, a + b), (None, a)):
        c = np.full(40, np.nan, np.float32)
        call(kernel, a, bias, c, bias is not None)
        assert np.array_equal(c, wanted)
    c = np.full(40, np.nan, np.float32)
    kernel.interpret(a, None, c, False)
    assert np.array_equal(c, a)
    with pytest.raises(WrongArgumentKind, match="argument 'A' is a NoneType"):
        kernel(None, b, c, True)


def test_none_of_unknown_shape():
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), B: T.Tensor((n,), "float32"), use: T.int32):
        with T.Kernel(1, threads=32):
            if use == 1:
                for i in T.Parallel(8):
                    A[i] = B[i]

    a = np.zeros(8, np.float32)
    with pytest.raises(WrongArgumentKind, match="'B' is None, and no other argument tells its shape"):
        tilewright.compile(main, target="cpu")(a, None, 0)


def test_none_where_no_one_asks_for_its_size():
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n,), "float16"), B: T.Tensor((n, n), "float16"), C: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                C[i] = i

    c, kernel = np.zeros(8, np.float32), tilewright.compile(main, target="cpu")
    for a in (None, np.zeros(3, np.float16)):
        c[:] = 7
        kernel(a, None, c)
        assert c.tolist() == list(range(8))

    @T.prim_func
    def sized(A: T.Tensor((n,), "float16"), C: T.Tensor((8,), "float32")):
        with T.Kernel(n, threads=32) as block:
            C[block] = 1.0

    with pytest.raises(WrongArgumentKind, match="'A' is None, and no other argument tells its shape"):
        tilewright.compile(sized, target="cpu")(None, c)


def test_a_condition_that_reads_a_tensor_is_a_use_of_it():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            if B[0] > 0:
                for i in T.Parallel(8):
                    A[i] = B[i]

    with pytest.raises(WrongArgumentKind, match="'B' is a NoneType"):
        tilewright.compile(main, target="cpu")(np.zeros(8, np.float32), None)


def test_addresses_for_pointers():
    @T.prim_func
    def main(a: T.ptr, b: T.ptr, n: T.int32):
        A, B = T.make_tensor(a, (n,), "float32"), T.make_tensor(b, (n,), "float32")
        with T.Kernel(T.ceildiv(n, 32), threads=32) as bx:
            for i in T.Parallel(32):
                B[bx * 32 + i] = A[bx * 32 + i] + 1

    kernel = tilelang.compile(main, target="c")
    a, b = torch.randn(45), torch.zeros(45)
    kernel(a.data_ptr(), b.data_ptr(), 45)
    assert torch.equal(b, a + 1)
    kernel(a, b.zero_(), 45)
    assert torch.equal(b, a + 1)
    with pytest.raises(WrongArgumentKind, match="'A' is an int"):
        tilewright.compile(biased, target="cpu")(a.data_ptr(), b, b, False)


@tilelang.jit(target="c")
def by_pointers(A: T.ptr, B: T.ptr, N: int, dtype: T.dtype, block: int = 32):
    A = T.make_tensor(A, (N,), dtype)
    B = T.make_tensor(B, (N,), dtype)
    with T.Kernel(T.ceildiv(N, block), threads=32) as bx:
        for i in T.Parallel(block):
            B[bx * block + i] = A[bx * block + i] + 1


def test_pointers_of_a_direct_function():
    assert len(by_pointers.par_compile([{"A": T.ptr(), "B": T.ptr(), "N": 45, "dtype": T.float32}])) == 1
    a, b = torch.randn(45), torch.zeros(45)
    by_pointers(a, b, 45, torch.float32)
    assert torch.equal(b, a + 1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "extent, good, bad",
    [(lambda n: n * 4, 12, 13), (lambda n: n + 1, 7, 0), (lambda n: 3 * n + 1, 13, 12), (lambda n: 20 - n, 7, 21), (lambda n: 2 * (n - 1), 6, 7)],
)  # fmt: skip
def test_an_extent_with_constants_tells_its_size(target, extent, good, bad):
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((extent(n),), "int32"), B: T.Tensor((1,), "int32")):
        with T.Kernel(1, threads=32):
            B[0] = n
            for i in T.serial(extent(n)):
                A[i] = i

    kernel = tilewright.compile(main, target=target)
    a, b = np.zeros(good, np.int32), np.zeros(1, np.int32)
    call(kernel, a, b)
    assert a.tolist() == list(range(good)) and extent(int(b[0])) == good
    kernel.interpret(a[:] * 0, b * 0)
    with pytest.raises(WrongArgumentShape, match="of a whole 'n'"):
        call(kernel, np.zeros(bad, np.int32), b)


def test_results_are_tensors_of_torch_where_the_program_has_it():
    @tilelang.jit(out_idx=-1, target="c")
    @T.prim_func
    def numbers(A: T.Tensor((4,), "bfloat16")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(4):
                A[i] = i

    kernel = numbers()  # as a factory does, since it takes nothing
    assert isinstance(kernel, tilelang.JITKernel) and numbers.get_tir().script
    made = kernel()
    assert made.dtype is torch.bfloat16 and made.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("target", ["c", "llvm", "cpu", {"kind": "c"}, Target("llvm"), "auto", None], ids=str)
def test_targets_of_decorated_functions(target):
    """`compile` of these knew tilewright's own spellings alone."""

    @tilelang.jit
    def twice(A, B):
        N = T.const("N")
        A: T.Tensor[[N], "float32"]
        B: T.Tensor[[N], "float32"]
        with T.Kernel(T.ceildiv(N, 32), threads=32) as bx:
            for i in T.Parallel(32):
                B[bx * 32 + i] = A[bx * 32 + i] * 2

    a, b = torch.randn(40), torch.zeros(40)
    twice.compile(N=40, target=target)(a, b)
    assert torch.equal(b, a * 2)
    assert "void" in twice.get_kernel_source(N=40, target=target)


def test_a_target_that_is_open_is_the_default():
    with Target("cuda -arch=sm_80"):
        assert request("auto") == request(None) == "cuda -arch=sm_80" and request("c") == "cpu"
        with Target("c") as inner:
            assert Target.current() == inner and request("auto") == "cpu"
    assert Target.current() is None


@pytest.mark.parametrize("name", ["MatrixCoreIntrinEmitter", "DefaultPolicy"])
def test_names_without_meaning_import_and_say_what_to_write(name):
    from tilewright.compat.tilelang import carver, intrinsics

    found = getattr(intrinsics, name, None) or getattr(carver, name)

    def inherit():
        class Mine(found):
            pass

    for use in (lambda: found(), lambda: found.anything, inherit):
        with pytest.raises(InvalidUse, match=f"tilewright has no {name}") as caught:
            use()
        assert caught.value.hint


@pytest.mark.parametrize("target", TARGETS)
def test_codes_out_of_words(target):
    unsigned = quantize._tir_packed_to_unsigned_convert("uint", 8)
    added = quantize._tir_packed_to_signed_convert("uint", 8)
    signed = quantize._tir_packed_int_to_int_convert("int", 8)
    fp4 = quantize._tir_packed_to_fp4_to_f16("uint", 8)
    zeros = quantize._tir_packed_to_unsigned_convert_with_zeros("uint", 8)

    @T.prim_func
    def main(A: T.Tensor((256,), "uint8"), S: T.Tensor((256,), "int8"), B: T.Tensor((5, 512), "float16")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(512):
                B[0, i] = unsigned(4, A[i // 2], i % 2, dtype="float16")
                B[1, i] = added(4, A[i // 2], i % 2, dtype="float16")
                B[2, i] = signed(4, S[i // 2], i % 2, dtype="float16")
                B[3, i] = fp4(4, A[i // 2], i % 2, "float16")
                B[4, i] = zeros(4, A[i // 2], i % 2, 3, dtype="float16")

    words = np.arange(256, dtype=np.uint8)
    found = np.zeros((5, 512), np.float16)
    call(tilewright.compile(main, target=target), words, words.view(np.int8), found)
    codes = np.stack([words & 15, words >> 4], 1).reshape(-1).astype(int)
    sizes = np.where(codes & 7, 2.0 ** ((codes & 7) - 7), 0) * np.where(codes >> 3, -1, 1)
    wanted = [codes, codes - 8, (codes ^ 8) - 8, sizes, codes - 3]
    assert np.array_equal(found.astype(float), np.stack(wanted))
    with pytest.raises(TilewrightError, match="words are int8, not uint8"):

        @T.prim_func
        def wrong(S: T.Tensor((8,), "int8"), B: T.Tensor((8,), "float16")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(8):
                    B[i] = unsigned(4, S[i], 0, dtype="float16")


@T.prim_func
def doubled(A: T.Tensor((40,), "float32"), B: T.Tensor((40,), "float32")):
    with T.Kernel(2, threads=32) as bx:
        for i in T.Parallel(32):
            B[bx * 32 + i] = A[bx * 32 + i] * 2


def test_what_else_a_profiler_says():
    profiler = tilelang.compile(doubled, out_idx=[1], target="c").get_profiler()
    profiler.assert_consistent(repeat=3)
    seen = []
    profiler.manual_assert_close(
        lambda a: a * 2, None, lambda found, wanted: seen.append(torch.equal(found[0], wanted[0]))
    )
    assert seen == [True] and profiler.result_idx == [1] and len(profiler.params) == 2
    with pytest.raises(InvalidUse, match="how to compare"):
        profiler.manual_assert_close(lambda a: a)


@pytest.mark.parametrize("together", [False, True])
def test_configurations_of_the_arguments(together):
    seen = []

    def by_arguments(n, threads=None):
        seen.append(n)
        return [{"threads": 32}]

    def by_both(args, kwargs):
        return by_arguments(*args, **kwargs)

    @tilelang.autotune(configs=by_both if together else by_arguments, warmup=1, rep=1)
    @tilelang.jit(out_idx=[1], target="c")
    def factory(n, threads=64):
        @T.prim_func
        def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
            with T.Kernel(1, threads=threads):
                T.copy(A, B)

        return main

    kernel = factory(40)
    assert seen[0] == 40 and kernel.config == {"threads": 32}


@pytest.mark.parametrize(
    "written",
    ["torch.relu(A[i])", "torch.nn.functional.silu(A[i])", "torch.where(A[i] > 0, A[i], 0.0)", "torch.sum(A)"],
)
def test_functions_of_torch_in_a_kernel(written, tmp_path):
    """They said what torch says of an unknown class, and not where."""
    file = tmp_path / "program.py"
    file.write_text(f"""
@T.prim_func
def main(A: T.Tensor((8,), "float32")):
    with T.Kernel(1):
        for i in T.Parallel(8):
            A[i] = {written}
""")
    with pytest.raises(TilewrightError, match=r"torch\.\w+ (needs a value that is known|works on scalars)") as caught:
        exec(compile(file.read_text(), file, "exec"), {"T": T, "torch": torch})
    assert f"--> {file}:6:20" in str(caught.value) and "^" * len(written) in str(caught.value)
    with pytest.raises(TilewrightError, match="operand of `\\*` is a Tensor"):

        @T.prim_func
        def scaled(A: T.Tensor((8,), "float32")):
            with T.Kernel(1):
                A[0] = torch.tensor(2.0) * A[0]


@pytest.mark.parametrize("target", TARGETS)
def test_assertions_before_a_kernel(target):
    """A GPU's host program knew none: an internal error."""
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), s: T.float32):
        assert n % 4 == 0, "n must be a multiple of 4"
        assert s > 0, "s must be positive"
        with T.Kernel(T.ceildiv(n, 32), threads=32) as b:
            for i in T.Parallel(32):
                A[b * 32 + i] = s

    kernel = tilewright.compile(main, target=target)
    a = np.zeros(40, np.float32)
    call(kernel, a, 2.0)
    assert (a == 2).all()
    for rows, scale, message in ((41, 1.0, "n must be a multiple of 4"), (40, -1.0, "s must be positive")):
        with pytest.raises(AssertionFailed, match=message) as caught:
            call(kernel, np.zeros(rows, np.float32), scale)
        assert "assert " in str(caught.value)


@pytest.mark.parametrize("target", TARGETS)
def test_torchs_pairs_of_codes(target):
    """`torch.float4_e2m1fn_x2` had no dtype here, though it is what `as_torch` gives."""

    @T.prim_func
    def main(A: T.Tensor((64,), T.float4_e2m1fn), B: T.Tensor((64,), "float32")):
        assert A[0:2].buffer.name == "A"
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                B[i] = T.cast(A[i], "float32")

    codes = torch.arange(32, dtype=torch.uint8) * 8
    of_bytes, of_pairs = torch.zeros(64), torch.zeros(64)
    kernel = tilewright.compile(main, target=target)
    call(kernel, codes, of_bytes)
    call(kernel, codes.view(T.float4_e2m1fn.as_torch()), of_pairs)
    assert torch.equal(of_bytes, of_pairs) and of_pairs[1] == 0 and of_pairs[2] == -0.0 and of_pairs[9] == 1


HEADER = """#pragma once
#include "inner/twice.h"
#include "inner/twice.h"
namespace mine { TW_DEVICE float scaled(float x) { return twice(x) * FACTOR; } }
"""


@pytest.fixture
def flags(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "twice.h").write_text("#pragma once\nTW_DEVICE float twice(float x) { return 2 * x; }\n")
    (tmp_path / "scaled.h").write_text(HEADER)
    return ["-O3", "-include", str(tmp_path / "scaled.h"), "-DFACTOR=3", "--use_fast_math"]


@pytest.mark.parametrize("way", ["factory", "direct", "compiled", "configured", "annotated"])
def test_compile_flags_put_files_and_names_before_the_text(way, flags):
    """They were passed over, and the compiler did not know the functions."""
    target = "cuda -arch=sm_90a"

    def program(said):
        @T.prim_func
        def main(A: T.Tensor((32,), "float32"), B: T.Tensor((32,), "float32")):
            if said:
                T.annotate_compile_flags(said)
            with T.Kernel(1, threads=32):
                tx = T.get_thread_binding()
                B[tx] = T.call_extern("float32", "mine::scaled", A[tx])

        return main

    if way == "factory":
        kernel = tilelang.jit(lambda: program(None), out_idx=[1], target=target, compile_flags=flags)()
    elif way == "direct":

        @tilelang.jit(target=target, compile_flags=flags)
        def direct(A):
            A: T.Tensor[(32,), "float32"]
            B = T.empty((32,), "float32")
            with T.Kernel(1, threads=32):
                tx = T.get_thread_binding()
                B[tx] = T.call_extern("float32", "mine::scaled", A[tx])
            return B

        kernel = direct.compile()
    elif way == "compiled":
        kernel = tilelang.compile(program(None), out_idx=[1], target=target, compile_flags=" ".join(flags))
    elif way == "configured":
        configs = {tilelang.PassConfigKey.TL_DEVICE_COMPILE_FLAGS: flags}
        kernel = tilelang.compile(program(None), out_idx=[1], target=target, pass_configs=configs)
    else:
        kernel = tilelang.compile(program(flags), out_idx=[1], target=target)
    a = np.arange(32, dtype=np.float32)
    assert np.array_equal(kernel.emulate(a), a * 6)


@pytest.mark.parametrize(
    "flags, said",
    [
        (
            ["-include", "nowhere.h"],
            "there is no file 'nowhere.h', which compile flags name\n  help: give its whole path",
        ),
        (["-O3", "-D"], "the compile flag -D says nothing\n  help: write -D and what it means"),
        ([3], "a compile flag is a text, but here int"),
    ],
)
def test_a_flag_that_says_nothing_is_refused(flags, said):
    with pytest.raises(TilewrightError) as caught:
        tilelang.compile(biased, compile_flags=flags)
    assert str(caught.value) == said


def test_whatever_is_no_tensor_is_given_while_a_direct_function_is_traced():
    """Objects with a shape that are no arrays, such as layouts, were taken for tensors without an annotation."""

    @tilelang.jit(target="cpu")
    def applied(A, layout, function):
        A: T.Tensor[(128, 32), "float32"]
        B = T.empty((128, 32), "float32")
        with T.Kernel(1, threads=128):
            for i, j in T.Parallel(128, 32, loop_layout=layout):
                B[i, j] = function(A[i, j])
        return B

    layout = T.Fragment((128, 32), forward_fn=lambda i, j: ((i * 32 + j) // 4 % 128, j % 4 + (i * 32 + j) // 512 * 4))
    a = np.random.default_rng(0).standard_normal((128, 32)).astype(np.float32)
    assert np.allclose(applied(a, layout, T.exp), np.exp(a), rtol=1e-5)


def wrapped(function):
    @functools.wraps(function)
    def call(*arguments):
        return function(*arguments)

    return call


class Maker:
    size = 4

    @classmethod
    def of_a_class(cls):
        @T.macro
        def inner(A):
            A[0] = A[0, 0]  # wrong

        @T.prim_func
        def main(A: T.Tensor((cls.size,), "float32")):
            with T.Kernel(1, threads=32):
                inner(A)

    @property
    def of_a_property(self):
        @T.prim_func
        def main(A: T.Tensor((self.size,), "float32")):
            with T.Kernel(1, threads=32):
                A[0] = A[0, 0]  # wrong


def of_decorators(*around):
    def factory(n):
        @T.prim_func
        def main(A: T.Tensor((n,), "float32")):
            with T.Kernel(1, threads=32):
                A[0] = A[0, 0]  # wrong

        return main

    made = tilelang.jit(factory, target="cpu")
    for one in around:
        made = one(made)
    return made(4)


@pytest.mark.parametrize(
    "make",
    [
        Maker.of_a_class,
        lambda: Maker().of_a_property,
        lambda: of_decorators(functools.lru_cache, wrapped),
        lambda: of_decorators(tilelang.autotune(configs=[{}, {}])),
    ],
    ids=["class method", "property", "decorators", "autotune"],
)
def test_mistakes_are_shown_in_the_authors_file(make):
    """Of functions that are tuned the message named no place."""
    with pytest.raises(TilewrightError) as told:
        make()
    line = Path(__file__).read_text().split("\n")[told.value.span.line - 1]
    assert told.value.span.file == __file__ and line.strip() == "A[0] = A[0, 0]  # wrong"
    assert str(told.value).split("\n")[4].strip("| ") == "^^^^^^^"
