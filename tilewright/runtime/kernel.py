"""`Kernel`: a compiled kernel, and the four ways to run it."""

from __future__ import annotations

import contextlib
import html
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from tilewright.cache import cached, digest
from tilewright.compiler import Program
from tilewright.errors import OverlappingArguments, TilewrightWarning
from tilewright.interpreter import interpret
from tilewright.ir import WARP, Buffer, Function, Var, kernels
from tilewright.machine.arch import Arch
from tilewright.options import in_context
from tilewright.passes.context import Schedule
from tilewright.passes.thread.check_registers import roomier
from tilewright.runtime.arguments import Binder, Bound
from tilewright.runtime.call_keys import MISSED
from tilewright.runtime.emulation import emulate_program
from tilewright.runtime.facts import FactClass, FactClasses, as_one, shared_places
from tilewright.runtime.inspection import Inspected
from tilewright.runtime.packing import pack_operands, packed_sizes, unpack_operand
from tilewright.runtime.plans import Device, Launch, Plans
from tilewright.runtime.profiler import Profiler
from tilewright.runtime.programs import lowered
from tilewright.runtime.tensors import count_write, is_torch, memory_of
from tilewright.targets.base import Promised, Target
from tilewright.targets.registry import resolve

_LIBRARY = Path(__file__).resolve().parents[1] / "kernels"


