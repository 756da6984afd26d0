"""The C++ compiler of this machine: building the emulator's core once, and each kernel's text against a host header.

Both are kept in the cache directory under a hash of everything that can change them: text, headers, flags, compiler.
Variables without a first value are found in a text, and followed so that a read before the first write is reported.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright import processes
from tilewright.cache import cached, digest
from tilewright.errors import CompilerNotFound, EmulationFailed, near
from tilewright.options import options
from tilewright.precompiled import precompiled
from tilewright.targets.emulation import Vocabulary
from tilewright.texts import file_name, read_text, write_text

HOST = Path(__file__).parent / "host"
"""Directory of the core's sources (`core/`) and of one header directory for each family of machines."""

CORE_FLAGS = ("-std=c++17", "-O2", "-march=native", "-fPIC", "-fno-strict-aliasing", "-pthread", "-w")
TEXT_FLAGS = (
    "-std=c++17", "-O1", "-g1", "-gdwarf-4", "-fno-var-tracking", "-fPIC", "-fno-exceptions", "-fno-rtti",
    "-fno-strict-aliasing", "-fno-builtin-memcpy",
    "-ffp-contract=off", "-fno-threadsafe-statics", "-fno-omit-frame-pointer", "-fsanitize-coverage=trace-pc", "-w",
)  # fmt: skip
CHECK_FLAGS = ("-fsanitize=thread", "-fsanitize=bounds,integer-divide-by-zero", "-DTW_CHECK=1")
PLAIN_FLAGS = ("-DTW_CHECK=0",)

ENTRY = """
#line 1 "<emulator>"
#ifndef TW_WARP_SIZE
#error the vocabulary does not say how many threads run together: write #define TW_WARP_SIZE in its header
#endif
extern "C" tw_u32 tilewright_lanes() { return TW_WARP_SIZE; }
namespace tilewright_entry {
template <tw_size... I> struct Indices {};
template <tw_size N, tw_size... I> struct Make : Make<N - 1, N - 1, I...> {};
template <tw_size... I> struct Make<0, I...> { typedef Indices<I...> type; };
template <class T> struct Plain { typedef T type; };
template <class T> struct Plain<const T> { typedef T type; };
template <class T, bool GIVEN = TwGiven<T>::value> struct Argument { static T& of(void* argument) { return *static_cast<T*>(argument); } };
template <class T> struct Argument<T, true> { static T of(void*) { return TwGiven<T>::get(); } };
template <class... P, tw_size... I> __attribute__((no_sanitize("thread")))
void call(void (*entry)(P...), void** arguments, Indices<I...>) { entry(Argument<typename Plain<P>::type>::of(arguments[I])...); }
template <class... P> __attribute__((no_sanitize("thread"))) void run(void (*entry)(P...), void** arguments) {
  call(entry, arguments, typename Make<sizeof...(P)>::type());
}
template <class T> struct Shape { static constexpr tw_u32 value = sizeof(T); };
template <class T> struct Shape<T*> { static constexpr tw_u32 value = 0x80000000u | sizeof(T*); };
template <class T> struct Shape<T* const> { static constexpr tw_u32 value = 0x80000000u | sizeof(T*); };
template <class... P> tw_u32 shapes(void (*)(P...), tw_u32* out) {
  const tw_u32 all[] = {Shape<typename Plain<P>::type>::value..., 0};
  const bool given[] = {TwGiven<typename Plain<P>::type>::value..., true};
  tw_u32 count = 0;
  for (; !given[count]; ++count) out[count] = all[count];
  return count;
}
}
"""  # noqa: E501
ENTRY_OF = """
extern "C" __attribute__((no_sanitize("thread"))) void tilewright_run_NUMBER(void** arguments) { tilewright_entry::run(&KERNEL, arguments); }
extern "C" tw_u32 tilewright_shapes_NUMBER(tw_u32* out) { return tilewright_entry::shapes(&KERNEL, out); }
"""  # noqa: E501
"""What is put behind a text, so that each of its kernels can be called with an array of pointers to its arguments."""


