"""What can be wrong with the arguments of a call: each mistake by its message, and the next call works."""

import numpy as np
import pytest

import tilewright
import tilewright.language as T
from tilewright import errors
from tilewright.ir.arguments import TensorView
from tilewright.ir.dtypes import dtype
from tilewright.runtime import arguments, tensors
from tilewright.runtime.dlpack import UnreadableTensor


@tilewright.jit(target="cpu", out_idx=None)
def make_scale(n=None):
    size = T.dynamic("n") if n is None else n

    @T.prim_func
    def scale(A: T.Tensor((size, 4), "float32"), factor: T.float32, B: T.Tensor((size, 4), "float32")):
        with T.Kernel(T.ceildiv(size, 8)) as block:
            for i, j in T.Parallel(8, 4):
                B[block * 8 + i, j] = A[block * 8 + i, j] * factor

    return scale


@pytest.fixture(scope="module")
def scale():
    return make_scale()


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def read_only(array):
    array.flags.writeable = False
    return array


SHARED = np.ones((11, 4), np.float32)

MISTAKES = [
    (lambda: (ones(5, 4), 2.0), errors.WrongArgumentCount, "scale(A, factor, B) lacks B"),
    (
        lambda: (ones(5, 4), 2.0, ones(5, 4), 1),
        errors.WrongArgumentCount,
        "scale(A, factor, B) takes 3 arguments, 4 were given",
    ),
    (
        lambda: ([1.0], 2.0, ones(5, 4)),
        errors.WrongArgumentKind,
        "argument 'A' is a list, expected a tensor\n"
        "  help: pass a NumPy array, a torch tensor or anything with __dlpack__",
    ),
    (
        lambda: (ones(5, 4), "two", ones(5, 4)),
        errors.WrongArgumentKind,
        "argument 'factor' is a str, expected a float32",
    ),
    (
        lambda: (ones(5, 4, dtype=np.float64), 2.0, ones(5, 4)),
        errors.WrongArgumentDType,
        "argument 'A' has dtype float64, expected float32\n  help: convert it to float32 first",
    ),
    (
        lambda: (ones(5, 4, dtype=np.complex64), 2.0, ones(5, 4)),
        errors.WrongArgumentDType,
        "arrays of complex64 have no tilewright dtype",
    ),
    (
        lambda: (ones(20), 2.0, ones(5, 4)),
        errors.WrongArgumentRank,
        "argument 'A' has shape (20,), expected 2 dimensions (n, 4)",
    ),
    (
        lambda: (ones(5, 3), 2.0, ones(5, 4)),
        errors.WrongArgumentShape,
        "argument 'A' has shape (5, 3): dimension 1 is 3, expected 4",
    ),
    (
        lambda: (ones(5, 4), 2.0, ones(6, 4)),
        errors.WrongArgumentShape,
        "argument 'B' has shape (6, 4): dimension 0 is 6, expected 5 (n = 5 from dimension 0 of 'A')",
    ),
    (
        lambda: (ones(4, 5).T, 2.0, ones(5, 4)),
        errors.WrongArgumentStrides,
        "argument 'A' has strides (1, 5), expected row-major\n"
        "  help: pass a contiguous copy (np.ascontiguousarray, .contiguous()), or declare it T.StridedTensor",
    ),
    (
        lambda: (ones(5, 8)[:, ::2], 2.0, ones(5, 4)),
        errors.WrongArgumentStrides,
        "argument 'A' has strides (8, 2), expected row-major\n"
        "  help: pass a contiguous copy (np.ascontiguousarray, .contiguous()), or declare it T.StridedTensor",
    ),
    (
        lambda: (ones(5, 4), 2.0, read_only(ones(5, 4))),
        errors.ReadOnlyArgument,
        "argument 'B' is written by the kernel and is read-only",
    ),
    (
        lambda: (SHARED[:10], 2.0, SHARED[1:]),
        errors.OverlappingArguments,
        "argument 'B', which the kernel writes, shares memory with 'A'\n  help: pass a copy of one of them",
    ),
    (
        lambda: (np.frombuffer(bytearray(81), np.uint8)[1:].view(np.float32).reshape(5, 4), 2.0, ones(5, 4)),
        errors.MisalignedArgument,
        "argument 'A' starts at an address that is no multiple of 4 bytes\n  help: pass a copy",
    ),
]


