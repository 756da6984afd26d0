"""A mistake for each error that is not of a kernel's source: what docs/errors.md shows, with the message that comes out."""

PREAMBLE = """
import numpy as np
import tilewright
import tilewright.language as T

@T.prim_func
def double(A: T.Tensor((64, 32), "float32"), B: T.Tensor((64, 32), "float32")):
    with T.Kernel(1, threads=128) as block:
        for i, j in T.Parallel(64, 32):
            B[i, j] = A[i, j] * 2.0

a = np.ones((64, 32), "float32")
b = np.empty_like(a)
kernel = tilewright.compile(double, target="cpu")
"""
"""What every example finds."""

CALLS = {
    "WrongArgumentCount": "kernel(a)",
    "WrongArgumentKind": "kernel(a, 5)",
    "WrongArgumentDType": 'kernel(a.astype("float16"), b)',
    "WrongArgumentRank": "kernel(a.reshape(-1), b)",
    "WrongArgumentShape": "kernel(a[:60], b)",
    "WrongArgumentStrides": "kernel(np.asfortranarray(a), b)",
    "WrongArgumentDevice": 'tilewright.compile(double, target="cuda -arch=sm_90a")(a, b)',
    "MisalignedArgument": """
bytes_ = np.zeros(64 * 32 * 4 + 1, "uint8")
kernel(bytes_[1:].view("float32").reshape(64, 32), b)
""",
    "ReadOnlyArgument": """
b.setflags(write=False)
kernel(a, b)
""",
    "OverlappingArguments": """
memory = np.ones((65, 32), "float32")
kernel(memory[:64], memory[1:])
""",
    "UnreadableTensor": """
class Broken:
    def __dlpack_device__(self):
        return (1, 0)
    def __dlpack__(self, **options):
        return "no capsule"

kernel(Broken(), b)
""",
    "SizeMismatch": """
@tilewright.jit
def add(A, B):
    N = T.const("N")
    A: T.Tensor((N,), "float32")
    B: T.Tensor((N,), "float32")
    C = T.empty((N,), "float32")
    with T.Kernel(1) as block:
        for i in T.Parallel(N):
            C[i] = A[i] + B[i]
    return C

add(np.ones(8, "float32"), np.ones(9, "float32"))
""",
    "InvalidUse": """
@tilewright.jit(out_idx=[-1])
def add(A):
    A: T.Tensor((8,), "float32")
    B = T.empty((8,), "float32")
    with T.Kernel(1) as block:
        T.copy(A, B)
    return B
""",
    "NotAKernel": "tilewright.compile(5)",
    "UnknownOutput": "tilewright.compile(double, out_idx=[2])",
}
"""Calls of kernels."""

