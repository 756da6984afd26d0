"""`jit` and `compile`: from an author's function to kernels, specialised and remembered.

Two styles, told apart by the function itself.  A *factory* returns a `T.prim_func`: calling it gives a
`Kernel`.  A *direct* function declares its tensors in its body: calling it compiles for the tensors given and
runs at once.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.errors import TilewrightError, WrongArgumentDevice, an, near
from tilewright.ir.nodes import Function
from tilewright.language.choices import Choice, traced_for
from tilewright.language.direct import Declaration, DirectFunction, is_factory
from tilewright.language.mistakes import WrongArguments
from tilewright.language.trace import PrimFunc
from tilewright.machine.arch import Arch
from tilewright.options import target_marker, target_option
from tilewright.passes.context import Schedule
from tilewright.runtime.arguments import shape_and_strides
from tilewright.runtime.call_keys import MISSED, CallPlan, key_of
from tilewright.runtime.calls import Calls
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.tensors import Array, is_tensor, tensor_view
from tilewright.targets.base import TARGETS, Target
from tilewright.targets.registry import resolve


class NotAKernel(TilewrightError):
    """Something that cannot be compiled, or a factory that returned something else than a `T.prim_func`."""


class InvalidUse(TilewrightError, ValueError):
    """An option or a call that does not go with the style of the function."""


def compile(
    program: PrimFunc | Function | Kernel,
    out_idx: int | Sequence[int] | None = None,
    target: object = "auto",
    schedule: Schedule | None = None,
) -> Kernel:
    """Compile a traced function.

    Parameters
    ----------
    program : made by `T.prim_func`; or a kernel, whose traced program is compiled again.
    out_idx : positions of the parameters that a call allocates and returns; negative ones from the end.
    target : ``"auto"``, ``"cpu"``, ``"cuda -arch=sm_90a"``, a dict with ``kind`` and ``arch``.
    schedule : choices fixed beforehand.

    Returns
    -------
    Kernel

    Raises
    ------
    TilewrightError : the program is not one, or cannot be compiled for the target.
    """
    if isinstance(program, Kernel):
        program = program.function
    if isinstance(program, Function):
        program = PrimFunc(program, program.span)
    if not isinstance(program, PrimFunc):
        raise NotAKernel(
            f"tilewright.compile got {an(type(program).__name__)}", hint="pass a function decorated with T.prim_func"
        )
    found, arch = resolve(target)
    return Kernel(
        program.with_outputs(out_idx).function if out_idx is not None else program.function, found, arch, schedule
    )


def jit(
    function: Callable[..., object] | _ForTargets | None = None,
    *,
    out_idx: int | Sequence[int] | None = None,
    target: object = "auto",
    schedule: Schedule | None = None,
) -> Any:  # a function that is compiled when it is called, or a decorator
    """Decorator that compiles on demand; bare (``@jit``) or with arguments.

    Parameters
    ----------
    function : a factory or a direct function; or what `jit` has made of one: the options given replace its own.
    out_idx : for factories: which parameters a call allocates and returns.  Direct functions use `T.empty`.
    target : see `compile`; a direct function called with ``target="auto"`` runs where its tensors are.
    schedule : choices fixed beforehand.

    Examples
    --------
    >>> @tilewright.jit
    ... def double(X):
    ...     N = T.const("N")
    ...     X: T.Tensor((N,), "float32")
    ...     Y = T.empty((N,), "float32")
    ...     with T.Kernel(T.ceildiv(N, 256)) as block:
    ...         for i in T.Parallel(256):
    ...             Y[block * 256 + i] = X[block * 256 + i] * 2
    ...     return Y
    >>> double(np.arange(3, dtype=np.float32))
    array([0., 2., 4.], dtype=float32)
    """
    if function is None:
        return functools.partial(jit, out_idx=out_idx, target=target, schedule=schedule)
    if isinstance(function, PrimFunc):
        return compile(function, out_idx, target, schedule)
    if isinstance(function, (JITFactory, JITFunction)):
        made = function
        function = made.__wrapped__
        target = made.target if target == "auto" else target
        schedule = schedule or made.schedule
        if out_idx is None and isinstance(made, JITFactory):
            out_idx = made.out_idx
    if not callable(function) or not hasattr(function, "__code__"):
        raise NotAKernel(f"tilewright.jit got {an(type(function).__name__)}", hint="decorate a function")
    if is_factory(function):
        return JITFactory(function, out_idx, target, schedule)
    if out_idx is not None:
        raise InvalidUse(
            f"{function.__name__} is of the direct style, where out_idx has no meaning",
            hint="make outputs with T.empty and return them",
        )
    return JITFunction(function, target, schedule)


class _ForTargets:
    """What both styles do with a target: the same kernel for several machines."""

    __wrapped__: Callable[..., object]
    target: Any
    _elsewhere: dict[Any, Any]

    def on(self, target: object) -> JITFunction:
        """The same function for another machine, made once for each.

        Parameters
        ----------
        target : as that of `compile`; ``"auto"`` is where the tensors are.

        Examples
        --------
        >>> double.on("cuda -arch=sm_90a").compile(N=1024)
        <Kernel double for cuda sm_90a>
        >>> double.on("cpu")(np.arange(3, dtype=np.float32))
        array([0., 2., 4.], dtype=float32)

        Raises
        ------
        UnknownTarget : no such machine.
        """
        key: object = "auto"
        if target not in (None, "auto"):
            found, arch = resolve(target)
            key = (found.name, arch)
        if key not in self._elsewhere:
            self._elsewhere[key] = made = jit(self)
            made.target = target or "auto"
        return self._elsewhere[key]

    def _for_named_target(self, named: dict[str, object]) -> Any:
        """The function for the target among named arguments, which is taken from them; itself where none is there.

        A function that has a parameter of that name is given it.
        """
        if "target" not in named or "target" in inspect.signature(self.__wrapped__).parameters:
            return self
        return self.on(named.pop("target"))


class JITFactory(_ForTargets):
    """A decorated factory: calling it with its arguments gives the `Kernel`, compiled once for each set of them."""

    def __init__(
        self,
        function: Callable[..., object],
        out_idx: int | Sequence[int] | None,
        target: object,
        schedule: Schedule | None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function, self.out_idx, self.target, self.schedule = function, out_idx, target, schedule
        self._kernels: dict[object, Kernel] = {}
        self._elsewhere = {}

    def __call__(self, *arguments: object, **named: object) -> Kernel:
        return self.for_target(self.target, *arguments, **named)

    def compile(self, *arguments: object, **named: object) -> Kernel:
        """The kernel for these arguments, as a call gives it; ``target=`` says for which machine."""
        made: Kernel = self._for_named_target(named)(*arguments, **named)
        return made

    def for_target(self, target: object, *arguments: object, **named: object) -> Kernel:
        """The kernel for a target (as in `compile`), made once for each set of arguments and machine."""
        found, arch = resolve(target)
        given = key_of(arguments, named)
        key = (found.name, arch, given)
        kernel = self._kernels.get(key)
        if kernel is None:
            with traced_for(arch):
                traced = self.trace(*arguments, **named)
            kernel = compile(traced, self.out_idx, target, self.schedule)
            if given is not None:
                self._kernels[key] = kernel
        return kernel

    def trace(self, *arguments: object, **named: object) -> PrimFunc:
        """The traced program for these arguments, not compiled.

        Raises
        ------
        NotAKernel : the factory returned something else than a `T.prim_func`.
        """
        made = self.function(*arguments, **named)
        if not isinstance(made, PrimFunc):
            raise NotAKernel(
                f"{self.function.__name__} returned {an(type(made).__name__)}, expected a T.prim_func",
                hint="decorate the inner function with @T.prim_func and return it",
            )
        return made

    def get_kernel_source(self, *arguments: object, **named: object) -> str:
        """The text emitted for these arguments."""
        return self(*arguments, **named).get_kernel_source()


class JITFunction(_ForTargets):
    """A decorated direct function: calling it compiles for the arguments' shapes and runs."""

    def __init__(self, function: Callable[..., object], target: object, schedule: Schedule | None) -> None:
        functools.update_wrapper(self, function)
        self.target, self.schedule = target, schedule
        self.direct = DirectFunction(function)  # type: ignore[arg-type]
        self._declarations: dict[object, Declaration] = {}
        self._kernels: dict[object, Kernel] = {}
        self._elsewhere = {}
        self._choices: dict[object, Choice] = {}
        """What `T.suited` asks next, by all that is known before."""
        self._calls: dict[tuple[object, ...], Calls] = {}
        """Calls that have run, by the target that is asked for, how many arguments, and names of those with one."""
        self._last: tuple[Calls, int, object] = (Calls(), -1, None)
        """Those of the last call without names that was kept, how many arguments, the target."""

    def __call__(self, *arguments: Array, **named: Any) -> Any:
        """Run on tensors, scalars and compile-time constants; returns what the function returns."""
        calls, count, target = self._last
        if not named and len(arguments) == count and target_marker() == target:
            result = calls.run(*arguments)
        else:
            known = self._calls.get((target_marker(), len(arguments), *named))
            result = MISSED if known is None else known.run(*arguments, *named.values())
        if result is not MISSED:
            return result
        runtime, *told = self.direct.split_sized(*arguments, **named)
        kernel = self._kernel(runtime, *told)
        result = kernel(*runtime.values())
        plan = kernel.plans.get(*runtime.values())
        if plan is not None:
            self._remember(plan, list(runtime), arguments, named)
        return result

    def _remember(
        self, plan: CallPlan, taken: Sequence[str], arguments: Sequence[object], named: Mapping[str, object]
    ) -> None:
        """Keep the plan of a call, which takes the arguments of these names: tensors and scalars.

        All others, constants, decide what a call runs, and so do shapes, types and devices of tensors.
        """
        names = [*(parameter.name for parameter in self.direct.parameters[: len(arguments)]), *named]
        if not set(taken) <= set(names):
            return
        values, target = (*arguments, *named.values()), target_marker()
        calls = self._calls.setdefault((target, len(arguments), *named), Calls(range(len(values))))
        positions = [names.index(name) for name in taken]
        calls.keep(values, plan, positions, [i for i in positions if type(values[i]) is float])
        if not named:
            self._last = calls, len(arguments), target

    def compile(self, *arguments: object, **named: object) -> Kernel:
        """The kernel that a call with these arguments would run, without running it.

        Tensors may be given as arrays, as anything with a ``shape``, or as their shapes; where sizes are given by their
        names, they may be left out.  ``target=`` says for which machine.

        Examples
        --------
        >>> double.compile(N=1024)
        <Kernel double ...>
        >>> double.compile((1024,))
        <Kernel double ...>
        >>> double.compile(N=1024, target="cuda -arch=sm_90a")
        <Kernel double for cuda sm_90a>
        """
        found = self._for_named_target(named)
        runtime, constants, sizes = found.direct.split_partly(*arguments, **named)
        made: Kernel = found._kernel(runtime, constants, sizes)
        return made

    def trace(self, *arguments: object, **named: object) -> PrimFunc:
        """The traced program for these arguments, given as to `compile`."""
        runtime, constants, sizes = self.direct.split_partly(*arguments, **named)
        return self.direct.trace(constants, *self._sizes(runtime, constants, sizes))

    def interpret(self, *arguments: object, **named: object) -> Any:  # as a call
        """Run on the interpreter; see `Kernel.interpret`."""
        runtime, *told = self.direct.split_sized(*arguments, **named)
        return self._kernel(runtime, *told).interpret(*runtime.values())

    def emulate(self, *arguments: object, **named: Any) -> Any:  # as a call
        """Run the device text on this machine's CPU; see `Kernel.emulate`.

        Parameters
        ----------
        arguments : in host memory.
        named : those of the function, and the emulator's options.
        """
        options = {name: named.pop(name) for name in list(named) if name not in self.direct.signature.parameters}
        runtime, constants = self.direct.split(*arguments, **named)
        declared = options.keys() & set(self._declaration(constants).symbols)
        kernel = self._kernel(runtime, constants, {name: options.pop(name) for name in declared})
        return kernel.emulate(*runtime.values(), **options)

    def get_kernel_source(self, *arguments: object, **named: object) -> str:
        """The text emitted for these arguments."""
        return self.compile(*arguments, **named).get_kernel_source()

    def _kernel(
        self, runtime: Mapping[str, object], constants: Mapping[str, object], named: Mapping[str, int] | None = None
    ) -> Kernel:
        target, arch = self._machine(runtime)
        sizes, numbers = self._sizes(runtime, constants, named)
        key: tuple[object, ...] = (target.name, arch.name, tuple(sizes.items()), key_of((), constants))
        first = key
        while key in self._choices:  # what `T.suited` chose after what it had chosen before
            key = (*key, self._choices[key].of(numbers))
        kernel = self._kernels.get(key)
        if kernel is None:
            chosen: list[Choice] = []
            with traced_for(arch):
                traced = self.direct.trace(constants, sizes, numbers, chosen)
            for choice in chosen:
                self._choices[first] = choice
                first = (*first, choice.value)
            kernel = self._kernels[first] = Kernel(traced.function, target, arch, self.schedule)
        return kernel

    def _machine(self, runtime: Mapping[str, object]) -> tuple[Target, Arch]:
        """Where the tensors are, unless the author said where to run."""
        if self.target not in (None, "auto"):
            return resolve(self.target)
        for name, value in runtime.items():
            one = value[0] if isinstance(value, (list, tuple)) and value else value
            if is_tensor(one):
                return resolve(target_option() or _kind_of_memory(name, one))
        return resolve("auto")

    def _sizes(
        self, runtime: Mapping[str, object], constants: Mapping[str, object], named: Mapping[str, int] | None = None
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Sizes that are part of the specialisation, and those that are known only at launch; tensors give them, of
        which some may be missing where sizes are named."""
        declaration = self._declaration(constants)
        shapes, strides = {}, {}
        unknown = [name for name in named or () if name not in declaration.symbols]
        if unknown:
            known = [*self.direct.signature.parameters, *declaration.symbols]
            hint = near(unknown[0], known) or "known: " + ", ".join(known)
            raise WrongArguments(f"{declaration.name} has no argument and no size {unknown[0]!r}", hint).at(
                declaration.span
            )
        for name in declaration.tensors:
            if name not in runtime and named is not None:
                continue
            shapes[name], strides[name] = shape_and_strides(name, runtime[name], declaration.tensors[name])
        sizes = declaration.bind(shapes, strides, named) if declaration.sizes else {}
        return sizes, {**declaration.numbers(shapes), **(named or {})}

    def _declaration(self, constants: Mapping[str, object]) -> Declaration:
        key = key_of((), constants)
        declaration = self._declarations.get(key) if key is not None else None
        if declaration is None:
            declaration = self.direct.declare(constants)
            if key is not None:
                self._declarations[key] = declaration
        return declaration


def _kind_of_memory(name: str, tensor: object) -> str:
    """The kind of memory that an argument is in, which names a target."""
    kind = tensor_view(tensor).device[0]
    if kind not in TARGETS:
        raise WrongArgumentDevice(
            f"argument {name!r} is on {kind}, where no kernel runs", hint=f"move it: {', '.join(sorted(TARGETS))}"
        )
    return kind