@pytest.mark.parametrize("arguments, kind, message", MISTAKES, ids=[message[:40] for _, _, message in MISTAKES])
def test_mistakes_are_named_and_nothing_runs(scale, arguments, kind, message):
    given = arguments()
    kept = [value.copy() for value in given if isinstance(value, np.ndarray)]
    with pytest.raises(kind) as caught:
        scale(*given)
    assert str(caught.value) == message
    assert isinstance(caught.value, tilewright.TilewrightError)
    for before, after in zip(kept, (value for value in given if isinstance(value, np.ndarray))):
        assert np.array_equal(before, after)
    a, b = ones(3, 4), np.zeros((3, 4), np.float32)
    scale(a, 3.0, b)
    assert (b == 3).all()


def test_names_of_arguments(scale):
    a, b = ones(3, 4), np.zeros((3, 4), np.float32)
    scale(a, B=b, factor=2)
    assert (b == 2).all()
    with pytest.raises(errors.WrongArgumentCount, match=r"has no parameter 'fctor'\n  help: did you mean 'factor'\?"):
        scale(a, B=b, fctor=2)
    with pytest.raises(errors.WrongArgumentCount, match="was given 'A' twice"):
        scale(a, 2.0, b, A=a)


def test_sizes_of_zero_give_empty_results(scale):
    b = np.zeros((0, 4), np.float32)
    scale(ones(0, 4), 2.0, b)
    assert b.shape == (0, 4)


def test_a_static_kernel_checks_the_same(scale):
    fixed = make_scale(5)
    with pytest.raises(errors.WrongArgumentShape, match="dimension 0 is 6, expected 5"):
        fixed(ones(6, 4), 2.0, ones(5, 4))


@tilewright.jit(target="cpu")
def unpacked(W):
    N, K = T.const("N, K")
    W: T.Tensor((N, K), "uint4")
    Y = T.empty((N, K), "int32")
    with T.Kernel(1):
        for i, j in T.Parallel(N, K):
            Y[i, j] = T.cast(W[i, j], "int32")
    return Y


def test_sub_byte_tensors_are_bytes():
    values = np.random.default_rng(0).integers(0, 16, (3, 10))
    packed = tilewright.pack(values, "uint4")
    assert packed.shape == (3, 5) and packed.dtype == np.uint8
    with pytest.raises(errors.OutOfRange) as caught:
        tilewright.pack(np.array([[3, 16]]), "uint4")
    assert str(caught.value) == "the value 16 at index (0, 1) does not fit uint4, which holds 0 to 15"
    assert np.array_equal(unpacked(packed), values)
    assert np.array_equal(unpacked(packed.view(np.int8)), values)
    with pytest.raises(errors.WrongArgumentDType, match="has dtype float32, expected uint8 holding packed uint4"):
        unpacked(packed.astype(np.float32))


def test_what_is_packed_comes_back_or_is_refused():
    values = np.array([[-8, 7, 3]])
    packed = tilewright.pack(values.astype(np.float32), "int4")
    for given in (packed, packed.view(np.int8)):
        assert np.array_equal(tilewright.unpack(given, "int4", 3), values)
    assert np.array_equal(tilewright.pack(values.tolist(), "int4"), packed)
    for wrong in (1.5, np.nan):
        with pytest.raises(errors.OutOfRange, match=rf"the value {wrong} at index \(1,\) does not fit int4"):
            tilewright.pack(np.array([0, wrong]), "int4")
    with pytest.raises(errors.WrongArgumentDType, match="values of float32 were given for float4_e2m1fn"):
        tilewright.pack(np.ones(2, np.float32), "float4_e2m1fn")
    with pytest.raises(errors.WrongArgumentDType, match="packed int4 is given as float32, expected uint8"):
        tilewright.unpack(np.ones(2, np.float32), "int4", 2)
    with pytest.raises(errors.WrongArgumentShape, match="2 bytes do not hold 5 elements of int4"):
        tilewright.unpack(packed[0], "int4", 5)


