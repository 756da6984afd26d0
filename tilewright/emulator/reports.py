"""What the emulator found, as records and as sentences: the core gives facts, this module says what they mean and what
to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.errors import Span
from tilewright.targets.gpu.spellings import spelled

OPERATIONS = (
    "nothing", "sync_threads", "named_barrier_sync", "named_barrier_arrive", "sync_warp", "a shuffle", "a vote",
    "elect_one", "a warp reduction", "signal_init", "signal_invalidate", "signal_arrive", "signal_arrive_cluster",
    "signal_expect_tx", "signal_arrive_expect_tx", "signal_complete_tx", "signal_try_wait", "signal_test_wait",
    "signal_wait", "fence_signal_init", "fence_proxy_async", "a fence", "async_copy", "async_copy_commit",
    "async_copy_wait", "async_copy_signal_arrive", "bulk_load", "bulk_store", "box_load", "box_store", "box_reduce",
    "bulk_commit", "bulk_wait", "box_prefetch", "load_matrix", "store_matrix", "move_matrix", "mma", "gmma",
    "gmma_fence", "gmma_commit", "gmma_wait", "set_registers", "cluster_arrive", "cluster_wait", "an atomic",
    "load_acquire", "a release", "grid_wait", "grid_launch", "load", "store",
)  # fmt: skip
"""Names of the core's operations, by number (`TwOperation` in interface.h)."""

THINGS = {"signal": "arrival barrier", "group": "group of warps", "gmma": "product of a group"}
"""What sentences call things for which a vocabulary has no words of the maker's."""


def called(name: str, words: Mapping[str, str]) -> str:
    """The maker's name for what the core does or has, of which a vocabulary has some of the words."""
    made = spelled(name, words)
    return THINGS.get(made, made)


@dataclass(frozen=True, slots=True)
class Place:
    """A thread: its block in the grid, its warp in the block, its lane in the warp, and its thread index."""

    block: int
    warp: int
    lane: int
    thread: tuple[int, int, int]

    def __str__(self) -> str:
        return f"block {self.block}, warp {self.warp}, lane {self.lane}"


@dataclass(frozen=True, slots=True)
class Report:
    """One mistake.

    Attributes
    ----------
    kind : its class, a key of `KINDS`.
    message : what is wrong, one sentence.
    hint : what to do.
    span : where, in the author's file.
    at : the thread.
    other : the place that it collides with, where there is one.
    waits : for a deadlock, a line for each group of lanes that waits.
    facts : what the core knew, for programs.
    """

    kind: str
    message: str
    hint: str
    span: Span | None = None
    at: Place | None = None
    other: Span | None = None
    waits: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __str__(self) -> str:
        parts = [f"[{self.kind}] {self.message}"]
        if self.span is not None:
            parts.append(self.span.show())
        if self.other is not None:
            parts += ["  the other place:", self.other.show()]
        if self.at is not None:
            parts.append(f"  thread: {self.at}")
        parts += [f"  {wait}" for wait in self.waits]
        parts.append(f"  help: {self.hint}")
        return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor as its author knows it.

    Attributes
    ----------
    strides : bytes from an element to the next one along each dimension.
    per_byte : elements that share a byte of the last dimension.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    per_byte: int = 1

    def __str__(self) -> str:
        return self.name

    def element(self, offset: int) -> str:
        """The element that a byte of the tensor's memory belongs to."""
        index, left = [0] * len(self.shape), offset
        for dimension in sorted(range(len(self.shape)), key=lambda one: -self.strides[one]):
            index[dimension], left = divmod(left, max(self.strides[dimension], 1))
        if any(not 0 <= place < extent for place, extent in zip(index, self.shape, strict=True)):
            return f"byte {offset} of {self.name}, whose shape is {self.shape}"
        if index:
            index[-1] *= self.per_byte
        return f"{self.name}[{', '.join(map(str, index))}]" if index else self.name