RUNS = {
    "UninitializedRead": """
@T.prim_func
def copy(B: T.Tensor((64, 32), "float32")):
    with T.Kernel(1) as block:
        tile = T.alloc_fragment((64, 32), "float32")
        T.copy(tile, B)

tilewright.compile(copy, target="cpu").interpret(b)
""",
    "OutOfBounds": """
@T.prim_func
def shift(A: T.Tensor((64, 32), "float32"), n: T.int32):
    with T.Kernel(1) as block:
        tile = T.alloc_shared((64, 32), "float32")
        T.copy(A, tile)
        for i, j in T.Parallel(64, 32):
            A[i, j] = tile[i + n, j]

tilewright.compile(shift, target="cpu").interpret(a, 1)
""",
    "ConflictingWrites": """
@T.prim_func
def last(B: T.Tensor((64, 32), "float32")):
    with T.Kernel(1) as block:
        row = T.alloc_shared((64,), "float32")
        for i, j in T.Parallel(64, 32):
            row[i // 2] = i
        T.copy(row, B[0:64, 0])

tilewright.compile(last, target="cpu").interpret(b)
""",
    "DependentIterations": """
@T.prim_func
def moved(A: T.Tensor((64, 32), "float32"), n: T.int32):
    with T.Kernel(1) as block:
        for i, j in T.Parallel(63, 32):
            A[i, j] = A[i + n, j] + 1

tilewright.compile(moved, target="cpu").interpret(a, 1)
""",
    "DivergentThreads": """
@T.prim_func
def some(B: T.Tensor((64, 32), "float32")):
    with T.Kernel(1, threads=128) as block:
        tx = T.get_thread_binding()
        if B[tx % 64, tx // 64] > 0:
            T.sync_threads()

tilewright.compile(some, target="cuda -arch=sm_90a").interpret(np.eye(64, 32, dtype="float32"))
""",
    "AssertionFailed": """
@T.prim_func
def checked(A: T.Tensor((64, 32), "float32"), n: T.int32):
    with T.Kernel(1) as block:
        T.device_assert(n < 10, "n is too large")

tilewright.compile(checked, target="cpu").interpret(a, 12)
""",
    "WrongAssumption": """
@T.prim_func
def assumed(A: T.Tensor((64, 32), "float32"), n: T.int32):
    with T.Kernel(1) as block:
        T.assume(n % 8 == 0)
        A[0, 0] = n

tilewright.compile(assumed, target="cpu").interpret(a, 12)
""",
    "RolesDeadlocked": """
@T.prim_func
def forgotten(A: T.Tensor((64, 32), "float32"), B: T.Tensor((64, 32), "float32")):
    with T.Kernel(1, threads=128) as block:
        tile = T.alloc_shared((64, 32), "float32")
        full = T.alloc_barrier(1)
        T.barrier_wait(full, 0)
        T.copy(tile, B)

tilewright.compile(forgotten, target="cuda -arch=sm_90a").interpret(a, b)
""",
    "BarrierMisuse": """
@T.prim_func
def crowded(B: T.Tensor((64, 32), "float32")):
    with T.Kernel(1, threads=128) as block:
        full = T.alloc_barrier(1)
        T.barrier_arrive(full)
        T.barrier_wait(full, 0)

tilewright.compile(crowded, target="cuda -arch=sm_90a").interpret(b)
""",
    "ForeignFunction": """
@T.prim_func
def foreign(A: T.Tensor((64, 32), "float32")):
    with T.Kernel(1, threads=128) as block:
        A[0, 0] = T.call_extern("float32", "__nanosleep", 100)

tilewright.compile(foreign, target="cuda -arch=sm_90a").interpret(a)
""",
    "WrongPointer": """
@T.prim_func
def through(P: T.Tensor((1,), T.ptr), B: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=64) as block:
        A = T.make_tensor(P[0], (64,), "float32")
        T.copy(A, B)

tilewright.compile(through, target="cpu").interpret([np.zeros(60, "float32")], np.zeros(64, "float32"))
""",
    "EmulationError": """
@T.prim_func
def race(A: T.Tensor((128,), "float32")):
    with T.Kernel(1, threads=128) as block:
        tx = T.get_thread_binding()
        A[tx % 64] = tx

tilewright.compile(race, target="cuda -arch=sm_90a").emulate(np.ones(128, "float32"))
""",
    "EmulationFailed": "kernel.emulate(a, b)",
}
"""Kernels that run, in the interpreter or the emulator, and are caught at something."""

