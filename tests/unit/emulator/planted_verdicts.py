"""What became of planted faults: verdicts, why harmless ones are harmless, and the tables of `docs/lab/planted_faults.md`."""

from __future__ import annotations

import collections
import datetime
import json
import re
from collections.abc import Sequence
from pathlib import Path

from fault_sites import Site
from planted_kernels import kernels_to_plant_in

Verdict = tuple[str, Site, str, str]
"""Kernel, fault, class, and what tells."""

REASONS: tuple[tuple[str, str, str], ...] = (
    (r"^stride doubled", r"argument 2", "the leading offset of swizzled K-major tiles is not read"),
    (r"moved", r"", "the two statements commute, or a wait or barrier of the same kind follows before anything depends on their order"),
    (r"pending", r"by -1$", "the wait covers more than it must"),
    (r"pending", r"", "a later wait covers the same copies, or there are none to wait for at this problem's sizes"),
    (r"left out", r"^(sync_|named_)", "another barrier on every path orders the same accesses, or nothing has used the bytes behind it before"),
    (r"left out", r"^(cp_async_(commit|wait)|commit)", "the copies join the group that follows, for which the loop waits, or there are none"),
    (r"done twice", r"tma_store", "the same bytes are stored twice"),
    (r"left out|iteration|twice|slot", r"release|arrive", "nobody waits for the last release of a slot"),
    (r"count", r"named_barrier", "every thread of that barrier takes the other id, which is free"),
    (r"^loop", r"", "everything in the extra iteration, or in the one left out, lies outside of the tensors"),
    (r"guard", r"", "the guard holds for all at this problem's sizes, or what lies behind it is done twice or not used"),
    (r"constant|operator|slot|coordinate", r"", "the value is the same for all threads at this problem's sizes, or names another free place for all alike"),
    (r"", r"", "what it does is done again, or undone, before anybody looks"),
)  # fmt: skip
"""Why a fault does no harm: the first entry whose patterns fit its kind and its place."""


def reason(site: Site) -> str:
    """The reason why a harmless fault is one."""
    return next(why for kind, what, why in REASONS if re.search(kind, site.kind) and re.search(what, site.what))


def read_log(*logs: Path) -> list[Verdict]:
    """The verdicts in logs, kernel by kernel."""
    found: list[Verdict] = []
    for log in logs:
        for line in log.read_text().splitlines() if log.exists() else []:
            for name, site, verdict, detail in json.loads(line)["verdicts"]:
                found.append((name, Site(**site), verdict, detail))
    order = [f"{program.name} {architecture}" for program, architecture in kernels_to_plant_in()]
    return sorted(found, key=lambda one: (order.index(one[0]), one[1].stage, one[1].number))


def caught_share(verdicts: Sequence[Verdict]) -> float:
    """Share of the faults that do harm and were caught."""
    counts = collections.Counter(verdict for _, _, verdict, _ in verdicts)
    caught = counts["reported"] + counts["wrong"] + counts["hung"] + counts["crashed"]
    return caught / max(1, caught + counts["missed"])


def table(verdicts: Sequence[Verdict]) -> str:
    """The result as a section of a page."""
    counts = collections.Counter(verdict for _, _, verdict, _ in verdicts)
    lines = [
        f"{datetime.date.today().isoformat()}: {len(verdicts)} faults. " + ", ".join(f"{verdict} {count}" for verdict, count in counts.most_common()) + ".",
        f"Caught of those that do harm: {100 * caught_share(verdicts):.2f} %.", "",
        "| kernel | reported | wrong | hung, crashed | missed | harmless | invalid |", "| --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for name in dict.fromkeys(name for name, _, _, _ in verdicts):
        c = collections.Counter(verdict for other, _, verdict, _ in verdicts if other == name)
        lines.append(
            f"| {name} | {c['reported']} | {c['wrong']} | {c['hung'] + c['crashed']} | {c['missed']} | {c['harmless']} | {c['invalid']} |"
        )
    lines += ["", "| kind | reported | wrong | harmless | other |", "| --- | --- | --- | --- | --- |"]
    for kind in sorted({site.kind for _, site, _, _ in verdicts}):
        c = collections.Counter(verdict for _, site, verdict, _ in verdicts if site.kind == kind)
        rest = sum(c.values()) - c["reported"] - c["wrong"] - c["harmless"]
        lines.append(f"| {kind} | {c['reported']} | {c['wrong']} | {c['harmless']} | {rest} |")
    for wanted in ("missed", "hung", "crashed"):
        if counts[wanted]:
            lines += ["", f"{wanted.capitalize()}:", ""]
            lines += [
                f"- {name}: {site.kind}, {site.what} {detail}".rstrip()
                for name, site, verdict, detail in verdicts
                if verdict == wanted
            ]
    lines += ["", "Harmless, by reason:", ""]
    for _, _, why in REASONS:
        places = [
            f"{name}: {site.kind}, `{site.what}`"
            for name, site, verdict, _ in verdicts
            if verdict == "harmless" and reason(site) == why
        ]
        if places:
            lines += [f"**{why[0].upper()}{why[1:]}** ({len(places)})", "", "; ".join(places), ""]
    return "\n".join(lines) + "\n"