LANGUAGE = ("-x", "c++")
CORE = "core.so"
CORE_NAMED = "the emulator's core"
PARTS = 2
"""Compilations that the core is built in."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: the words of its command and its version."""

    command: tuple[str, ...]
    version: str

    @property
    def linker(self) -> tuple[str, ...]:
        """The command that links objects: without the words that say what its input is written in."""
        return self.command[:-2] if self.command[-2:] == LANGUAGE else self.command

    @property
    def check_flags(self) -> tuple[str, ...]:
        """Flags for texts whose accesses are followed. No access may move out of a loop: it would be followed where the
        text has none, which makes a variable read that nobody has written."""
        is_clang = "clang" in self.version
        return (*CHECK_FLAGS, *(("-mllvm", "-disable-licm-promotion") if is_clang else ("-fno-tree-loop-im",)))


@dataclass(frozen=True, slots=True)
class Text:
    """A kernel in memory: its entry, the library's file (for the line table), its parameters' sizes (top bit: a
    pointer), and how many threads run together."""

    entry: int
    path: Path
    shapes: tuple[int, ...]
    lanes: int


@functools.cache
def find_compiler(wanted: str = "") -> Compiler:
    """The C++ compiler to use: the configured one, g++, clang++, c++, or the `ziglang` package.

    Raises
    ------
    CompilerNotFound : there is none.
    """
    candidates: list[tuple[str, ...]] = []
    if wanted:
        candidates.append((*shlex.split(wanted), *LANGUAGE))
    else:
        candidates += [(name,) for name in ("g++", "clang++", "c++") if shutil.which(name)]
        if importlib.util.find_spec("ziglang"):
            candidates.append((sys.executable, "-m", "ziglang", "c++"))
    for command in candidates:
        try:
            done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return Compiler(command, done.stdout.splitlines()[0])
    raise CompilerNotFound(
        "the emulator needs a C++ compiler, and none was found",
        hint="install g++ or clang++, or `pip install ziglang`, or set TILEWRIGHT_CC",
    )


@functools.cache
def _contents(directory: Path) -> bytes:
    return b"".join(path.name.encode() + path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file())


@functools.cache
def _machine() -> str:
    """What `-march=native` depends on."""
    try:
        text = read_text(Path("/proc/cpuinfo"))
    except OSError:
        return os.uname().machine
    found = re.search(r"^(flags|Features)\s*:.*$", text, re.M)
    return os.uname().machine + (found.group(0) if found else "")


def _run(command: list[str], what: str) -> str:
    return _run_together([command], what)[0]


def _run_together(commands: Sequence[list[str]], what: str) -> list[str]:
    """What each command prints.  Raises EmulationFailed where one fails."""
    label = "compiling the emulator, once on this machine" if CORE_NAMED in what else "compiling a kernel to emulate it"
    done = processes.run_together(commands, label)
    for one in done:
        if one.status:
            raise EmulationFailed(f"the C++ compiler refuses {what}", hint=(one.complaint or one.output)[:4000])
    return [one.output for one in done]


def _parts() -> list[list[Path]]:
    """The core's sources in parts of about one size: most of a file's compilation is the headers that all of them
    share."""
    parts: list[list[Path]] = [[] for _ in range(PARTS)]
    sizes = [0] * PARTS
    for source in sorted(HOST.glob("*/*.cpp"), key=lambda one: (-one.stat().st_size, one.name)):
        least = sizes.index(min(sizes))
        parts[least].append(source)
        sizes[least] += source.stat().st_size
    return parts


def core_path(wanted: str = "") -> Path:
    """The core's shared library, built when it is first needed on this machine, and again where it has gone since."""
    path = _core_path(wanted)
    if not path.exists():
        _core_path.cache_clear()
        path = _core_path(wanted)
    return path


@functools.cache
def core_name(wanted: str = "") -> str:
    """What tells a core from others.  Texts are linked to it by this name, not by its file's, so that a process has it
    once although the cache was cleared meanwhile."""
    compiler = find_compiler(wanted)
    sources = b"".join(_contents(folder) for folder in sorted({path.parent for path in HOST.glob("*/*.cpp")}))
    return digest("emulator core by name", sources, repr(compiler), repr(CORE_FLAGS), _machine())


