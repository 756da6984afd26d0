"""What a compiled kernel tells of itself: its text, its machine code, what it takes, and why it is as it is."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.compiler import Program
from tilewright.errors import CompilerNotFound, NoDeviceCode
from tilewright.ir import Function, kernels
from tilewright.ir.printer import print_program
from tilewright.machine.arch import Arch
from tilewright.runtime.facts import FactClass, FactClasses
from tilewright.targets.base import Target
from tilewright.targets.binary import DeviceBinary
from tilewright.targets.gpu.work import said

if TYPE_CHECKING:
    from tilewright.runtime.kernel import Kernel


class Inspected:
    """A kernel as far as it is looked at."""

    function: Function
    target: Target
    arch: Arch
    program: Program
    _variants: dict[FactClass, Kernel]
    _classes: FactClasses | None

    @property
    def path(self) -> Path:
        """Directory of source and binary."""
        raise NotImplementedError

    def get_kernel_source(self) -> str:
        """The emitted text."""
        return self.program.source.text

    def ptx(self) -> str:
        """The assembly that the emitted text was compiled to.  No GPU is needed.

        Raises
        ------
        NoDeviceCode : the target makes no code for a GPU.
        """
        return self._binary("assembly of a GPU").assembly

    def sass(self) -> str:
        """The machine code as text; needs ``nvidia-cuda-nvdisasm``.  Raises NoDeviceCode, CompilerNotFound."""
        return self._binary("machine code of a GPU").machine_code()

    def resources(self) -> dict[str, dict[str, int]]:
        """What each kernel of the text takes: registers of a thread, spilled bytes, shared memory of a block, and
        ``occupancy``, the blocks that a multiprocessor holds at once.

        Raises
        ------
        NoDeviceCode : the target makes no code for a GPU.
        """
        binary = self._binary("resources")
        source, found = self.program.source, {}
        shared = dict(zip(source.entries, dict(source.metadata)["shared_bytes"], strict=True))
        threads = dict(zip(source.entries, (one.num_threads for one in kernels(self.program.final)), strict=True))
        for name, resources in binary.resources.items():
            facts = {**asdict(resources), "shared_bytes": resources.shared_bytes + shared.get(name, 0)}
            if name in threads:
                facts["occupancy"] = self.arch.occupancy(threads[name], resources.registers, facts["shared_bytes"])
            found[name] = facts
        return found

    def _binary(self, wanted: str) -> DeviceBinary:
        if self.target.binary is None:
            raise NoDeviceCode(
                f"a kernel for {self.target.name} has no {wanted}", hint='compile it with target="cuda -arch=sm_80"'
            )
        return self.target.binary(self.path)

    def show_source(self) -> None:
        """Print the emitted text."""
        print(self.get_kernel_source())

    def show_program(self, after: str | None = None) -> str:
        """The program as text: traced, or after the pass named."""
        if after is None:
            return print_program(self.function)
        by_name = {trace.name: trace.function for trace in self.program.traces}
        return print_program(by_name[after])

    def explain(self, **sizes: int) -> str:
        """For each tile operator what it became and why the better ways were refused, then the diagnostics.

        Where calls were met whose tensors are of another class (`runtime.facts`), the same for each of their variants.
        Then, for a GPU whose data sheet is known (`machine.rates`), the bytes and operations of a call and the time
        that the machine's roofline allows for them.

        Parameters
        ----------
        sizes : those of a call that the program does not know, by their names: ``explain(M=512)``.
        """
        lines: list[str] = []
        for facts, kernel in list(self._variants.items()):
            if self._classes is not None and (len(self._variants) > 1 or self._classes.depend_on_sizes):
                lines.append(self._classes.text(facts))
            program = kernel.program
            lines += [*program.choices, *(str(diagnostic) for diagnostic in program.diagnostics)]
            if self.target.notes is not None:
                try:
                    lines += self.target.notes(kernel.path, self.arch)
                except CompilerNotFound as error:
                    lines.append(f"nothing is known of the machine code: {error}".split("\n")[0])
            lines += getattr(kernel._launch, "notes", ())
        lines += said(self.function, self.arch, sizes)
        return "\n".join(lines) if lines else "nothing was refused"