COMPILATIONS = {
    "MissingCapability": """
@T.prim_func
def loads(A: T.Tensor((64, 64), "float16")):
    with T.Kernel(1, threads=128) as block:
        tile = T.alloc_shared((64, 64), "float16")
        full = T.alloc_barrier(1)
        T.tma_copy(A, tile, barrier=full)

tilewright.compile(loads, target="cuda -arch=sm_80")
""",
    "SharedMemoryExceeded": """
@T.prim_func
def large(A: T.Tensor((512, 512), "float32"), B: T.Tensor((512, 512), "float32")):
    with T.Kernel(1, threads=128) as block:
        tile = T.alloc_shared((512, 512), "float32")
        T.copy(A, tile)
        T.copy(tile, B)

tilewright.compile(large, target="cuda -arch=sm_90a")
""",
    "LayoutConflict": """
@T.prim_func
def forced(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=48) as block:
        tile = T.alloc_fragment((64, 64), "float32")
        T.annotate_layout({tile: T.Fragment((64, 64), forward_fn=lambda i, j: (i % 32, i // 32 * 64 + j))})
        T.copy(A, tile)
        T.copy(tile, B)

tilewright.compile(forced, target="cuda -arch=sm_90a")
""",
    "NotAsynchronous": """
@T.prim_func
def odd(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16")):
    with T.Kernel(1, threads=128) as block:
        tile = T.alloc_shared((64, 64), "float16")
        T.async_copy(A[0:64, 1:50], tile[:, 0:49])
        T.ptx_wait_group(0)
        T.copy(tile, B)

tilewright.compile(odd, target="cuda -arch=sm_80")
""",
    "GridTooLarge": """
@T.prim_func
def meeting(A: T.Tensor((40000,), "float32")):
    with T.Kernel(40000, threads=128) as block:
        A[block] = 1.0
        T.sync_grid()

tilewright.compile(meeting, target="cuda -arch=sm_90a")
""",
    "DivergentWork": """
@T.prim_func
def some_threads(A: T.Tensor((6, 40), "float32"), N: T.Tensor((128,), "int32")):
    with T.Kernel(1, threads=128) as block:
        tx = T.get_thread_binding()
        if N[tx] > 0:
            for i, j in T.Parallel(6, 40):
                A[i, j] = 1.0

tilewright.compile(some_threads, target="cuda -arch=sm_80")
""",
    "ChannelMisuse": """
@T.prim_func
def alone(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16")):
    with T.Kernel(2, threads=256, cluster_dims=2):
        ring = T.alloc_shared((2, 64, 64), "float16")
        loads = T.channel(ring, writers="producer", readers="consumer")
        with T.roles():
            with T.role("consumer", warps=4):
                T.copy(ring[loads.receive(0), :, :], B)
            with T.role("producer", warps=4):
                T.copy(A, ring[loads.acquire(0), :, :], multicast=True)
                loads.publish(0)

tilewright.compile(alone, target="cuda -arch=sm_90a")
""",
    "PipelinePlanError": """
@T.prim_func
def ordered(A: T.Tensor((512, 64), "float16"), B: T.Tensor((512, 64), "float16")):
    with T.Kernel(1, threads=128) as block:
        tile = T.alloc_shared((64, 64), "float16")
        for k in T.Pipelined(8, num_stages=2, order=[0], stage=[0]):
            T.copy(A[k * 64, 0], tile)
            T.copy(tile, B[k * 64, 0])

tilewright.compile(ordered, target="cuda -arch=sm_80")
""",
    "DivergentBarrier": """
@T.prim_func
def some(A: T.Tensor((128,), "float32"), B: T.Tensor((128,), "float32")):
    with T.Kernel(1, threads=128) as block:
        tx = T.get_thread_binding()
        tile = T.alloc_shared((128,), "float32")
        tile[tx] = A[tx]
        if A[tx] > 0:
            T.sync_threads()
            B[tx] = tile[127 - tx]

tilewright.compile(some, target="cpu")
""",
    "NeedsWarps": """
@T.prim_func
def shuffled(A: T.Tensor((48,), "float32")):
    with T.Kernel(1, threads=48) as block:
        tx = T.get_thread_binding()
        A[tx] = T.shfl_xor(A[tx], 1)

tilewright.compile(shuffled, target="cpu")
""",
    "FragmentReinterpreted": """
@T.prim_func
def bits(A: T.Tensor((64, 32), "float32"), B: T.Tensor((64, 64), "float16")):
    with T.Kernel(1, threads=128) as block:
        tile = T.alloc_fragment((64, 32), "float32")
        T.copy(A, tile)
        T.copy(T.view(tile, (64, 64), "float16"), B)

tilewright.compile(bits, target="cuda -arch=sm_90a")
""",
    "UnknownTarget": 'tilewright.compile(double, target="cdua")',
    "InvalidTarget": 'tilewright.compile(double, target="cuda sm_90a")',
    "NoDeviceCode": "kernel.sass()",
    "MisplacedBranch": """
@T.prim_func
def branches(A: T.Tensor((64, 32), "float32"), n: T.int32):
    with T.Kernel(1) as block:
        with T.Then():
            A[0, 0] = 1.0
""",
    "LoopOutsideKernel": """
for i in T.serial(4):
    pass
""",
    "MacroExpected": "T.macro(5)",
    "MisplacedRole": """
@T.prim_func
def producer(A: T.Tensor((64, 32), "float32")):
    with T.Kernel(1, threads=128) as block:
        with T.role("producer", warps=4):
            A[0, 0] = 1.0
""",
    "NotIndexable": """
@T.prim_func
def index(A: T.Tensor((64, 32), "float32"), n: T.int32):
    with T.Kernel(1) as block:
        A[0, 0] = n[0]
""",
    "SourceUnavailable": """
exec('''
@T.prim_func
def nowhere(A: T.Tensor((64, 32), "float32")):
    with T.Kernel(1) as block:
        A[0, 0] = 1.0
''')
""",
    "ChoiceNotKnown": """
@tilewright.jit
def chosen(A):
    M = T.dynamic("M")
    A: T.Tensor((M, 8), "float32")
    B = T.empty((M, 8), "float32")
    rows = T.suited(lambda m: 4 if m < 100 else 16, M + 1)
    with T.Kernel(T.ceildiv(M, rows)) as block:
        tile = T.alloc_fragment((rows, 8), "float32")
        T.copy(A[block * rows, 0], tile)
        T.copy(tile, B[block * rows, 0])
    return B

chosen(np.ones((8, 8), "float32"))
""",
    "WrongOperandType": """
@T.prim_func
def scale(N: T.Tensor((64,), "int32"), B: T.Tensor((64,), "float32")):
    with T.Kernel(1) as block:
        for i in T.Parallel(64):
            B[i] = T.e8m0_to_float(N[i])
""",
    "WrongOperandShape": """
@T.prim_func
def scaled(A: T.Tensor((64, 64), "float8_e4m3fn"), S: T.Tensor((3,), "float32"), C: T.Tensor((64, 64), "float32")):
    with T.Kernel(1) as block:
        tile, scales, sums = T.alloc_shared((64, 64), "float8_e4m3fn"), T.alloc_shared((3,), "float32"), T.alloc_fragment((64, 64), "float32")
        T.fp8_scaled_matmul(tile, scales, tile, scales, sums)
""",
}
"""Kernels that are compiled."""