@dataclass(frozen=True, slots=True)
class Labels:
    """What memory is called.

    Attributes
    ----------
    arrays : of global memory, in the core's order.
    tiles : of a block's shared memory: first byte, byte behind the last one, name.
    words : the vocabulary's, for what the core does and has.
    """

    arrays: Sequence[str | Named]
    tiles: Sequence[tuple[int, int, str]] = ()
    words: Mapping[str, str] = field(default_factory=dict)

    def at(self, argument: int, offset: int) -> str:
        """A byte of an array."""
        label = self.arrays[argument]
        return label.element(offset) if isinstance(label, Named) else f"byte {offset} of argument {label}"

    def tile(self, offset: int) -> str:
        """The tiles that a byte of shared memory belongs to, in parentheses; those whose lives do not meet may share
        it."""
        found = dict.fromkeys(name for first, end, name in self.tiles if first <= offset < end)
        return f" ({' or '.join(found)})" if found else ""


Resolve = Callable[[int], Span | None]
"""The author's place behind a site number of the core."""


def _where(fact: Mapping[str, Any], names: Labels) -> str:
    space, offset = fact["space"], fact["offset"]
    if space == "shared":
        return f"byte {offset} of the shared memory of block {fact['block']}{names.tile(offset)}"
    if space == "global":
        return names.at(fact["argument"], offset)
    if space == "cluster":
        return f"cluster address {offset:#x}"
    return f"address {offset:#x}, which belongs to nothing"


def _verb(facts: Mapping[str, object], prefix: str = "") -> str:
    return "write" if facts.get(prefix + "write") else "read"


def _who(facts: Mapping[str, Any]) -> str:
    if facts.get("other"):
        other = facts["other"]
        return f"block {other['block']}, warp {other['warp']}, lane {other['lane']}"
    return f"cluster {facts['other_cluster']}" if "other_cluster" in facts else "an asynchronous copy"


def _in_words(sentence: str | Callable[[Mapping[str, Any]], str], facts: Mapping[str, Any], names: Labels) -> str:
    """A sentence of `KINDS` with what it is about in place of the words in braces."""
    words = {name: called(name, names.words) for name in (*OPERATIONS, *THINGS)} | dict(facts)
    words |= {"verb": _verb(facts), "other_verb": _verb(facts, "other_"), "who": _who(facts)}
    numbers = {one: facts[one] for one in ("operation", "other_operation") if one in facts}
    words |= {one: called(OPERATIONS[number], names.words) for one, number in numbers.items()}
    if "address" in facts:
        words["where"] = _where(facts["address"], names)
    if "offset" in facts:
        words["tile"] = names.tile(facts["offset"])
    return (sentence if isinstance(sentence, str) else sentence(facts)).format_map(words)


