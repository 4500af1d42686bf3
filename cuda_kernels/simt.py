"""A scheduler for Numba's CUDA simulator that knows warps, is fast, and finds deadlocks.

The simulator runs one OS thread a CUDA thread and polls them. Here every CUDA thread of a block is a greenlet:
it runs until it waits (for the block, its warp, its warpgroup or a barrier), and whoever completes the set
makes the others ready. The order is fixed, so a run can be repeated. A block in which nobody can go on is
reported with what each thread waits for.

A warp operation is a meeting of all threads of the warp that have not ended: a thread that calls another
operation meanwhile is an error, since on a GPU it would hang or read garbage.
simt_install.py puts it into the simulator.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import greenlet
import numpy as np

WARP = 32
WARPGROUP = 128

Values = dict[int, Any]  # by lane


class SimulationError(RuntimeError):
    """The kernel did what a GPU would not survive; the message says which thread, and what."""


class Meeting:
    """Where the threads of a warp or warpgroup wait for each other."""

    def __init__(self, size: int) -> None:
        self.size = size  # threads that have not ended
        self.operation: str | None = None
        self.resolve: Callable[[Values], Any] | None = None
        self.values: Values = {}
        self.waiting: list[Thread] = []

    def complete(self) -> bool:
        return bool(self.waiting) and len(self.waiting) == self.size


class Thread(greenlet.greenlet):
    """One CUDA thread. Numba's simulator asks it for threadIdx and blockIdx."""

    block: "Block"
    thread_id: int
    threadIdx: Any  # noqa: N815 (CUDA's names)
    blockIdx: Any  # noqa: N815
    warp: Meeting
    warpgroup: Meeting
    result: Any

    def syncthreads(self) -> None:
        """All threads of the block that have not ended."""
        self.block.barrier.append(self)
        self.block.release_barrier()
        self.block.wait()

    def meet(
        self, meeting: Meeting, lane: int, operation: str, value: Any, resolve: Callable[[Values], Any]
    ) -> Any:
        """Waits for the others. The last one computes resolve(values by lane), which gives each lane's
        result as a dict, or one for all."""
        if meeting.operation not in {None, operation}:
            raise SimulationError(f"{operation} where other threads of the set call {meeting.operation}")
        meeting.operation, meeting.resolve = operation, resolve
        meeting.values[lane] = value
        meeting.waiting.append(self)
        self.block.resolve(meeting)
        self.block.wait()
        return self.result

    def syncthreads_count(self, value: Any) -> int:
        """How many threads of the block give a true value."""
        return sum(self._gather(value))

    def syncthreads_and(self, value: Any) -> int:
        """1 if all do."""
        return int(all(self._gather(value)))

    def syncthreads_or(self, value: Any) -> int:
        """1 if any does."""
        return int(any(self._gather(value)))

    def _gather(self, value: Any) -> list[bool]:
        votes = self.block.votes
        votes.append(bool(value))
        self.syncthreads()
        found = list(votes)
        self.syncthreads()
        votes.clear()
        self.syncthreads()
        return found


