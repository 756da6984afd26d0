"""Processes that judge programs, of which any may die or hang without the others: what it was at is told, and another takes its place."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

CONTEXT = multiprocessing.get_context("spawn")
LIFE = 200
"""Tasks after which a process makes room for a fresh one, with the memory that libraries of programs took."""


def _serve(pipe: Any, work: Callable[[Any], Any]) -> None:
    warnings.simplefilter("ignore")
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
        self.process = CONTEXT.Process(target=_serve, args=(theirs, work), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, task: Any) -> None:
        self.task, self.since = task, time.monotonic()
        self.pipe.send(task)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


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
                yield worker.task, None, f"no answer in {self.seconds:.0f} s"
                idle.append(self._fresh(worker))

    def _received(self, worker: Worker) -> tuple[Any, str]:
        try:
            result = worker.pipe.recv()
            worker.spoilt = self.spoilt(result)
            return result, ""
        except (EOFError, OSError):
            worker.process.join()
            return None, f"its process died with {worker.process.exitcode}"

    def _fit(self, worker: Worker) -> Worker:
        worker.done += 1
        alive = worker.process.is_alive() and worker.done < LIFE
        return worker if alive and not worker.spoilt else self._fresh(worker)

    def _fresh(self, worker: Worker) -> Worker:
        worker.end()
        self.workers[self.workers.index(worker)] = made = Worker(self.work)
        return made