WEIGHTS = {
    "UnknownFormat": """
from tilewright.quant import quantize
quantize(a, "int44")
""",
    "UnknownDType": 'T.Tensor((4,), "flaot16")',
    "CannotQuantize": """
from tilewright.quant import quantize
quantize(a, "float32")
""",
    "Unsupported": """
import torch
dense = torch.nn.Linear(32, 64)
tilewright.Linear.from_float(dense, "int4", group=32, activations="int4")
""",
    "OutOfRange": 'tilewright.pack(np.array([7, 8]), "int4")',
    "NotRepresentable": """
from tilewright.formats import number_format
number_format("e2m1").exact(np.array([0.5, 0.7]))
""",
    "InvalidCode": """
from tilewright.formats import number_format
number_format("int4").check(np.array([15, 16]))
""",
    "MissingOperand": """
config = tilewright.MatmulConfig(M=2, N=64, K=32, A_dtype="float32", W_dtype="int4", with_scaling=True, group_size=32)
tilewright.Matmul(config, target="cpu")(np.ones((2, 32), "float32"), np.zeros((64, 16), "int8"))
""",
    "InvalidCheckpoint": """
open("model.safetensors", "wb").write(b"no safetensors")
tilewright.convert_checkpoint("model.safetensors", "ours")
""",
    "MissingTensor": """
import torch
from tilewright.checkpoints import save_safetensors
save_safetensors("model.safetensors", {"0.weight": np.ones((64, 32), "float32")})
model = torch.nn.Sequential(torch.nn.Linear(32, 64))
tilewright.convert_checkpoint("model.safetensors", "ours.safetensors", "int4-g32")
tilewright.load_quantized(model, "ours.safetensors")
""",
    "InvalidTensor": """
import torch
from tilewright.checkpoints import save_safetensors
save_safetensors("model.safetensors", {"0.qweight": np.ones((64, 16), "int32")})
tilewright.load_quantized(torch.nn.Sequential(torch.nn.Linear(32, 64)), "model.safetensors")
""",
    "NotSparse": """
from tilewright.formats.sparse import compress
compress(np.ones((16, 128), "float16"))
""",
}
"""Weights and checkpoints."""

