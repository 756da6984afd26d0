"""Processes that judge programs, of which any may die or hang without the others: what it was at is told, and another takes its place."""

from __future__ import annotations

import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

CONTEXT = multiprocessing.get_context("spawn")
LIFE = 200
"""Tasks after which a process makes room for a fresh one, with the memory that libraries of programs took."""


TOLD = 400
"""Characters of what a process said last that a reason ends with."""


def _serve(pipe: Any, work: Callable[[Any], Any], said: str) -> None:
    """Do tasks; what goes wrong, in Python or below, and where it was when asked by a signal, stands in the file `said`."""
    warnings.simplefilter("ignore")
    os.dup2(os.open(said, os.O_WRONLY | os.O_APPEND), 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with open(os.devnull, "w") as sys.stdout:  # what programs print
        while True:
            try:
                task = pipe.recv()
            except EOFError:
                return
            pipe.send(work(task))


class Worker:
    """One process, and what it is at."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self.work, self.task, self.since, self.done, self.spoilt = work, None, 0.0, 0, False
        self.pipe, theirs = CONTEXT.Pipe()
        file, self.said = tempfile.mkstemp(prefix="worker-")
        os.close(file)
        self.process = CONTEXT.Process(target=_serve, args=(theirs, work, self.said), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, task: Any) -> None:
        self.task, self.since = task, time.monotonic()
        os.truncate(self.said, 0)
        self.pipe.send(task)

    def where(self) -> str:
        """Where a process is that does not answer."""
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, signal.SIGUSR1)
            time.sleep(0.2)
        return self.last_words()

    def last_words(self) -> str:
        """The end of what the process has said, of calls the innermost ones."""
        with open(self.said, errors="replace") as file:
            lines = [line for line in map(str.strip, file) if line]
        calls = [number for number, line in enumerate(lines) if "most recent call first" in line]
        text = " | ".join(lines[calls[-1] :] if calls else lines)
        return ": " + (text[:TOLD] if calls else text[-TOLD:]) if text else ""

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()
        os.unlink(self.said)


class Workers:
    """As many processes as are wanted.

    Parameters
    ----------
    work : a function of a module, which a task is given to.
    count : processes.
    seconds : that a task may take.
    spoilt : whether a result says that its process is of no more use.
    """

    def __init__(
        self,
        work: Callable[[Any], Any],
        count: int,
        seconds: float,
        spoilt: Callable[[Any], bool] = lambda result: False,
    ) -> None:
        self.work, self.seconds, self.spoilt = work, seconds, spoilt
        self.workers = [Worker(work) for _ in range(count)]

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.end()

    def ask(self, task: Any) -> tuple[Any, str]:
        """One result, or None and how its process came to its end."""
        return next(iter(self.results([task])))[1:]

    def results(
        self, tasks: Iterable[Any], until: float = float("inf"), over: float = float("inf")
    ) -> Iterator[tuple[Any, Any, str]]:
        """Each task with its result, in the order in which they are done; None and a reason where the process died or was too slow.

        Tasks are asked for when there is a process for them.  None is begun after `until`, and none waited for after `over`.
        """
        waiting, running = iter(tasks), list[Worker]()
        idle = list(self.workers)
        while time.monotonic() < over:
            while idle and time.monotonic() < until and (task := next(waiting, None)) is not None:
                worker = idle.pop()
                worker.begin(task)
                running.append(worker)
            if not running:
                return
            for pipe in multiprocessing.connection.wait([worker.pipe for worker in running], 1.0):
                worker = next(one for one in running if one.pipe is pipe)
                running.remove(worker)
                yield worker.task, *self._received(worker)
                idle.append(self._fit(worker))
            for worker in [one for one in running if time.monotonic() - one.since > self.seconds]:
                running.remove(worker)
                yield worker.task, None, f"no answer in {self.seconds:.0f} s{worker.where()}"
                idle.append(self._fresh(worker))

    def _received(self, worker: Worker) -> tuple[Any, str]:
        try:
            result = worker.pipe.recv()
            worker.spoilt = self.spoilt(result)
            return result, ""
        except (EOFError, OSError):
            worker.process.join()
            return None, f"its process died with {worker.process.exitcode}{worker.last_words()}"

    def _fit(self, worker: Worker) -> Worker:
        worker.done += 1
        alive = worker.process.is_alive() and worker.done < LIFE
        return worker if alive and not worker.spoilt else self._fresh(worker)

    def _fresh(self, worker: Worker) -> Worker:
        worker.end()
        self.workers[self.workers.index(worker)] = made = Worker(self.work)
        return made