@functools.cache
def _core_path(wanted: str) -> Path:
    compiler, name = find_compiler(wanted), core_name(wanted)

    def build(directory: Path) -> None:
        sources = [directory / f"part{number}.cpp" for number in range(PARTS)]
        for source, part in zip(sources, _parts(), strict=True):
            write_text(source, "".join(f'#include "{path}"\n' for path in part))
        objects = [source.with_suffix(".o") for source in sources]
        made = zip(sources, objects, strict=True)
        _run_together(
            [[*compiler.command, *CORE_FLAGS, "-c", str(source), "-o", str(it)] for source, it in made], CORE_NAMED
        )
        linked = [*compiler.linker, "-shared", "-pthread", f"-Wl,-soname,{name}", *map(str, objects)]
        _run([*linked, "-o", str(directory / CORE), "-lstdc++"], f"to link {CORE_NAMED}")
        for it in (*sources, *objects):
            it.unlink()

    return cached(name, build) / CORE


@functools.cache
def core(wanted: str = "") -> ctypes.CDLL:
    """The core, loaded."""
    library = ctypes.CDLL(str(core_path(wanted)))
    library.tw_run.restype = ctypes.c_void_p
    library.tw_run.argtypes = [ctypes.c_void_p]
    library.tw_free.argtypes = [ctypes.c_void_p]
    library.tw_reserve.restype = ctypes.c_void_p
    library.tw_reserve.argtypes = [ctypes.c_uint64]
    library.tw_release.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    library.tw_image.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    return library


_loaded: dict[tuple[str, str], Text] = {}


def compile_text(source: str, kernel: str, vocabulary: Vocabulary, check: bool, name: str = "kernel.cu") -> Text:
    """A text compiled for this machine and loaded.

    Parameters
    ----------
    source : C++ in the words of the vocabulary.
    kernel : name of the kernel function, or an expression that names it (a template's instance).
    vocabulary : whose words it is written in.
    check : with the instrumentation that checks need.
    name : what the text's own lines are called in reports; ``#line`` directives say otherwise.

    Raises
    ------
    EmulationFailed : the text does not compile; the hint holds the compiler's messages.
    """
    wanted = options().compiler
    compiler = find_compiler(wanted)
    core(wanted)  # in memory before the texts that are linked to it
    flags = (*TEXT_FLAGS, *(compiler.check_flags if check else PLAIN_FLAGS))
    for pattern, words in vocabulary.rewritten:
        source = re.sub(pattern, words, source)
    whole = f"#line 1 {file_name(name)}\n{follow_unset(source) if check else source}\n"
    instance = "" if kernel.isidentifier() else kernel
    headers = b"".join(map(_contents, (*vocabulary.folders, HOST / "core")))
    key = digest("emulated text", whole, instance, headers, ENTRY, repr(compiler), repr(flags), core_name(wanted))
    if (key, kernel) in _loaded:
        return _loaded[key, kernel]
    place = cached(key, lambda directory: _build(whole, instance, vocabulary, flags, directory))
    kernels = read_text(place / "kernels").split("\n")
    if kernel not in kernels:
        raise EmulationFailed(f"the text has no kernel called {kernel!r}", hint=near(kernel, kernels))
    loaded = ctypes.CDLL(str(place / "kernel.so"))
    number = kernels.index(kernel)
    shapes = (ctypes.c_uint32 * 1024)()
    count = loaded[f"tilewright_shapes_{number}"](shapes)
    entry = ctypes.cast(loaded[f"tilewright_run_{number}"], ctypes.c_void_p).value
    assert entry is not None
    text = Text(entry, place / "kernel.so", tuple(shapes[:count]), loaded.tilewright_lanes())
    _loaded[key, kernel] = text
    return text


_FIRST = re.compile(r"(?:[ \t]*(?://.*|#line.*)?\n)*[ \t]*#[ \t]*include[ \t]*[\"<]([^\">]+)")
"""A text's beginning with an #include: the header's name."""