@pytest.mark.parametrize("known", [False, True], ids=["first call", "later call"])
def test_tensors_of_torch_without_memory_are_refused(scale, known):
    """As later calls too, which look at addresses alone: a tensor on ``meta`` is told from a CPU's by nothing else."""
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    good, freed, result = torch.ones(8, 4), torch.ones(8, 4), torch.zeros(8, 4)
    freed.untyped_storage().resize_(0)
    with FakeTensorMode():
        fake = torch.ones(8, 4)
    for _ in range(2 * known):
        scale(good, 2.0, result)
    with pytest.raises(errors.WrongArgumentDevice, match="argument 'A' is on meta, the kernel runs on cpu"):
        scale(good.to("meta"), 2.0, result)
    for tensor in (fake, freed, good.to_sparse()):
        with pytest.raises(UnreadableTensor, match=f"a {type(tensor).__name__} of torch has no memory"):
            scale(tensor, 2.0, result)
    with pytest.raises(UnreadableTensor, match="a tensor of torch is a negated view of another"):
        scale(torch._neg_view(good), 2.0, result)
    scale(good, 3.0, result)
    assert (result == 3).all()


@tilewright.jit(target="cpu")
def shifted(A, factor):
    n = T.const("n")
    A: T.Tensor((n, 4), "float32")
    B = T.empty((n, 4), "float32")
    with T.Kernel(T.ceildiv(n, 8)) as block:
        for i, j in T.Parallel(8, 4):
            B[block * 8 + i, j] = A[block * 8 + i, j] + factor
    return B


@pytest.mark.parametrize("layout", ["strided", "jagged"])
def test_nested_tensors_are_refused_by_calls_that_are_known(scale, layout):
    """Torch ends the process where it is asked to compare the strides of one with those of the call before."""
    torch = pytest.importorskip("torch")
    good, result = torch.ones(8, 4), torch.zeros(8, 4)
    nested = torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)], layout=getattr(torch, layout))
    for _ in range(3):
        scale(good, 2.0, result)
        assert (shifted(good, 2) == 3).all()
    for call in (lambda: shifted(nested, 2), lambda: scale(nested, 2.0, result)):
        with pytest.raises(UnreadableTensor, match="a tensor of torch is nested"):
            call()
    for other in (good.numpy(), 5, None):
        if other is None or isinstance(other, int):
            with pytest.raises(errors.TilewrightError):
                shifted(other, 2)
        else:
            assert (shifted(other, 2) == 3).all()
    assert (shifted(good, 2) == 3).all()


