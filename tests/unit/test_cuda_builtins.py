"""CUDA's functions by their names in the emulator: what its compilers know without a header."""

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from syntax import program_of

import tilewright
import tilewright.language as T

WORD = 2**32 - 1


def signed(word, bits=32):
    return word - (1 << bits) if word >> (bits - 1) & 1 else word


def lanes(word, bits):
    return [word >> at & (1 << bits) - 1 for at in range(0, 32, bits)]


def joined(values, bits):
    return sum((value & (1 << bits) - 1) << bits * place for place, value in enumerate(values))


def each(bits, is_signed, of):
    """A function of the halves or bytes of words."""

    def run(*words):
        pairs = zip(*(lanes(word, bits) for word in words))
        return joined([of(*(signed(one, bits) if is_signed else one for one in pair)) for pair in pairs], bits)

    return run


def added(of, bits, is_signed, least):
    """The greater or lesser one of a sum, without what it carries, and a third number."""

    def run(a, b, c):
        total = (a + b) & (1 << bits) - 1
        return max(of(signed(total, bits) if is_signed else total, c), least)

    return run


def permuted(x, y, selector):
    both = (y << 32 | x).to_bytes(8, "little")
    return int.from_bytes(bytes(both[selector >> 4 * place & 7] for place in range(4)), "little")


OF_WORDS = {
    "__popc": (1, lambda x: x.bit_count()),
    "__clz": (1, lambda x: 32 - x.bit_length()),
    "__ffs": (1, lambda x: (x & -x).bit_length()),
    "__brev": (1, lambda x: int(f"{x:032b}"[::-1], 2)),
    "__umulhi": (2, lambda x, y: x * y >> 32),
    "__mulhi": (2, lambda x, y: signed(x) * signed(y) >> 32),
    "__umul24": (2, lambda x, y: (x & 0xFFFFFF) * (y & 0xFFFFFF)),
    "__mul24": (2, lambda x, y: signed(x & 0xFFFFFF, 24) * signed(y & 0xFFFFFF, 24)),
    "__hadd": (2, lambda x, y: (signed(x) + signed(y)) >> 1),
    "__urhadd": (2, lambda x, y: (x + y + 1) >> 1),
    "__usad": (3, lambda x, y, z: abs(x - y) + z),
    "__sad": (3, lambda x, y, z: abs(signed(x) - signed(y)) + z),
    "__byte_perm": (3, permuted),
    "__funnelshift_l": (3, lambda low, high, by: (high << 32 | low) << by % 32 >> 32),
    "__funnelshift_r": (3, lambda low, high, by: (high << 32 | low) >> by % 32),
    "__dp4a": (3, lambda x, y, z: sum(a * b for a, b in zip(lanes(x, 8), lanes(y, 8))) + z),
    "__vadd2": (2, each(16, False, lambda a, b: a + b)),
    "__vsub4": (2, each(8, False, lambda a, b: a - b)),
    "__vmaxs2": (2, each(16, True, max)),
    "__vminu4": (2, each(8, False, min)),
    "__vabsdiffs4": (2, each(8, True, lambda a, b: abs(a - b))),
    "__vavgu2": (2, each(16, False, lambda a, b: (a + b + 1) >> 1)),
    "__vaddss2": (2, each(16, True, lambda a, b: max(-32768, min(32767, a + b)))),
    "__vsubus4": (2, each(8, False, lambda a, b: max(0, a - b))),
    "__vcmpgts4": (2, each(8, True, lambda a, b: -(a > b))),
    "__vsetleu2": (2, each(16, False, lambda a, b: int(a <= b))),
    "__dp2a_lo": (3, lambda x, y, z: sum(a * b for a, b in zip(lanes(x, 16), lanes(y, 8))) + z),
    "__dp2a_hi": (3, lambda x, y, z: sum(a * b for a, b in zip(lanes(x, 16), lanes(y, 8)[2:])) + z),
    "__vsads2": (2, lambda x, y: sum(abs(signed(a, 16) - signed(b, 16)) for a, b in zip(lanes(x, 16), lanes(y, 16)))),
    "__vsadu4": (2, lambda x, y: sum(abs(a - b) for a, b in zip(lanes(x, 8), lanes(y, 8)))),
    "__vnegss4": (1, lambda x: each(8, True, lambda a, _: min(127, -a))(x, x)),
    "__vabsss2": (1, lambda x: each(16, True, lambda a, _: min(32767, abs(a)))(x, x)),
}
for kind, bits in (("s32", 32), ("u32", 32), ("s16x2", 16), ("u16x2", 16)):
    for relu in ("", "_relu") if kind[0] == "s" else ("",):
        least = 0 if relu else -math.inf
        OF_WORDS |= {
            f"__vimax3_{kind}{relu}": (3, each(bits, kind[0] == "s", lambda a, b, c, least=least: max(a, b, c, least))),
            f"__vimin3_{kind}{relu}": (
                3,
                each(bits, kind[0] == "s", lambda a, b, c, least=least: max(min(a, b, c), least)),
            ),
            f"__viaddmax_{kind}{relu}": (3, each(bits, kind[0] == "s", added(max, bits, kind[0] == "s", least))),
            f"__viaddmin_{kind}{relu}": (3, each(bits, kind[0] == "s", added(min, bits, kind[0] == "s", least))),
        }
        if relu:
            OF_WORDS[f"__vimax_{kind}{relu}"] = 2, each(bits, True, lambda a, b: max(a, b, 0))
            OF_WORDS[f"__vimin_{kind}{relu}"] = 2, each(bits, True, lambda a, b: max(min(a, b), 0))