_MACRO = re.compile(r"^[ \t]*#[ \t]*define(?:[^\n]*\\\n)*[^\n]*", re.M)


def _build(whole: str, instance: str, vocabulary: Vocabulary, flags: Sequence[str], scratch: Path) -> None:
    """Compile a text with entries for all its kernels (the compiler's own runtime is not linked), and link it to the
    core."""
    compiler, library = find_compiler(options().compiler), core_path(options().compiler)
    for header in set(re.findall(r'#include\s+"([^"]+)"', whole)):
        if vocabulary.generated and re.fullmatch(vocabulary.generated, header):
            write_text(scratch / header, "")
    source, compiled, linked = scratch / "kernel.cpp", str(scratch / "kernel.o"), str(scratch / "kernel.so")
    folders = (vocabulary.folder, HOST / "core", *vocabulary.shared)
    included, command = [f"-I{path}" for path in folders], [*compiler.command, *flags]
    first = _FIRST.match(whole)
    header = next((folder / first[1] for folder in folders if first and (folder / first[1]).is_file()), None)
    if header is not None:
        contents = repr([*map(_contents, folders)])
        command += precompiled([*command, *included], compiler.version, header, "c++", contents)
    command += [f"-I{scratch}", *included]
    write_text(source, whole)
    kernels = re.findall(vocabulary.kernels, whole)
    if any(re.search(vocabulary.kernels, macro) for macro in _MACRO.findall(whole)):  # look behind the preprocessor
        kernels = re.findall(
            r'extern "C" void\s+(\w+)\s*\([^;{]*\)\s*\{',
            _run([*command, "-E", "-P", str(source)], "this kernel's text"),
        )
    kernels = sorted(set(kernels)) + ([instance] if instance else [])
    entries = "".join(ENTRY_OF.replace("NUMBER", str(i)).replace("KERNEL", kernel) for i, kernel in enumerate(kernels))
    write_text(source, f"{whole}{ENTRY}{entries}")
    _run([*command, "-c", str(source), "-o", compiled], "this kernel's text")
    _run([*compiler.linker, "-shared", compiled, str(library), "-lm", "-o", linked], "to link this kernel")
    write_text(scratch / "kernels", "\n".join(kernels))
    Path(compiled).unlink()


_DECLARATION = re.compile(
    r"^(?P<type>(?:tw::)?(?:u?int(?:8|16|32|64)_t|unsigned(?: int)?|int|float|double|bool|half|bfloat16|u?int[24]))\s+"
    r"(?P<names>\w+(?:\s*,\s*\w+)*)\s*;$"
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_MARKS = re.compile(
    r"//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/|\"(?:[^\"\\\n]|\\.)*\"|[{};\n]|\b(?:struct|union|class|enum)\b|[^{};\n\"/\s]+|/"
)


def follow_unset(source: str) -> str:
    """The text with each variable that is declared in a function without a value followed from there; lines stay where
    they are."""
    pieces: list[str] = []
    inside: list[bool] = []  # for each open brace: whether it is a function's
    statement, start, written, record = 0, 0, 0, False
    for mark in _MARKS.finditer(source):
        word = mark.group()
        if word == "{":
            inside.append(not record)
        elif word == "}" and inside:
            inside.pop()
        elif word == ";" and inside and all(inside):
            declaration = _DECLARATION.match(" ".join(_COMMENT.sub(" ", source[statement : mark.end()]).split()))
            if declaration:
                followed = "".join(
                    f" ::TwUnset tw_unset_{name}(&{name}, sizeof {name});"
                    for name in re.split(r"\s*,\s*", declaration["names"])
                )
                pieces += [source[written : mark.end()], followed]
                written = mark.end()
        if word in "{};":
            statement, record = mark.end(), False
        elif word in ("struct", "union", "class", "enum"):
            record = True
        elif word == "\n" and source[start : mark.start()].lstrip().startswith("#"):
            statement = mark.end()
        if word == "\n":
            start = mark.end()
    return "".join([*pieces, source[written:]])
