"""llama.cpp's products on this CPU: builds ggml from the source package that PyPI carries, and calls it.

    pip download --no-binary :all: --no-deps --no-build-isolation llama-cpp-python   # needs scikit-build-core, flit-core
    python benchmarks/llama_cpp.py llama_cpp_python-*.tar.gz DIRECTORY               # needs cmake

After that ``benchmarks/cpu.py --llama-cpp DIRECTORY`` has llama.cpp beside ours.  It is built on the machine that it is to be measured on
(``-march=native``), from the archive alone: nothing is fetched.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

LIBRARY = "libllama_cpp_product.so"
OPTIONS = ("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF", "-DCMAKE_POSITION_INDEPENDENT_CODE=ON",
           "-DGGML_BUILD_TESTS=OFF", "-DGGML_BUILD_EXAMPLES=OFF")  # fmt: skip


def build(archive: Path, to: Path) -> None:
    """Build ggml and the library around it in a directory."""
    to.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as file:
        root = Path(file.getnames()[0].split("/")[0])
        wanted = f"{root}/vendor/llama.cpp/ggml/"
        file.extractall(to, [one for one in file if one.name.startswith(wanted)], filter="data")
    source, made = to / wanted, to / "build"
    (source / "ggml.pc.in").touch()  # asked for, but left out of the package
    for text in source.glob("src/ggml-cpu/amx/*.cpp"):
        # Before its version 13 g++ drops the stores of what is configured.
        barrier = '__asm__ volatile("" ::: "memory"); '
        text.write_text(text.read_text().replace("_tile_loadconfig(&", barrier + "_tile_loadconfig(&"))
    subprocess.run(["cmake", "-S", source, "-B", made, *OPTIONS], check=True)
    subprocess.run(["cmake", "--build", made, "--parallel", "--target", "ggml"], check=True)
    archives = [made / "src" / f"lib{name}.a" for name in ("ggml", "ggml-cpu", "ggml-base")]
    driver = Path(__file__).with_name("llama_cpp_product.c")
    shared = to / "product.o"
    subprocess.run(["gcc", "-O2", "-fPIC", "-c", driver, "-o", shared, f"-I{source / 'include'}"], check=True)
    subprocess.run(
        ["g++", "-shared", "-o", to / LIBRARY, shared, "-Wl,--start-group", *archives, "-Wl,--end-group", "-fopenmp",
         "-ldl", "-lpthread"], check=True,
    )  # fmt: skip


def product(
    directory: Path, type_name: str, weight: np.ndarray, x: np.ndarray, count: int, threads: int
) -> Callable[[], np.ndarray]:
    """A function that multiplies x by `count` weights of the same numbers in memory of their own; the last product.

    Weights lie as llama.cpp repacks them for this machine, where it does; activations are quantised in each call.
    """
    library = ctypes.CDLL(str(directory / LIBRARY))
    library.product_make.restype = ctypes.c_void_p
    library.product_make.argtypes = [ctypes.c_char_p, *[ctypes.c_int64] * 3, *[ctypes.c_int] * 2, ctypes.c_void_p]
    library.product_run.argtypes = [ctypes.c_void_p] * 3
    (n, k), m = weight.shape, len(x)
    y = np.empty((m, n), np.float32)
    held = library.product_make(type_name.encode(), n, k, m, count, threads, weight.ctypes.data)
    if not held:
        raise RuntimeError(f"llama.cpp makes no product with {type_name}")

    def run() -> np.ndarray:
        if library.product_run(held, x.ctypes.data, y.ctypes.data):
            raise RuntimeError("llama.cpp's product failed")
        return y

    return run


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    build(Path(sys.argv[1]), Path(sys.argv[2]))