class Foreign:
    """A tensor of some framework that speaks DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_anything_with_dlpack_is_taken(scale):
    a, b = ones(9, 4), np.zeros((9, 4), np.float32)
    scale(Foreign(a), 2.0, Foreign(b))
    assert (b == 2).all()


def test_arrays_of_jax_are_read_and_never_written(scale):
    """They share memory with others that hold the same value, and nothing in their capsules says that it stays."""
    of_jax = type("ArrayImpl", (Foreign,), {"__module__": "jaxlib._jax"})
    a, b = ones(9, 4), np.zeros((9, 4), np.float32)
    scale(of_jax(a), 2.0, b)
    assert (b == 2).all()
    with pytest.raises(errors.ReadOnlyArgument, match="argument 'B' is written by the kernel and is read-only"):
        scale(a, 3.0, of_jax(b))
    assert (b == 2).all()


def test_an_output_that_is_allocated_must_not_be_passed():
    kernel = tilewright.compile(make_scale.trace(), out_idx=-1, target="cpu")
    assert (kernel(ones(7, 4), 3.0) == 3).all()
    with pytest.raises(errors.WrongArgumentCount) as caught:
        kernel(ones(7, 4), 3.0, ones(7, 4))
    assert str(caught.value) == (
        "scale(A, factor) takes 2 arguments, 3 were given\n"
        "  help: B is allocated and returned by the call: do not pass it"
    )


def test_plans_serve_later_calls_and_other_shapes():
    kernel = tilewright.compile(_doubled(), out_idx=-1, target="cpu")
    for rows in (3, 5, 3, 0, 5):
        x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
        first, second = kernel(x), kernel(x)
        assert np.array_equal(first, x * 2) and np.array_equal(second, x * 2)
        assert not np.shares_memory(first, second) or rows == 0
    with pytest.raises(errors.WrongArgumentDType):
        kernel(np.ones((3, 4)))


def _doubled():
    n = T.dynamic("n")

    @T.prim_func
    def doubled(A: T.Tensor((n, 4), "float32"), B: T.Tensor((n, 4), "float32")):
        with T.Kernel(T.ceildiv(n, 8)) as block:
            for i, j in T.Parallel(8, 4):
                B[block * 8 + i, j] = A[block * 8 + i, j] * 2

    return doubled


def test_weights_in_row_major_order_are_not_taken_for_packed_ones():
    from tilewright.kernels.quant_matmul import quant_matmul
    from tilewright.quant import quantize

    weight = quantize(np.random.default_rng(0).standard_normal((64, 128)), "int4")
    kernel = quant_matmul(64, 128, weights="int4", zero=weight.zero)
    a = ones(2, 128)
    with pytest.raises(errors.WrongArgumentShape) as caught:
        kernel(a, weight.packed, weight.grouped_scales, ones(2, 64))
    packed = kernel.pack(W=weight.packed)
    assert str(caught.value) == (
        f"argument 'W' has shape (64, 64), its packed form has shape {packed.shape}\n"
        "  help: pack it first: kernel.pack(W=...)"
    )
    kernel(a, packed, weight.grouped_scales, ones(2, 64))


def test_a_whole_line_is_underlined_from_its_first_word(tmp_path):
    path = tmp_path / "lines.py"
    path.write_text("first\n    second line\n")
    assert errors.Span(str(path), 2).show().endswith("2 |     second line\n  |     ^^^^^^^^^^^")


def test_symbolic_strides_are_bound():
    M, N, step = T.dynamic("M, N, step")

    @T.prim_func
    def gather_rows(A: T.StridedTensor((M, N), (step, 1), "float32"), B: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(M, 4)) as block:
            for i, j in T.Parallel(4, N):
                B[block * 4 + i, j] = A[block * 4 + i, j] + 1

    kernel = tilewright.compile(gather_rows, out_idx=-1, target="cpu")
    wide = np.random.default_rng(0).standard_normal((7, 10)).astype(np.float32)
    assert np.array_equal(kernel(wide[:, :6]), wide[:, :6] + 1)
    assert np.array_equal(kernel(wide), wide + 1)
    with pytest.raises(errors.WrongArgumentStrides):
        kernel(wide[:, ::2])


def test_plans_of_kernels_that_write_arguments_look_for_overlaps():
    kernel = tilewright.compile(_doubled(), target="cpu")
    memory = np.zeros((12, 4), np.float32)
    memory[:4] = 1
    for _ in range(3):
        kernel(memory[:4], memory[4:8])
    assert (memory[4:8] == 2).all() and len(kernel.plans) == 1
    for overlapping in (memory[1:5], memory[3:7]):
        with pytest.raises(errors.OverlappingArguments):
            kernel(memory[:4], overlapping)
    kernel(memory[4:8], memory[8:])
    assert (memory[8:] == 4).all()


def test_sizes_that_their_variable_cannot_hold_are_named():
    kernel = tilewright.compile(_doubled(), out_idx=-1, target="cpu")
    vast = np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (1 << 31, 4), (16, 4))
    with pytest.raises(errors.WrongArgumentShape) as caught:
        kernel(vast)
    assert str(caught.value) == (
        "dimension 0 of 'A' is 2147483648, and 'n' is an int32\n"
        "  help: declare it with 64 bits: T.dynamic('n', 'int64')"
    )


def test_tensors_on_other_devices_are_named(monkeypatch):
    """What a machine with several GPUs hands over: one tensor on each, and one in host memory."""

    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = A[i]

    def view(device):
        return TensorView(4096, (64,), (1,), dtype("float32"), device, False, None)

    monkeypatch.setattr(arguments, "is_tensor", lambda value: True)
    monkeypatch.setattr(arguments, "tensor_view", view)
    binder = arguments.Binder(main.function, "cuda")
    with pytest.raises(errors.WrongArgumentDevice, match="argument 'B' is on cuda:1, others on cuda:0"):
        binder.bind([("cuda", 0), ("cuda", 1)], {})
    with pytest.raises(errors.WrongArgumentDevice, match="argument 'B' is on cpu, the kernel runs on cuda") as caught:
        binder.bind([("cuda", 0), ("cpu", 0)], {})
    assert "move the tensor" in str(caught.value)


def _numbers():
    @T.prim_func
    def numbers(O: T.Tensor((5, 4), "float16"), first: T.int32, P: T.Tensor((3, 8), "int4")):
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(5, 4):
                O[i, j] = T.cast(first + i, "float16")
            T.clear(P)

    return numbers


def test_outputs_of_calls_without_tensors_are_made_where_the_kernel_runs():
    """On a GPU they were NumPy's.  Torch's ``meta`` stands for a device that NumPy cannot reach."""
    torch = pytest.importorskip("torch")
    function = _numbers().with_outputs([0, 2]).function
    for kind, types in (("cpu", (np.ndarray, np.ndarray)), ("meta", (torch.Tensor, torch.Tensor))):
        bound = arguments.Binder(function, kind).bind([7], {})
        assert tuple(map(type, bound.outputs)) == types
        assert [tuple(made.shape) for made in bound.outputs] == [(5, 4), (3, 4)]
    assert [made.device.type for made in bound.outputs] == ["meta", "meta"]
    first, second = tilewright.compile(_numbers(), out_idx=[0, 2], target="cpu")(7)
    assert (first == np.arange(7, 12, dtype=np.float16)[:, None]).all() and not second.any()


def test_outputs_on_a_device_that_torch_has_not_are_refused():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("torch has a GPU here")
    with pytest.raises(
        errors.WrongArgumentDevice, match="an output has to be made on cuda, which takes torch: "
    ) as caught:
        arguments.Binder(_numbers().with_outputs([0, 2]).function, "cuda").bind([7], {})
    assert "pass the outputs as arguments (out_idx=None)" in str(caught.value)


def test_outputs_beside_tensors_of_other_libraries_are_on_their_device(monkeypatch):
    """Beside a tensor of CuPy's, on its GPU, they were NumPy's."""
    pytest.importorskip("torch")
    view = TensorView(4096, (5, 4), (4, 1), dtype("float32"), ("meta", 0), False, None)
    looked_at = tensors.tensor_view

    class Foreign:
        def __dlpack__(self, **named):
            raise NotImplementedError

    for module in (arguments, tensors):
        monkeypatch.setattr(module, "tensor_view", lambda one: view if isinstance(one, Foreign) else looked_at(one))
    function = _doubled().with_outputs(-1).function
    (made,) = arguments.Binder(function, "meta").bind([Foreign()], {}).outputs
    assert made.device.type == "meta" and tuple(made.shape) == (5, 4)