@pytest.fixture(scope="module")
def words():
    random = np.random.default_rng(1).integers(0, 2**32, (3, 64), dtype=np.uint32)
    random[0, :4], random[1, :2] = (0, 1, WORD, 2**31), (WORD, 2**31)
    return random


def test_functions_of_words(words):
    source = ["def program(A, C):", f"    A: T.Tensor((3, 64), 'uint32'); C: T.Tensor(({len(OF_WORDS)}, 64), 'uint32')"]
    source += ["    with T.Kernel(1, threads=64):", "        tx = T.get_thread_binding()"]
    for place, (name, (count, _)) in enumerate(OF_WORDS.items()):
        given = ", ".join(f"A[{one}, tx]" for one in range(count))
        source.append(f"        C[{place}, tx] = T.call_extern('uint32', '{name}', {given})")
    found = np.zeros((len(OF_WORDS), 64), np.uint32)
    run("\n".join(source), words, found)
    for row, (name, (count, formula)) in zip(found, OF_WORDS.items()):
        wanted = [formula(*map(int, words[:count, lane])) & WORD for lane in range(64)]
        assert row.tolist() == wanted, name


def run(source, *arguments):
    """Emulate a program of lines."""
    program = program_of(source, f"<{hash(source)}>")
    tilewright.jit(target="cuda -arch=sm_90a")(program).compile(*arguments).emulate(*arguments)


def to_float(exact, direction):
    """A rational number as a float32, rounded in a direction."""
    near = np.float32(float(exact))
    if direction == "rn":
        return near
    down = direction == "rd" or (direction == "rz" and exact > 0)
    if Fraction(float(near)) > exact and down:
        return np.nextafter(near, np.float32(-np.inf))
    if Fraction(float(near)) < exact and not down:
        return np.nextafter(near, np.float32(np.inf))
    return near


@pytest.mark.parametrize("direction", ["rz", "ru", "rd"])
def test_results_rounded_in_a_direction(direction):
    exact = {
        "__fadd": lambda x, y, z: x + y,
        "__fmul": lambda x, y, z: x * y,
        "__fdiv": lambda x, y, z: x / y,
        "__fmaf": lambda x, y, z: x * y + z,
    }
    counts = {"__fmaf": 3}
    random = np.random.default_rng(2)
    given = (random.standard_normal((3, 64)) * 10.0 ** random.integers(-9, 9, (3, 64))).astype(np.float32)
    source = ["def program(A, C):", "    A: T.Tensor((3, 64), 'float32'); C: T.Tensor((4, 64), 'float32')"]
    source += ["    with T.Kernel(1, threads=64):", "        tx = T.get_thread_binding()"]
    for place, name in enumerate(exact):
        operands = ", ".join(f"A[{one}, tx]" for one in range(counts.get(name, 2)))
        source.append(f"        C[{place}, tx] = T.call_extern('float32', '{name}_{direction}', {operands})")
    found = np.zeros((4, 64), np.float32)
    run("\n".join(source), given, found)
    for row, (name, formula) in zip(found, exact.items()):
        wanted = [to_float(formula(*(Fraction(float(one)) for one in given[:, lane])), direction) for lane in range(64)]
        assert row.tolist() == wanted, name