class Block:
    """Runs the threads of one block; stands in for the simulator's BlockManager."""

    def __init__(self, function: Callable[..., None], grid_dim: Any, block_dim: Any, debug: bool) -> None:
        self._function, self._dim = function, block_dim
        self.hub: Any = None
        self.ready: deque[Thread] = deque()
        self.barrier: list[Thread] = []
        self.votes: list[bool] = []
        self.live = 0
        self.idle = 0  # turns in a row in which polling threads saw nothing change

    def run(self, grid_point: tuple[int, ...], *args: Any) -> None:
        """Until every thread has ended. Raises what a thread raised, with its place, or SimulationError."""
        self.hub = greenlet.getcurrent()
        threads = self._threads(grid_point, args)
        self.ready.extend(threads)
        self.live = len(threads)
        try:
            with np.errstate(all="ignore"):
                while self.ready:
                    self._turn(self.ready.popleft())
            if self.live:
                raise SimulationError(self._deadlock(threads))
        finally:
            for thread in threads:
                if not thread.dead:
                    thread.throw(greenlet.GreenletExit)

    def _threads(self, grid_point: tuple[int, ...], args: tuple[Any, ...]) -> list[Thread]:
        from numba.cuda.simulator.kernelapi import Dim3

        bx, by, bz = self._dim
        count = bx * by * bz
        warps = [Meeting(min(WARP, count - first)) for first in range(0, count, WARP)]
        groups = [Meeting(min(WARPGROUP, count - first)) for first in range(0, count, WARPGROUP)]
        place = Dim3(*grid_point)
        threads = []
        for number in range(count):
            thread = Thread(lambda: self._function(*args))
            thread.block, thread.thread_id, thread.blockIdx = self, number, place
            thread.threadIdx = Dim3(number % bx, number // bx % by, number // (bx * by))
            thread.warp, thread.warpgroup = warps[number // WARP], groups[number // WARPGROUP]
            threads.append(thread)
        return threads

    def _turn(self, thread: Thread) -> None:
        try:
            thread.switch()
        except Exception as error:
            where = f"thread {list(thread.threadIdx)} of block {list(thread.blockIdx)}"
            raise SimulationError(f"{where}: {type(error).__name__}: {error}") from error
        if thread.dead:
            self.live -= 1
            for meeting in (thread.warp, thread.warpgroup):
                meeting.size -= 1
                self.resolve(meeting)
            self.release_barrier()

    def wait(self) -> None:
        """The calling thread stops until it is made ready."""
        self.hub.switch()

    def release_barrier(self) -> None:
        """Everybody goes on once everybody is here."""
        if self.barrier and len(self.barrier) == self.live:
            self.ready.extend(self.barrier)
            self.barrier = []
            self.idle = 0

    def resolve(self, meeting: Meeting) -> None:
        """Ends a meeting that is complete."""
        if not meeting.complete() or meeting.resolve is None:
            return
        results = meeting.resolve(meeting.values)
        size = WARP if meeting is meeting.waiting[0].warp else WARPGROUP
        for thread in meeting.waiting:
            lane = thread.thread_id % size
            thread.result = results[lane] if isinstance(results, dict) else results
        self.ready.extend(meeting.waiting)
        meeting.waiting, meeting.values, meeting.operation = [], {}, None
        self.idle = 0

    def _deadlock(self, threads: list[Thread]) -> str:
        waiting = sorted({thread.warp.operation or "the block" for thread in threads if not thread.dead})
        return f"deadlock: {self.live} of {len(threads)} threads wait for {', '.join(waiting)}"


def current() -> Thread:
    """The CUDA thread that is running."""
    thread = greenlet.getcurrent()
    assert isinstance(thread, Thread), "not in a kernel"
    return thread


def in_warp(operation: str, value: Any, resolve: Callable[[Values], Any]) -> Any:
    """A meeting of the calling thread's warp; lanes are 0 to 31."""
    thread = current()
    return thread.meet(thread.warp, thread.thread_id % WARP, operation, value, resolve)


def in_warpgroup(operation: str, value: Any, resolve: Callable[[Values], Any]) -> Any:
    """A meeting of 128 threads; lanes are 0 to 127."""
    thread = current()
    return thread.meet(thread.warpgroup, thread.thread_id % WARPGROUP, operation, value, resolve)


def poll() -> None:
    """Lets others run while the caller waits in a loop. Raises SimulationError once nothing changes any more."""
    block = current().block
    block.idle += 1
    if block.idle > 64 * (len(block.ready) + 2):
        raise SimulationError("deadlock: only threads that poll a barrier are left")
    block.ready.append(current())
    block.wait()


def progress() -> None:
    """Something changed that a polling thread may be waiting for."""
    current().block.idle = 0