MACHINES = {
    "InvalidOption": """
import os
os.environ["TILEWRIGHT_CACHE"] = "perhaps"
tilewright.compile(double, target="cpu")
""",
    "CacheUnavailable": """
import os
open("taken", "w").close()
os.environ["TILEWRIGHT_CACHE_DIR"] = "taken"
from tilewright.cache import cache_directory
cache_directory()
""",
    "WrongFlag": """
import tilewright.compat.tilelang as tilelang
tilelang.jit(compile_flags=["-O3", "-include"])(lambda: kernel)
""",
    "NothingToChoose": """
from tilewright.tuning.search import search
search([{"block": 64}], lambda options: kernel, lambda built: 1.0, topk=0)
""",
    "BadCommand": """
from tilewright.cli.inspect import read_arguments
read_arguments(["A: float32[8]"])
""",
    "NotComparable": """
from pathlib import Path
from tilewright.cli.bench import read_times
read_times(Path("before.json"), {}, "this machine")
""",
    "ResultsDiffer": """
import torch
from tilewright.compat.tilelang.tensors import torch_assert_close
torch_assert_close(torch.zeros(4), torch.ones(4))
""",
    "ProgramSyntaxError": """
from tilewright.ir.parser import parse
parse("def nothing(")
""",
}
"""This computer, the command line and what is used beside kernels."""

NO_EXAMPLE = {
    "BrokenCompiler": "repair the compiler, or name another one with TILEWRIGHT_CC; `tilewright doctor` tries it",
    "CompilerFailed": "report it, with the kernel",
    "CompilerNotFound": "install what the message names; `tilewright doctor` lists what is there",
    "DeviceCompilationFailed": "look at the text that you wrote with T.call_extern or T.import_source; else report it",
    "DriverError": "look at nvidia-smi or rocminfo; the message has the driver's own words",
    "InternalError": "report it, with the kernel",
    "InvalidGroup": "let the groups divide K, or use `quant_matmul`, which pads",
    "InvalidProgram": "report it: a pass of the compiler has made a program that must not be",
    "InvalidShares": "give the small kernel a number of workers that divides the columns",
    "InvalidSplits": "split K in 1, 2, 4 or 8 parts",
    "InvalidTensorMap": "let strides be multiples of 16 bytes and boxes at most 256 elements wide, or leave the copy engine to the compiler",
    "LaunchFailed": "call `kernel.emulate(...)` with the same arguments: it names the line that is at fault",
    "NoDevice": "run it where the GPU is, or ask something that compiling alone tells, as `kernel.sass()` does",
    "NoTorchType": "take the type of the elements, or bytes",
    "NotPrepared": "call it once before the graph is captured",
    "OutOfMemory": "free memory, or take smaller tiles or fewer splits: the message says how much the workspace needs",
    "RegistersExceeded": "give T.set_max_nreg smaller numbers: the message adds them up",
    "ScatteredRegion": "copy the part to a tile of its own, and give the function that one",
    "SourceChanged": "import the module again, or start the process again",
    "TooManyRows": "take a kernel for more rows, or `quant_matmul`, which chooses",
    "Unreadable": "delete the file: it is made anew",
    "Unwritable": "report it",
    "WeightIsGone": "keep the packed weight as long as graphs that were compiled with it",
    "WrongCandidate": "report it",
    "WrongMachine": "compile for the machine at hand: leave out -arch=",
}
"""Errors that no short program has on every computer, with what to do."""

BASES = {"TilewrightError", "ArgumentError", "AuthorError", "ExecutionError"}
"""Classes that only others are made of; catch them to catch all of a kind."""