@pytest.mark.parametrize(("dtype", "letter"), [("float32", "f"), ("float64", "d")])
def test_a_sum_of_nothing_has_the_sign_of_its_direction(dtype, letter):
    """1 - 1 rounded down was +0."""
    fused = "__fmaf" if dtype == "float32" else "__fma"
    source = ["def program(A, C):", f"    A: T.Tensor((2,), '{dtype}'); C: T.Tensor((4,), '{dtype}')"]
    source += ["    with T.Kernel(1, threads=1):"]
    for place, direction in enumerate(("rd", "ru")):
        source.append(f"        C[{place}] = T.call_extern('{dtype}', '__{letter}add_{direction}', A[0], A[1])")
        source.append(f"        C[{place + 2}] = T.call_extern('{dtype}', '{fused}_{direction}', A[0], A[0], A[1])")
    found = np.ones(4, dtype)
    run("\n".join(source), np.array([1, -1], dtype), found)
    assert found.tolist() == [0] * 4
    assert np.signbit(found).tolist() == [True, False] * 2


@pytest.mark.parametrize("direction", ["rn", "rz", "ru", "rd"])
def test_whole_numbers_rounded_in_a_direction(direction):
    given = np.random.default_rng(9).integers(0, 2**64, 64, dtype=np.uint64)
    given[:4] = 0, 2**64 - 1, 2**63 + 1, 2**53 + 1
    names = ["__ull2float", "__ll2float", "__ull2double", "__ll2double"]
    source = ["def program(A, C):", "    A: T.Tensor((64,), 'uint64'); C: T.Tensor((4, 64), 'float64')"]
    source += ["    with T.Kernel(1, threads=64):", "        tx = T.get_thread_binding()"]
    for place, name in enumerate(names):
        argument = "T.cast(A[tx], 'int64')" if "_ll" in name else "A[tx]"
        made = f"T.call_extern('float{32 if 'float' in name else 64}', '{name}_{direction}', {argument})"
        source.append(f"        C[{place}, tx] = T.cast({made}, 'float64')")
    found = np.zeros((4, 64))
    run("\n".join(source), given, found)
    for row, name in zip(found, names):
        kind = np.float32 if "float" in name else np.float64
        for got, word in zip(row, given):
            exact = int(word.astype(np.int64)) if "_ll" in name else int(word)
            near = kind(float(exact)) if kind is np.float64 else to_float(Fraction(exact), direction)
            if kind is np.float64 and direction != "rn":
                down = direction == "rd" or (direction == "rz" and exact > 0)
                near = math.nextafter(near, -math.inf) if down and int(near) > exact else near
                near = math.nextafter(near, math.inf) if not down and int(near) < exact else near
            assert got == near and not (got == 0 and np.signbit(got)), (name, word)


@pytest.mark.parametrize("direction", ["rz", "ru", "rd"])
def test_doubles_rounded_in_a_direction(direction):
    """Numbers of all sizes, the smallest and the greatest too: next to the result, on its side, lies the exact one."""
    exact = {
        "__dadd": lambda x, y: x + y,
        "__dsub": lambda x, y: x - y,
        "__dmul": lambda x, y: x * y,
        "__ddiv": lambda x, y: x / y,
        "__drcp": lambda x, y: 1 / x,
        "__fma": lambda x, y: x * y + x,
        "__dsqrt": None,
    }
    given = np.random.default_rng(6).integers(0, 2**63, (2, 64), dtype=np.uint64).view(np.float64)
    given[~np.isfinite(given)] = 3
    given[1, ::4] = 1 / given[0, ::4]
    given[:, 1::8] = np.random.default_rng(7).standard_normal((2, 8))
    given[:, 2::8] = np.abs(given[:, 2::8]) * np.array([1e-300, 1e-20])[:, None] % 1e-300
    given[given == 0], given[np.isinf(given)] = 5e-324, 7
    source = ["def program(A, C):", "    A: T.Tensor((2, 64), 'float64'); C: T.Tensor((7, 64), 'float64')"]
    source += ["    with T.Kernel(1, threads=64):", "        tx = T.get_thread_binding()"]
    for place, name in enumerate(exact):
        operands = {"__dsqrt": "T.abs(A[0, tx])", "__drcp": "A[0, tx]", "__fma": "A[0, tx], A[1, tx], A[0, tx]"}.get(
            name, "A[0, tx], A[1, tx]"
        )
        source.append(f"        C[{place}, tx] = T.call_extern('float64', '{name}_{direction}', {operands})")
    found = np.zeros((7, 64))
    run("\n".join(source), given, found)
    for row, (name, formula) in zip(found, exact.items()):
        for got, x, y in zip(row, *given):
            right = Fraction(abs(x)) if formula is None else formula(Fraction(x), Fraction(y))
            down = direction == "rd" or (direction == "rz" and right > 0)
            ends = (got, math.nextafter(got, math.inf)) if down else (math.nextafter(got, -math.inf), got)
            low, high = (end if np.isinf(end) else Fraction(end) for end in ends)
            if formula is None:
                low, high = (end * abs(end) for end in (low, high))
            assert (low <= right < high) if down else (low < right <= high), (name, x, y, got)