KINDS: dict[str, tuple[str | Callable[[Mapping[str, Any]], str], str]] = {
    "deadlock": ("no thread of cluster {cluster} can go on",
        "make every wait meet its arrivals: counts, parities, expected bytes and who executes them"),
    "partial-collective": (lambda facts: "only part of the lanes reach this collective"
        + (", the others have left the kernel" if facts.get("exited") else ""),
        "move it out of the divergent branch, or name in its mask exactly the lanes that come"),
    "divergent-collective": ("lanes of one warp synchronise in different instructions: {operation} and "
        "{other_operation}",
        "all lanes must execute the same instruction of the text; do not branch on the lane around it"),
    "skipped-barrier": (lambda facts: ("1 thread of the block never comes" if facts["threads"] == 1
        else "{threads} threads of the block never come") + " to this barrier (thread {first} is the first)",
        "all threads of a block wait here: move it out of the condition on threads, or give it the number of those "
        "that come"),
    "different-barriers": ("warps of one block take different barriers for the same: others wait at the other place",
        "all threads of a block must reach the same barrier statement: move it out of the condition on threads"),
    "mask-without-caller": ("the mask {mask:#x} does not name the lane that calls",
        "put the calling lane into the mask"),
    "shuffle-from-nobody": ("this shuffle reads lane {source}, which does not take part",
        "name only lanes of the mask"),
    "race-shared": ("this {verb}s {where} while {who} may still {other_verb} it",
        "put a barrier between the two accesses"),
    "race-global": ("this {verb}s {where} while {who} may still {other_verb} it",
        "order them by a barrier or by release and acquire, use an atomic, or write in one place only"),
    "early-read": ("{where} is read before the copy into it is known to have landed",
        "wait for the copy (its group or its barrier's phase), and if another thread waits, add a barrier after "
        "its wait"),
    "overwritten-copy": ("{where} is written while a copy into it may be under way",
        "wait for the first copy before the memory is used again"),
    "overwritten": ("{where} is overwritten while it may still be read",
        "let every reader finish ({gmma_wait}, bulk_wait_read) and arrive on the barrier that frees the tile; wait "
        "for it before writing"),
    "missing-proxy-fence": ("an asynchronous access reaches {where}, whose ordinary {other_verb} was not fenced",
        "each thread calls fence_proxy_async_shared() after its writes, or reads, and before the barrier"),
    "constant-written": (lambda facts: "{where} is written by this kernel and taken for constant: "
        + ("this write is one" if facts["write"] else "this reads it by a path that need not see writes"),
        "read it by an ordinary load, and leave out TW_RESTRICT, or let another kernel write it"),
    "unwritten-shared": ("{where} is read but nothing was written there", "fill the tile first, or guard the read"),
    "unwritten-register": ("a variable, or registers of a fragment, are read before they hold a value",
        "give the variable a first value, or fill the fragment first"),
    "register-index": ("index {index} is outside a fragment or an array of registers",
        "correct the index; registers have no address on the device"),
    "division-by-zero": ("an integer is divided by zero", "guard the division"),
    "accumulator-read": ("accumulators are read while a {gmma} may still change them",
        "call {gmma_wait}<0>() (or a wait that covers it) before touching them"),
    "accumulator-written": ("accumulators are written while a {gmma} may still change them",
        "wait for the {gmma} first, then fence"),
    "accumulator-lost": ("a fragment ends while a {gmma} may still write it",
        "wait for the {gmma} before leaving the scope"),
    "operand-written": ("registers are written while a {gmma} may still read them as its operand",
        "wait for the {gmma} first"),
    "missing-matrix-fence": ("registers of this {gmma} were written by other code and not fenced",
        "call {gmma_fence}() after the last write to accumulators or operands and before the {gmma}"),
    "group-disagrees": ("the warps of a {group} issue different {gmma} instructions",
        "all of them must issue the same, with the same descriptors"),
    "no-group": ("this product is made by {threads} threads, and the block of {block} warps of {lanes} lanes has no "
        "such group here",
        "use whole warps, as many as multiply together"),
    "replicas-differ": ("lane {lane} holds another number in register {index} of the {operand} operand than a lane "
        "before it, and both are one element",
        "give all lanes that hold an element the same number"),
    "no-group-of-warps": ("{gmma} needs {together} whole warps, and the block of {warps} warps has no such group here",
        "use a multiple of {together} * {lanes} threads"),
    "out-of-bounds": ("this {verb}s {bytes} bytes at {where}, outside of it",
        "guard the access, or correct the index or the size"),
    "misaligned": ("{where} is not a multiple of {alignment}, as an access of {bytes} bytes needs",
        "align the address to the access"),
    "not-shared": ("{where} is no shared memory", "pass a pointer into the block's shared memory"),
    "no-such-block": ("rank {rank} is none of the cluster's {blocks} blocks", "use ranks below cluster_size()"),
    "exited-block": ("{where} is reached when its block may have left the kernel",
        "end the kernel with cluster_sync(), so that no block leaves while a peer still needs it"),
    "barrier-arguments": ("named barrier {id} with {threads} threads does not exist",
        "ids are 0 to {last}, counts multiples of the warp size"),
    "barrier-counts": ("barrier {id} is used with {threads} threads here and {other_threads} elsewhere",
        "all that take part in one use of a barrier must name the same count, and no more may come"),
    "barrier-twice": ("a thread reaches barrier {id} again before the others have completed it",
        "use another id, or let all threads take part"),
    "no-barrier": ("{where} is {what}, but no {signal} was initialised there",
        "call {signal_init} first, with this address"),
    "barrier-count": ("an {signal} cannot count {count} arrivals", "counts are 1 to {most}"),
    "barrier-not-visible": ("an {signal} is {what} by a thread that cannot know of its initialisation",
        "call sync_threads() or cluster_sync() after {signal_init}"),
    "barrier-not-fenced": ("an {signal} is {what} by a copy or a peer, and its initialisation was not fenced",
        "call {fence_signal_init}() after {signal_init} and before the barrier that follows"),
    "barrier-in-use": ("an {signal} is initialised or invalidated while it is in use",
        "let all its users finish, and call {signal_invalidate} before {signal_init}"),
    "too-many-arrivals": (lambda facts: "the {signal} at byte {offset} of shared memory{tile} expects {expected} "
        "arrivals a phase, and more come" + (" (its phase still waits for {bytes} bytes)" if facts["bytes"] else ""),
        "count in {signal_init} every thread that arrives in one phase"),
    "bytes-out-of-range": ("an {signal} would have to count {bytes} bytes",
        "a phase counts {most} bytes at the most: use several barriers"),
    "bytes-do-not-match": (lambda facts: "the {signal} at byte {offset} of shared memory{tile} ends with "
        + ("{bytes} expected bytes that no copy brought" if facts["bytes"] > 0
           else f"{-facts['bytes']} bytes that nobody expected"),
        "expect exactly the bytes of all copies that signal the barrier in a phase"),
    "copy-in-flight-at-exit": ("the kernel ends while {copies} copies to the {signal} at byte {offset} of shared "
        "memory{tile} are under way",
        "wait for every copy before leaving"),
    "before-grid-wait": ("this {verb}s {where}, which the kernel before may still be using",
        "call T.pdl_sync(), which is {grid_wait}() in the text, first, in this thread or in one that this "
        "thread has met since"),
    "sparse-metadata": ("metadata of a sparse operand name no two places in ascending order",
        "two bits a place, the lower place in the lower bits, for each four elements of k; see "
        "`tilewright.formats.sparse`"),
    "store-not-awaited": ("a thread leaves while its bulk store may still read shared memory",
        "call bulk_commit() and bulk_wait_read<0>() before the kernel ends"),
    "bulk-arguments": ("a bulk copy of {bytes} bytes at shared byte {shared_offset} (global address "
        "{global_remainder} past a multiple of {unit}) is not possible",
        "addresses and size must be multiples of {unit}, and the size positive"),
    "tensor-map": ("this tensor map cannot be used: {what}", "correct the descriptor"),
    "register-count": ("{set_registers} cannot set {count} registers",
        "counts are {least} to {most}, multiples of {step}"),
    "register-direction": (lambda facts: "{set_registers} " + ("increases" if facts["increase"] else "decreases")
        + " from {now} to {count} registers",
        "use _dec to go down and _inc to go up from what the warps have"),
    "budget-of-part": ("not all warps of a {group} change their registers here: warp {warps} does",
        "let all {together} warps of the {group} execute the same {set_registers}"),
    "cluster-arrive-twice": ("a thread arrives at the cluster barrier twice without waiting",
        "pair every cluster_arrive with a cluster_wait"),
    "cluster-wait-alone": ("a thread waits for the cluster barrier without having arrived",
        "call cluster_arrive first"),
    "too-long": ("the kernel has run for {seconds} s without an end",
        "look for a loop that does not advance; a longer run needs emulate(..., seconds=..)"),
    "assertion": ("device assertion failed: {message}",
        "the condition does not hold for these arguments; print what it is made of"),
    "trap": ("the kernel calls trap()", "see why its own check failed"),
    "schedule-dependent": ("argument {argument} differs between schedules ({first} and {second})",
        "the order of threads or copies must not matter: look for a race, or for sums whose order is free"),
    "kernels-not-independent": ("a kernel that may run beside the one before it uses what that one writes, or "
        "writes what that one uses (array {argument})",
        "leave out beside=True, so that it begins when the other has ended"),
}  # fmt: skip
"""For each kind of report, its sentence, in which words in braces are facts, and its advice."""

