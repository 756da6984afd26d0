"""The command line: ``tilewright demo``, ``bench``, ``calibrate``, ``doctor``, ``inspect``, ``convert``."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

import tilewright
from tilewright.cli.terminal import Terminal
from tilewright.errors import TilewrightError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, of words that are by default this process's; its exit status (2 where the command line is
    wrong)."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 2
    terminal = Terminal(color={"always": True, "never": False, "auto": None}[given.color])
    try:
        module = importlib.import_module(f"tilewright.cli.{given.command}")
        return int(getattr(module, _COMMANDS[given.command])(given, terminal))
    except (TilewrightError, MemoryError) as error:
        said = error if isinstance(error, TilewrightError) else f"this machine's memory does not suffice: {error}"
        Terminal(sys.stderr).write(f"{Terminal(sys.stderr).paint('error:', 'bold', 'red')} {said}")
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has seen enough, as in ``tilewright inspect ... | head``
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tilewright", description="Kernels over tiles, compiled in pure Python.")
    parser.add_argument("--version", action="version", version=f"tilewright {tilewright.__version__}")
    parser.add_argument("--color", choices=["auto", "always", "never"], default="auto", help="colours in the output")
    commands = parser.add_subparsers(dest="command", metavar="command")
    demo = commands.add_parser("demo", help="multiply by a quantised weight, and how fast that is here")
    demo.add_argument(
        "--rows", type=_sizes, default=(1, 16, 256), metavar="M,M,...", help="rows of A (default 1,16,256)"
    )
    demo.add_argument("--target", default="auto", help="where to run, as in 'cpu' (default: the best device here)")
    bench = commands.add_parser(
        "bench",
        help="times of products by quantised weights, beside those of a file or of a commit",
        epilog=_BENCH_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bench.add_argument("--formats", default="int4,int8,nf4", help="of the weight (default int4,int8,nf4)")
    bench.add_argument(
        "--rows", type=_sizes, default=(1, 4, 16, 64, 256), metavar="M,M,...", help="of A (default 1,4,16,64,256)"
    )
    bench.add_argument("--activations", default="", help="quantise them to this (default: int8 on a processor)")
    bench.add_argument("--target", choices=["auto", "cpu", "cuda"], default="auto", help="where to run")
    bench.add_argument("--json", metavar="FILE", help="write the times")
    bench.add_argument("--plot", metavar="FILE.svg", help="draw speed over rows")
    bench.add_argument("--against", metavar="FILE|COMMIT", help="compare: times that --json wrote, or another commit's")
    for measured in (demo, bench):
        measured.add_argument("--n", type=_size, default=4096, help="columns of C (default 4096)")
        measured.add_argument("--k", type=_size, default=4096, help="columns of A (default 4096)")
        measured.add_argument("--group", type=_size, default=128, help="weights that share a scale (default 128)")
        measured.add_argument(
            "--milliseconds", type=_milliseconds, default=200.0, help="to measure each product for (default 200)"
        )
    commands.add_parser("doctor", help="what this machine has, what is missing, and how to get it")
    commands.add_parser(
        "calibrate", help="measure the rates of the GPU here, by which kernels are chosen, and keep them"
    )
    convert = commands.add_parser(
        "convert",
        help="a checkpoint of another library, or a dense one by a scheme, as ours",
        epilog=_CONVERT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    convert.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="a directory of shards, a .safetensors or a .gguf file"
    )
    convert.add_argument("-o", "--output", metavar="PATH", help="what to make (default: CHECKPOINT-tilewright)")
    convert.add_argument("--scheme", help="quantise dense weights so; by default they are copied")
    convert.add_argument(
        "--skip", metavar="REGEX", help="dense layers to leave as they are (default: embeddings, norms, heads, routers)"
    )
    convert.add_argument("--overwrite", action="store_true", help="replace what has that name")
    inspect = commands.add_parser("inspect", help="a kernel's program after every pass, and its source text")
    inspect.add_argument("kernel", metavar="FILE:KERNEL", help="a Python file and the name of a kernel in it")
    inspect.add_argument(
        "arguments",
        nargs="*",
        metavar="NAME=VALUE",
        help="what the kernel is called with: numbers, texts, or tensors as dtype[shape], as in A=float32[128,64]",
    )
    inspect.add_argument(
        "--target", help="where it would run, as in 'cpu -arch=avx2'; by default what its decorator says"
    )
    inspect.add_argument("--after", metavar="PASS", help="only the program after this pass ('traced' for the first)")
    inspect.add_argument("--diff", action="store_true", help="only what each pass changed")
    inspect.add_argument("--source", action="store_true", help="only the emitted text")
    inspect.add_argument("--spans", action="store_true", help="beside each statement, its place in your file")
    return parser


_COMMANDS = {
    "bench": "run_bench",
    "calibrate": "run_calibrate",
    "convert": "run_convert",
    "demo": "run_demo",
    "doctor": "run_doctor",
    "inspect": "run_inspect",
}
"""What runs each command, in the module of its name, which is imported when it is asked for: the doctor must work where
the rest does not."""

_CONVERT_EXAMPLES = """schemes: w4a16, w4a16-g64-asym, w8a16, w8a8, w4a8, w8a8-fp8, int4-g32, nf4-g64, mxfp4, nvfp4, fp8_block, bitnet, ...

examples:
  tilewright convert Llama-3.1-8B-GPTQ                   a quantised checkpoint, code by code
  tilewright convert Llama-3.1-8B --scheme w4a16-g128    a dense one, rounded to nearest
  tilewright convert model-q4_0.gguf -o llama            a GGUF file"""  # noqa: E501


_BENCH_EXAMPLES = """examples:
  tilewright bench --json before.json                    times, kept
  tilewright bench --against before.json --plot now.svg  times beside them, and a chart
  tilewright bench --against HEAD~5                      this checkout and a commit of it take turns"""


def _size(text: str) -> int:
    if not text.strip().isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: 1, 2, ...")
    return int(text)


def _milliseconds(text: str) -> float:
    if not text.replace(".", "", 1).isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} are no milliseconds: 0.5, 200, ...")
    return float(text)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_size(part) for part in text.split(","))
