"""Whether warpgroups that keep a number of registers of their own (`T.set_max_nreg`) find so many in their block.

A block starts with as many registers for each thread as let the asked number of blocks run at once
(`Arch.launch_registers`). Warpgroups give some back and take others; one that asks for more than are left waits for
ever.
"""

from __future__ import annotations

from tilewright.errors import RegistersExceeded
from tilewright.ir.nodes import WARP, Kernel, Roles
from tilewright.machine.arch import Arch
from tilewright.passes.tile.roles.divide_roles import MIN_BLOCKS


def check_register_shares(roles: Roles, kernel: Kernel, arch: Arch) -> None:
    """Raise where the warpgroups of `roles` ask for more registers than a block has.

    Raises
    ------
    RegistersExceeded : names what each keeps, and what there is.
    """
    if all(role.registers is None for role in roles.roles):
        return
    blocks = kernel.attribute(MIN_BLOCKS, 1)
    there_are = arch.block_registers(kernel.num_threads, blocks)
    launched = there_are // kernel.num_threads
    groups = [(sum(role.all_warps for role in group) * WARP, group[0]) for group in roles.warpgroups()]
    asked = sum(threads * (launched if role.registers is None else role.registers) for threads, role in groups)
    if asked > there_are:
        most = max((role for _, role in groups), key=lambda role: role.registers or 0)
        kept = ", ".join(
            f"{launched if role.registers is None else role.registers} x {threads}" for threads, role in groups
        )
        together = f" of which {blocks} share a multiprocessor" if blocks > 1 else ""
        raise RegistersExceeded(
            f"the warps of this block keep {asked} registers ({kept} threads), but a block of "
            f"{kernel.num_threads} threads{together} has {there_are}",
            span=most.span,
            hint=f"ask for fewer: a thread starts with {launched}, and some may take what others give back",
        )
