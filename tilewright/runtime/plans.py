"""The plans of a kernel's calls (`calls`): one for each combination of arguments, and of addresses modulo the widest
access."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tilewright.ir.nodes import GLOBAL_ALIGNMENT, Buffer, Function
from tilewright.runtime.call_keys import MISSED, CallPlan
from tilewright.runtime.calls import Calls
from tilewright.runtime.steps import Steps, residues


@dataclass(frozen=True, slots=True)
class Device:
    """Which of several devices a call's tensors are on, where that can differ from the current one.

    Attributes
    ----------
    index : the tensors' device.
    current : gives the index of the calling thread's current device.
    on : makes a context in which the tensors' device is current.
    """

    index: int
    current: Callable[[], int]
    on: Callable[[int], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Launch:
    """What a plan launches.

    Attributes
    ----------
    run : a function of one value a parameter, addresses for buffers.
    binding : how it is called from C, as the target says; None where it is not.
    """

    run: Callable[..., None]
    binding: object = None


class Plans(Calls):
    """The plans of one function's kernel.

    Parameters
    ----------
    function : its parameters are what a call passes, but for its outputs.
    written : arguments that the kernel writes, so that overlaps must be looked for.
    widest : addresses modulo this many bytes decide which variant a kernel runs (`facts`).

    Attributes
    ----------
    arity : how many arguments a call passes.
    """

    def __init__(self, function: Function, written: Collection[Buffer], widest: int = GLOBAL_ALIGNMENT) -> None:
        self.function, self.written, self.widest = function, written, widest
        inputs = function.inputs
        self.arity = len(inputs)
        self._free = [i for i, p in enumerate(inputs) if not isinstance(p, Buffer) and p.dtype.is_float]
        super().__init__([i for i, p in enumerate(inputs) if isinstance(p, Buffer) and p.strides is not None])

    def get(self, *arguments: object) -> CallPlan | None:
        """What calls with arguments like these run; None where they are checked in full."""
        known = self.at(arguments) if len(arguments) == self.arity else None
        return None if known is None else known.plan

    def launch(self, *arguments: object) -> Launch | None:
        """What the plan of such arguments launches; None where there is no plan."""
        known = self.at(arguments) if len(arguments) == self.arity else None
        _, launch = (known.others if known else {}).get(residues(arguments, self.widest), (None, None))
        return launch

    def remember(
        self, arguments: Sequence[object], outputs: Sequence[object], launch: Launch, device: Device | None
    ) -> None:
        """Keep the plan of a call that was checked.

        Parameters
        ----------
        device : where its tensors are; None where there is only one.
        """
        key = self.key_of(arguments, self._free)
        if key is None:
            return
        known = self._known.get(key)
        others = known.others if known else {}
        plan = self._plan(arguments, outputs, launch, device, others)
        others[residues(arguments, self.widest)] = plan, launch
        self.keep(arguments, plan, free=self._free, others=others)

    def _plan(
        self,
        arguments: Sequence[object],
        outputs: Sequence[object],
        launch: Launch,
        device: Device | None,
        others: dict[tuple[int, ...], tuple[CallPlan, Launch]],
    ) -> CallPlan:
        """The plan of one combination of arguments; it holds none of them."""
        parameters, widest = [f"a{i}" for i in range(len(arguments))], self.widest
        given = ", ".join(parameters)

        def otherwise(*arguments: object) -> Any:
            found = others.get(residues(arguments, widest))
            return MISSED if found is None else found[0](*arguments)

        steps = Steps(dict(zip(parameters, arguments, strict=True)), f"otherwise({given})")
        names: dict[str, Any] = steps.names
        names["otherwise"] = otherwise
        inputs = dict(zip(self.function.inputs, parameters, strict=True))
        tensors = {param: name for param, name in inputs.items() if isinstance(param, Buffer)}
        for name, rest in zip(tensors.values(), residues(arguments, widest), strict=True):
            steps.tests[f"p{name}"] = rest, widest
        for param, one in tensors.items():
            if param in self.written:
                steps.writes(one)
                for other in tensors.values():
                    if other != one:
                        steps.keep_apart(one, other)
        passed = {param: f"p{name}" if param in tensors else name for param, name in inputs.items()}
        passed |= {p: steps.make(f"o{i}", like) for i, (p, like) in enumerate(zip(self.function.outputs, outputs))}
        steps.launch(launch.run, [passed[param] for param in self.function.params])
        if device is not None:

            def elsewhere(*arguments: object) -> Any:
                with device.on(device.index):
                    return names["plan"](*arguments)

            # Where no tensor says where a call belongs, its outputs are made on the device that is current.
            steps.on_device(device.current, device.index, f"elsewhere({given})" if tensors else "MISSED")
            names["elsewhere"] = elsewhere
        names["plan"] = plan = steps.plan(", ".join(f"o{i}" for i in range(len(outputs))) or "None")
        return plan