RANK = (
    "assertion", "out-of-bounds", "misaligned", "unwritten", "early-read", "overwritten", "race", "missing",
    "accumulator", "barrier", "too-many", "partial", "divergent", "deadlock",
)  # fmt: skip
"""Which kinds tell most when several come together: causes before consequences."""


def _rank(kind: str) -> int:
    return next((i for i, prefix in enumerate(RANK) if kind.startswith(prefix)), len(RANK))


def _wait(fact: Mapping[str, Any], names: Labels, resolve: Resolve) -> str:
    lanes = bin(fact["lanes"]).count("1")
    at = fact["at"]
    span = resolve(fact["site"])
    who = f"block {at['block']}, warp {at['warp']}, {lanes} lane{'s' if lanes > 1 else ''}, in "
    who += called(OPERATIONS[fact["operation"]], names.words)
    who += f" at {span.file}:{span.line}" if span else ""
    reason = fact["for"]
    if reason == "signal":
        missing = [f"{fact['pending']} of {fact['expected']} arrivals are missing"] if fact["pending"] else []
        if fact["bytes"]:
            missing.append(f"{abs(fact['bytes'])} bytes {'are missing' if fact['bytes'] > 0 else 'too many have come'}")
        return (
            f"{who}: waits for parity {fact['parity']} of the {called('signal', names.words)} at byte "
            f"{fact['offset']} of shared memory of block {fact['block']}{names.tile(fact['offset'])}, "
            f"which is in phase {fact['phase']}; {' and '.join(missing)}"
        )
    if reason == "barrier":
        wanted = fact["expected"] or "all"
        return f"{who}: {fact['arrived']} of {wanted} threads have come to barrier {fact['id']}"
    if reason == "collective":
        absent = fact["mask"] & ~fact["arrived"]
        return f"{who}: lanes {absent:#x} have not come"
    if reason == "registers":
        return f"{who}: wants {fact['wanted']} more registers a thread, the block's pool has {fact['pool']}"
    reasons = {
        "group": f"the other warps of its {called('group', names.words)}", "warps": "the other warps of its product",
        "cluster": "the cluster", "poll": "a flag",
    }  # fmt: skip
    return f"{who}: waits for {reasons.get(reason, reason)}"


def make_report(facts: Mapping[str, Any], names: Labels, resolve: Resolve) -> Report:  # of JSON
    """The record of one mistake from the core's facts.

    Parameters
    ----------
    facts : what the core wrote.
    names : what memory is called.
    resolve : finds the author's place of a site number.
    """
    kind = facts["kind"]
    sentence, hint = KINDS[kind]
    at = facts.get("at")
    other = facts.get("other_site")
    return Report(
        kind,
        _in_words(sentence, facts, names),
        _in_words(hint, facts, names),
        resolve(facts["site"]),
        Place(at["block"], at["warp"], at["lane"], tuple(at["thread"])) if at else None,
        resolve(other) if other else None,
        tuple(_wait(wait, names, resolve) for wait in facts.get("waits", ())),
        facts,
    )


def in_order(reports: Sequence[Report]) -> list[Report]:
    """Reports with causes before consequences."""
    return sorted(reports, key=lambda report: _rank(report.kind))
