"""Roles, channels and tokens: as text, under the verifier, in the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.errors import InvalidProgram, RolesDeadlocked
from tilewright.interpreter import interpret
from tilewright.ir.nodes import Function
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_program
from tilewright.ir.verifier import verify

PROGRAM = """@stage("traced")
def matmul(A: float16[64, 64], B: float16[32, 64], C: float32[64, 32]) -> C:
    with kernel(blocks={bx: 1}, threads={tx: 64, ty: 1, tz: 1}):
        a = shared(float16[2, 64, 16])
        b = shared(float16[2, 32, 16])
        channel("ring", a, b, stages=2, writers=("producer",), readers=("consumer",), scope="block")
        with roles():
            with role("consumer", warps=1):
                c = fragment(float32[64, 32])
                fill(destination=c, value=float32(0.0))
                for k in range(4):
                    receive("ring", k)
                    gemm(token="wgmma", a=a[k % 2, :, :], b=b[k % 2, :, :], c=c, transpose_b=True)
                    commit("wgmma")
                    wait("wgmma", pending=1)
                    if k > 0:
                        release("ring", k - 1)
                wait("wgmma", pending=0)
                release("ring", 3)
                copy(source=c, destination=C)
            with role("producer", warps=1):
                for k in range(4):
                    acquire("ring", k)
                    copy(source=A[:, k * 16 : +16], destination=a[k % 2, :, :])
                    copy(source=B[:, k * 16 : +16], destination=b[k % 2, :, :])
                    publish("ring", k)
"""


def changed(*changes: tuple[str, str]) -> Function:
    text = PROGRAM
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse(text)


def test_text_reads_back() -> None:
    program = parse(PROGRAM)
    verify(program)
    assert print_program(program) == PROGRAM


def operands() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return rng.standard_normal((64, 64)).astype(np.float16), rng.standard_normal((32, 64)).astype(np.float16)


def test_roles_take_turns_in_the_interpreter() -> None:
    a, b = operands()
    (c,) = interpret(parse(PROGRAM), [a, b])
    assert np.abs(c - a.astype(np.float64) @ b.astype(np.float64).T).max() < 1e-5


def test_a_slot_kept_for_ever_is_a_deadlock() -> None:
    program = changed(('                    if k > 0:\n                        release("ring", k - 1)\n', ""))
    with pytest.raises(RolesDeadlocked, match="consumer, producer wait for one another for ever"):
        interpret(program, list(operands()))


def test_iterations_leave_no_gap() -> None:
    with pytest.raises(RolesDeadlocked, match="means to release iteration 7 of 'ring', but its next is 3"):
        interpret(changed(('release("ring", 3)', 'release("ring", 7)')), list(operands()))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("warps=1", "warps=2", "the roles have 4 warps, and the block 64 threads"),
        ('with role("producer"', 'with role("consumer"', "two roles have one name"),
        ("stages=2", "stages=3", "a is no shared buffer of 3 slots"),
        ('receive("ring", k)', 'receive("rings", k)', "there is no channel 'rings'"),
        ('acquire("ring", k)', 'receive("ring", k)', "the role 'producer' is no reader of the channel 'ring'"),
        ('scope="block"', 'scope="planet"', "no scope 'planet' of channels"),
        ("pending=1", "pending=-1", "-1 groups cannot be pending"),
        ('role("consumer", warps=1', 'role("consumer", warps=1, registers=100', "a multiple of 8 from 24 to 256"),
    ],
)
def test_violations(old: str, new: str, message: str) -> None:
    with pytest.raises(InvalidProgram, match=message.replace("(", r"\(")):
        verify(changed((old, new)))


def test_fragments_belong_to_the_role_that_allocates_them() -> None:
    program = changed(
        ("                c = fragment(float32[64, 32])\n", ""),
        ("        with roles():", "        c = fragment(float32[64, 32])\n        with roles():"),
    )
    with pytest.raises(InvalidProgram, match="the fragment c lies in registers of other threads than this role's"):
        verify(program)