def test_threads_of_a_warp():
    @T.prim_func
    def main(A: T.Tensor((64,), "int32"), C: T.Tensor((7, 64), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            every = T.uint32(WORD)
            C[0, tx] = T.call_extern("int32", "__match_any_sync", every, A[tx])
            C[1, tx] = T.call_extern("int32", "__ballot_sync", every, A[tx] > 2)
            C[2, tx] = T.call_extern("int32", "__shfl_xor_sync", every, A[tx], 5)
            C[3, tx] = T.call_extern("int32", "__shfl_down_sync", every, A[tx], 3, 8)
            C[4, tx] = T.call_extern("int32", "__reduce_max_sync", every, A[tx])
            C[5, tx] = T.call_extern("int32", "__any_sync", every, A[tx] == 4)
            C[6, tx] = T.call_extern("int32", "__syncthreads_count", A[tx] == 4)

    a, c = np.random.default_rng(3).integers(0, 6, 64).astype(np.int32), np.zeros((7, 64), np.int32)
    tilewright.compile(main, target="cuda -arch=sm_90a").emulate(a, c)
    lane, warps = np.arange(64), a.reshape(2, 32)
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    same = [(bits * (warps[one // 32] == a[one])).sum(dtype=np.uint32) for one in lane]
    votes = np.repeat((bits * (warps > 2)).sum(1, dtype=np.uint32), 32)
    down = np.where(lane % 8 + 3 < 8, np.minimum(lane + 3, 63), lane)
    wanted = [np.uint32(same).view(np.int32), votes.view(np.int32), a[lane ^ 5], a[down], np.repeat(warps.max(1), 32)]
    wanted += [np.repeat((warps == 4).any(1), 32), np.full(64, (a == 4).sum())]
    for found, one in zip(c, wanted):
        assert np.array_equal(found, one)


def test_texts_of_authors():
    """Atomic updates, vectors, numbers by their bits, in functions of the author's own text."""
    text = """
    __device__ void counted(int* bins, float* sum, const float* row, int lane) {
      const float4 four = make_float4(row[0], row[1], row[2], row[3]);
      atomicAdd(&bins[__float_as_int(four.x) & 3], 1);
      atomicAdd(sum, four.x + four.y * __saturatef(four.z) + __ldg(row + 3));
      atomicMax(&bins[4], lane);
    }
    """

    @T.prim_func
    def main(A: T.Tensor((64, 4), "float32"), B: T.Tensor((5,), "int32"), S: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=64):
            T.import_source(text)
            tx = T.get_thread_binding()
            places = T.access_ptr(B, "rw"), T.access_ptr(S, "rw"), T.access_ptr(A[tx, 0], "r", 1, 4)
            T.call_extern("void", "counted", *places, tx)

    a = np.random.default_rng(4).standard_normal((64, 4)).astype(np.float32)
    bins, total = np.zeros(5, np.int32), np.zeros(1, np.float32)
    tilewright.compile(main, target="cuda -arch=sm_90a").emulate(a, bins, total)
    keys = [struct.unpack("<i", struct.pack("<f", one))[0] & 3 for one in a[:, 0]]
    assert bins.tolist() == [*np.bincount(keys, minlength=4), 63]
    assert math.isclose(total[0], (a[:, 0] + a[:, 1] * a[:, 2].clip(0, 1) + a[:, 3]).sum(), rel_tol=1e-4)


def test_counters_and_the_threads_of_a_warp():
    """Each thread takes a number below 40, and the counter begins anew; the last warp of a block of 48 is half a one."""

    @T.prim_func
    def main(counter: T.Tensor((2,), "uint32"), C: T.Tensor((3, 48), "uint32")):
        with T.Kernel(1, threads=48):
            tx = T.get_thread_binding()
            C[0, tx] = T.call_extern("uint32", "atomicInc", T.address_of(counter[0]), 39)
            C[1, tx] = T.call_extern("uint32", "atomicDec", T.address_of(counter[1]), 39)
            C[2, tx] = T.call_extern("uint32", "__activemask")

    counter, found = np.zeros(2, np.uint32), np.zeros((3, 48), np.uint32)
    tilewright.compile(main, target="cuda -arch=sm_90a").emulate(counter, found)
    assert sorted(found[0]) == sorted(np.arange(48) % 40)
    assert sorted(found[1]) == sorted(-np.arange(48) % 40)
    assert counter.tolist() == [8, 32]
    assert found[2].tolist() == [WORD] * 32 + [0xFFFF] * 16


def test_functions_of_numbers():
    formulas = {
        "rcbrtf": lambda x: 1 / np.cbrt(x), "normcdff": lambda x: 0.5 * np.vectorize(math.erfc)(-x / 2**0.5),
        "norm3df": lambda x: np.sqrt(3) * x, "rnorm4df": lambda x: 1 / (2 * x), "scalbnf": lambda x: x * 8,
    }  # fmt: skip
    given = {"norm3df": "A[tx], A[tx], A[tx]", "rnorm4df": "A[tx], A[tx], A[tx], A[tx]", "scalbnf": "A[tx], 3"}
    source = ["def program(A, C):", f"    A: T.Tensor((64,), 'float32'); C: T.Tensor(({len(formulas)}, 64), 'float32')"]
    source += ["    with T.Kernel(1, threads=64):", "        tx = T.get_thread_binding()"]
    for place, name in enumerate(formulas):
        source.append(f"        C[{place}, tx] = T.call_extern('float32', '{name}', {given.get(name, 'A[tx]')})")
    numbers, found = np.linspace(0.1, 4, 64, dtype=np.float32), np.zeros((len(formulas), 64), np.float32)
    run("\n".join(source), numbers, found)
    for row, (name, formula) in zip(found, formulas.items()):
        np.testing.assert_allclose(row, formula(numbers.astype(np.float64)), rtol=1e-6, err_msg=name)


def test_functions_of_small_floats_need_no_include():
    """`cuda_fp16.h` and its kin come with calls of their functions."""

    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float16"), C: T.Tensor((6, 64), "float16"),
             D: T.Tensor((64,), "float32")):  # fmt: skip
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            C[0, tx] = T.call_extern("float16", "__float2half_rz", X[tx])
            C[1, tx] = T.call_extern("float16", "__float2half_ru", X[tx])
            C[2, tx] = T.call_extern("float16", "__float2half_rd", X[tx])
            C[3, tx] = T.call_extern("float16", "__hadd", Y[tx], Y[tx])
            C[4, tx] = T.call_extern("float16", "__hfma", Y[tx], Y[tx], Y[tx])
            C[5, tx] = T.call_extern("float16", "hexp", Y[tx])
            small = T.call_extern("bfloat16", "__float2bfloat16_rz", X[tx])
            D[tx] = T.call_extern("float32", "__bfloat162float", small)

    x = (np.random.default_rng(0).standard_normal(64) * 1000).astype(np.float32)
    x[:4] = 1e-9, -1e-9, 1e6, -1e6
    y, found, wide = np.linspace(-3, 3, 64).astype(np.float16), np.zeros((6, 64), np.float16), np.zeros(64, np.float32)
    kernel = tilewright.compile(main, target="cuda -arch=sm_90a")
    kernel.emulate(x, y, found, wide)
    toward, up, down, double, fused, exponential = found
    with np.errstate(over="ignore"):
        above, below = np.nextafter(down, np.float16(np.inf)), np.nextafter(up, np.float16(-np.inf))
    assert np.all(down <= x) and np.all(above > x)
    assert np.all(up >= x) and np.all(below < x)
    np.testing.assert_array_equal(toward, np.where(x > 0, down, up))
    np.testing.assert_array_equal(double, y + y)
    np.testing.assert_array_equal(fused, (y.astype(np.float64) ** 2 + y).astype(np.float16))
    np.testing.assert_array_equal(exponential, np.exp(y.astype(np.float64)).astype(np.float16))
    np.testing.assert_array_equal(wide, (x.view(np.uint32) & 0xFFFF0000).view(np.float32))
    assert "tilewright_toolkit.cuh" in kernel.get_kernel_source()