class Kernel(Inspected):
    """A kernel compiled for one machine.

    Calling it checks the arguments, allocates the outputs (parameters listed in ``out_idx``, tensors made by
    `T.empty`) and runs it: on the CPU at once, on a GPU in the current stream.

    Parameters
    ----------
    function : the traced program.
    target, arch : where it is to run.
    schedule : choices fixed beforehand; the compiler makes the others.
    facts : the class of tensors to compile for (`runtime.facts`); None for the best, with variants for others on
        demand.

    Raises
    ------
    TilewrightError : the program cannot be compiled for that machine.

    Examples
    --------
    >>> kernel = tilewright.compile(program)            # doctest: +SKIP
    >>> kernel(a, b)                                    # doctest: +SKIP
    """

    def __init__(
        self,
        function: Function,
        target: Target,
        arch: Arch,
        schedule: Schedule | None = None,
        *,
        facts: FactClass | None = None,
    ) -> None:
        self.function, self.target, self.arch = function, target, arch
        self.schedule = schedule or Schedule()
        self._classes = FactClasses(function, arch.told_apart) if arch.has_threads else None
        self._facts = facts or (self._classes.best if self._classes else ())
        told = self._classes.assuming(self._facts) if self._classes else function
        self.program: Program = lowered(told, target, arch, self.schedule)
        for diagnostic in self.program.diagnostics:
            if diagnostic.kind == "warning":
                warnings.warn(str(diagnostic), TilewrightWarning, stacklevel=3)
        self._launch: Callable[..., None] | None = None
        self._lock, self._building = threading.Lock(), threading.Lock()
        self._path: Path | None = None
        self._begun = False
        self._variants: dict[FactClass, Kernel] = {self._facts: self}
        packed = packed_sizes(self.program.final)
        # A program that comes from disk has parameters of its own, in the same order.
        places = zip(function.params, self.program.final.params, strict=True)
        sizes = {param: packed[made] for param, made in places if isinstance(param, Buffer) and made in packed}
        self._binder = Binder(function, target.name, sizes)
        self._merged: dict[tuple[int, ...], Kernel] = {}
        # Where kernels have no variants, addresses need be no more than multiples of an element.
        elements = [param.dtype.nbytes(1) for param in function.params if isinstance(param, Buffer)]
        widest = arch.told_apart if self._classes else max(elements, default=1)
        self.plans = Plans(function, self._binder.written - set(function.outputs), widest)

    def __repr__(self) -> str:
        return f"<Kernel {self.function.name} for {self.target.name} {self.arch.name}>"

    def _repr_html_(self) -> str:
        """For notebooks: the name, and what opens: the program that was traced, and the text made of it."""
        texts = {"program": self.show_program(), "source": self.get_kernel_source()}
        folded = "".join(
            f"<details><summary>{name}</summary><pre>{html.escape(text)}</pre></details>"
            for name, text in texts.items()
        )
        return f"<b>{html.escape(repr(self)[1:-1])}</b>{folded}"

    def __call__(self, *arguments: object, **named: object) -> Any:  # tensors of the library that the arguments are of
        """Run on tensors (NumPy, torch, DLPack) and scalars; returns the outputs, if there are any.

        Raises
        ------
        ArgumentError : an argument that does not fit, named; nothing has run.
        """
        if not named and len(arguments) == self.plans.arity:
            result = self.plans.run(*arguments)
            if result is not MISSED:
                return result
        try:
            bound = self._binder.bind(arguments, named)
        except OverlappingArguments:
            kernel, values = self._for_memory(self._binder.in_order(arguments, named))
            if kernel is self:
                raise
            return kernel(*values)
        launcher = self._variant(bound.entry).launcher
        device = self._device(launcher, bound)
        values = self._binder.in_order(arguments, named)
        for param, value in zip(self.function.inputs, values):
            if param in self.plans.written:
                count_write(value)
        if getattr(launcher, "takes_tensors", False):
            launcher(*self._binder.with_tensors(values, bound))
            return _results([one.value if isinstance(one, Promised) else one for one in bound.outputs])
        with nullcontext() if device is None else device.on(device.index):
            launcher(*bound.entry)
            if not named and self._binder.has_tensors(arguments):
                self._remember(arguments, bound, launcher, device)
        return _results(bound.outputs)

    def _for_memory(self, values: list[Any]) -> tuple[Kernel, list[Any]]:
        """The kernel for the memory that tensors of a call share, and the values that it takes."""
        found = shared_places(self.function, values, self._binder.written)
        left = sorted(set(found))
        if len(left) == len(found):
            return self, values
        if found not in self._merged:
            made = as_one(self.function, found)
            self._merged[found] = self if made is None else Kernel(made, self.target, self.arch, self.schedule)
        kernel = self._merged[found]
        return kernel, values if kernel is self else [values[number] for number in left]

    @staticmethod
    def _device(launcher: Any, bound: Bound) -> Device | None:
        """Which of several devices a call is to run on; None where there is one only."""
        current = getattr(launcher, "current_device", None)
        return None if current is None or bound.device is None else Device(bound.device, current, launcher.on_device)

    def variant(self, *arguments: object) -> Kernel:
        """The kernel that a call with these arguments (in host memory) runs: the one for tensors of their class."""
        return self._variant(Binder(self.function, "cpu").bind(arguments, {}).entry)

    def _variant(self, entry: Sequence[object]) -> Kernel:
        """The kernel to run for these entry arguments: the one compiled for tensors of their class."""
        if self._classes is None:
            return self
        facts = self._classes.of(entry)
        found = self._variants.get(facts)
        if found is None:
            with self._lock:
                found = self._variants.get(facts)
                if found is None:
                    found = Kernel(self.function, self.target, self.arch, self.schedule, facts=facts)
                    self._variants[facts] = found
        return found

    def _remember(self, arguments: Sequence[object], bound: Bound, launcher: object, device: Device | None) -> None:
        """Keep what a checked call found, for later calls with arguments of the same kinds."""
        prepare, binding = getattr(launcher, "prepare", None), getattr(launcher, "binding", None)
        if prepare is not None:
            launch = Launch(prepare(bound.entry, bound.device), binding and binding(bound.entry))
            self.plans.remember(arguments, bound.outputs, launch, device)

    @property
    def launcher(self) -> Callable[..., None]:
        """The loaded binary, a callable of the entry arguments; built at first use."""
        launch = self._launch
        if launch is None:
            with self._lock:
                launch = self._launch
                if launch is None:
                    launch = self.target.load(self.path, self.program.source, self.program.final, self.arch)
                    self._launch = launch
        return launch

    @property
    def path(self) -> Path:
        """Directory of the cache entry with source and binary, built where it is missing: the cache may have been
        cleared since."""
        with self._building:
            if self._path is None or not self._path.is_dir():
                self._path = self._build()
                self._warn_of_losses(self._path)
            return self._path

    def begin(self) -> None:
        """Build the binary in a thread of its own; who needs it first waits for it.

        Compilers of devices run beside Python: several kernels that one call needs are built at once, and while the
        next one is lowered. What goes wrong is reported to who needs the binary.
        """
        if not self._begun and self._path is None:
            self._begun = True
            threading.Thread(target=in_context(self._build_ahead), name=f"build {self.function.name}").start()

    def _build_ahead(self) -> None:
        with self._building, contextlib.suppress(Exception):
            self._build()

    def _build(self) -> Path:
        source, arch = self.program.source, self.arch
        made_of = source.text, source.language, *source.flags, repr(source.metadata)
        key = digest(*made_of, self.target.name, arch.name, self.target.compiler_key(arch))
        return cached(key, lambda directory: self.target.build(source, arch, directory))

    def _warn_of_losses(self, entry: Path) -> None:
        """Losses of speed that the device's compiler reported, but for the library's own kernels: their users cannot
        change them."""
        if self.target.binary is not None:
            made = dict(zip(self.program.source.entries, kernels(self.program.final)))
            for warning in self.target.binary(entry).warnings:
                kernel, hint = made.get(warning.kernel), warning.hint
                span = next(iter(warning.spans), kernel.span if kernel else None)
                if span is not None and Path(span.file).resolve().is_relative_to(_LIBRARY):
                    continue
                if warning.kind == "spill" and kernel is not None:
                    hint = roomier(kernel, self.arch)
                place, advice = f"\n{span.show()}" if span else "", f"\n  help: {hint}" if hint else ""
                warnings.warn(f"{warning.message}{place}{advice}", TilewrightWarning, stacklevel=3)

    def on(self, target: object) -> Kernel:
        """The same traced program compiled for another machine; its sizes stay those that it was traced with.

        Parameters
        ----------
        target : as that of `tilewright.compile`.

        Examples
        --------
        >>> kernel = double.compile(N=1024)
        >>> kernel.on("cuda -arch=sm_90a")
        <Kernel double for cuda sm_90a>
        """
        found, arch = resolve(target)
        is_same = (found.name, arch) == (self.target.name, self.arch)
        return self if is_same else Kernel(self.function, found, arch, self.schedule)

    def interpret(self, *arguments: object, **named: object) -> Any:  # as `__call__`
        """Run the traced program on the interpreter, with NumPy; arguments and results as for a call.

        Out-of-range reads give the safe value and reads of never-written tile elements are reported.
        """
        kernel, values = self._for_memory(self._binder.in_order(arguments, named))
        together = self.arch.warp_size if self.arch.has_threads else WARP
        outputs = interpret(kernel.function, [_as_numpy(value) for value in values], together=together)
        return _results(outputs)

    def emulate(
        self, *arguments: object, schedule: str = "late", seed: int = 0, unsettled: Sequence[Any] = (), **options: Any
    ) -> Any:  # as `__call__`
        """Run the emitted device text on this machine's CPU, under a scheduler that finds its mistakes.

        Parameters
        ----------
        arguments : as for a call, in host memory.
        unsettled : those of the arguments that a kernel of another program may still be writing when this one begins.
        schedule, seed, options : see `tilewright.emulator.emulate` (``check``, ``trace``, ``multiprocessors``, ...).

        Raises
        ------
        EmulationError : races, deadlocks and other mistakes, with the author's lines.
        EmulationFailed : the target has no device text to emulate.
        """
        kernel, given = self._for_memory(self._binder.in_order(arguments, {}))
        if kernel is not self:
            return kernel.emulate(*given, schedule=schedule, seed=seed, unsettled=unsettled, **options)
        values = [_as_numpy(value) for value in given]
        late = [next((mine for mine, its in zip(values, given, strict=True) if its is one), one) for one in unsettled]
        bound = Binder(self.function, "cpu").bind(values, {})  # its outputs' addresses choose the variant, too
        program = self._variant(bound.entry).program
        outputs = emulate_program(program, values, bound, schedule=schedule, seed=seed, unsettled=late, **options)
        return _results(outputs)

    def pack(self, **operands: object) -> Any:  # one array, or as many as were given
        """Bring row-major arrays into the order that the compiler chose for parameters declared `T.Packed`.

        Parameters
        ----------
        operands : one array a parameter, by name; sub-byte types as bytes, last dimension packed.

        Returns
        -------
        uint8 array (a tuple of them for several operands).
        """
        packed = pack_operands(self.program.final, {name: _as_numpy(value) for name, value in operands.items()})
        return packed[0] if len(packed) == 1 else tuple(packed)

    def unpack(self, **operands: object) -> Any:  # one array, or as many as were given
        """Inverse of `pack`."""
        arrays = [unpack_operand(self.program.final, name, _as_numpy(value)) for name, value in operands.items()]
        return arrays[0] if len(arrays) == 1 else tuple(arrays)

    def get_profiler(self, **options: Any) -> Profiler:  # options of `Profiler`
        """A profiler of this kernel, with random arguments of the declared shapes."""
        return Profiler(self, **options)

    @property
    def params(self) -> tuple[Buffer | Var, ...]:
        """The parameters, in the author's order."""
        return self.function.params

    @property
    def out_idx(self) -> tuple[int, ...]:
        """Positions of the parameters that the call allocates and returns."""
        outputs = self.function.outputs
        return tuple(i for i, p in enumerate(self.params) if isinstance(p, Buffer) and p in outputs)


def _results(outputs: Sequence[object]) -> Any:
    """What a call returns: nothing, its one output, or all of them."""
    return None if not outputs else outputs[0] if len(outputs) == 1 else tuple(outputs)


def _as_numpy(value: object) -> Any:
    if isinstance(value, (list, tuple)):
        return [_as_numpy(one) for one in value]
    return memory_of(value) if is_torch(value) else value
