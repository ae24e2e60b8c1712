"""Gradients go into their bucket as they come, and a bucket that is full is sent at once.

Buckets leave in one order on every rank, whatever order the gradients came in, and while the
backward still works on the layers below. What is sent, each stage says. Lesson 09 derives it.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

import torch
from torch import Tensor, nn

from course_lib.collectives import all_reduce
from course_lib.collectives.call import Group, check_member, labelled
from course_lib.collectives.transport import Handle
from course_lib.meta import begins_at, readable
from course_lib.zero.partition import Partition, Slot


class Gradients:
    """The gradients of a partition during and after a backward, summed over a group.

    A stage is a way of `send`-ing a full bucket and of `receive`-ing the answer. After a backward
    that was not under `no_sync`, `used` holds the parameters that any rank had a gradient for.
    """

    keep = True  # buffers live on between backwards
    in_flight: int | None = None  # how many sendings may be under way; None: all

    def __init__(self, partition: Partition, group: Group):
        check_member(group)
        self.partition, self.group = partition, group
        self.buffers: list[Tensor | None] = [
            bucket.buffer() if self.keep else None for bucket in partition.buckets
        ]
        self.sync = True
        self.finished = 0  # backwards
        self.used: set[nn.Parameter] = set()
        self._came: list[set[Slot]] = [set() for _ in partition.buckets]  # in this backward
        self._sent = 0  # buckets, in this backward
        self._under_way: deque[tuple[int, Handle]] = deque()
        self._own: set[nn.Parameter] = set()  # what this rank has a gradient for
        self._task: int | None = None  # which backward is running
        self._hooks = [
            slot.parameter.register_post_accumulate_grad_hook(Arrival(self, i, j))
            for i, bucket in enumerate(partition.buckets)
            for j, slot in enumerate(bucket.slots)
            if slot.parameter.requires_grad
        ]
        self._trained = [
            sum(slot.parameter.requires_grad for slot in bucket.slots)
            for bucket in partition.buckets
        ]
        self._expected = self._trained

    def send(self, i: int, buffer: Tensor) -> Handle:
        raise NotImplementedError

    def receive(self, i: int, result: Tensor) -> None:
        raise NotImplementedError

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards in here add up on this rank and send nothing, whatever ends the block."""
        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before

    def forget(self) -> None:
        """No gradients any more, as after an optimizer's zero_grad."""
        for parameter in self.partition.where:
            parameter.grad = None

    def expect(self, loss: Tensor) -> set[nn.Parameter]:
        """Look which parameters the backward of this loss will bring a gradient for: buckets then
        wait for no others, which would hold up all buckets behind theirs."""
        there = reached(loss)
        self._expected = [
            sum(slot.parameter in there for slot in bucket.slots)
            for bucket in self.partition.buckets
        ]
        return there

    def waiting(self, what: str) -> AbstractContextManager:
        """Where a wait in here fails, a stage may know more to say."""
        return nullcontext()

    def mark(self) -> list[int]:
        """Bytes of which a stage wants to know the maxima over the ranks, after each backward."""
        return []

    def compare(self, most: list[int]) -> None:
        """Here they are."""

    def abandon(self) -> None:
        """A backward broke off: nothing of it counts, and what it has sent is awaited."""
        self._task = None
        self._drop()
        if not self.keep:
            self.buffers = [None] * len(self.buffers)

    def remove(self) -> None:
        """Take the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()

    def _arrived(self, i: int, slot: Slot) -> None:
        self._begin()
        if slot in self._came[i]:
            raise RuntimeError(
                f"rank {self.group.rank()}: the gradient of {slot.name} came twice in one backward"
            )
        self._came[i].add(slot)
        self._take(i, slot)
        if self.sync:
            self._send_full()

    def _begin(self) -> None:
        """Notice that a backward has begun, and see to it that its end is noticed."""
        task = torch._C._current_graph_task_id()
        if task == self._task:
            return
        if nested():
            raise RuntimeError(
                f"rank {self.group.rank()}: a backward runs inside another one. Is part of the "
                "model run by a reentrant checkpoint? Use checkpoint(…, use_reentrant=False)"
            )
        self._task = task
        self._drop()  # one that broke off has left its counts behind
        torch.autograd.Variable._execution_engine.queue_callback(self.finish)

    def _take(self, i: int, slot: Slot) -> None:
        """Bring a gradient into its bucket, and let the parameter show that place."""
        check_dense(slot)
        if self.buffers[i] is None:
            self.buffers[i] = self.partition.buckets[i].room()
        view = self.partition.buckets[i].view(self.buffers[i], slot)
        # Where the parameter showed this place already, autograd has added to it there.
        if begins_at(slot.parameter.grad) != begins_at(view):
            view.copy_(slot.parameter.grad)
            slot.parameter.grad = view

    def _send_full(self) -> None:
        """Send the buckets that are full, up to the first that is not."""
        buckets = self.partition.buckets
        while self._sent < len(buckets):
            if len(self._came[self._sent]) < self._expected[self._sent]:
                return
            self._send_next()

    def _send_next(self) -> None:
        i = self._sent
        self._sent += 1
        if not self._trained[i]:  # all frozen
            return
        for slot in self.partition.buckets[i].slots:
            if slot in self._came[i]:
                self._own.add(slot.parameter)
            elif slot.parameter.grad is not None:  # of a backward before this one
                self._own.add(slot.parameter)
                self._take(i, slot)
            else:
                if self.buffers[i] is None:
                    self.buffers[i] = self.partition.buckets[i].room()
                self.partition.buckets[i].view(self.buffers[i], slot).zero_()
        while self.in_flight is not None and len(self._under_way) >= self.in_flight:
            self._wait()
        with self.waiting(_sum_of(i)):  # a neighbour that is gone may show itself here
            self._under_way.append((i, self.send(i, self.buffers[i])))

    def _wait(self) -> None:
        i, handle = self._under_way.popleft()
        with self.waiting(_sum_of(i)):
            result = handle.wait()
        self.receive(i, result)

    def finish(self) -> None:
        """The end of a backward: what no gradient came for is sent as well, and all is awaited."""
        if self.sync:
            while self._sent < len(self.partition.buckets):
                self._send_next()
            while self._under_way:
                self._wait()
            self._agree()
        self._task = None
        self.finished += 1
        self._clear()

    def _drop(self) -> None:
        for _, handle in self._under_way:  # its buffer is not free before
            with suppress(RuntimeError):
                handle.wait()
        self._clear()

    def _clear(self) -> None:
        self._sent = 0
        self._under_way.clear()
        self._own.clear()
        for came in self._came:
            came.clear()

    def _agree(self) -> None:
        """One small message says which parameters any rank has a gradient for: the others keep
        none at all, as in one process, where an optimizer then leaves them alone."""
        every = list(self.partition.where)
        if every:
            own = [p in self._own for p in every]
            device = readable(every[0].device)
            own = torch.tensor([*own, *self.mark()], dtype=torch.uint8, device=device)
            with self.waiting("the end of a backward"), labelled("scalars"):
                flags = all_reduce(own, self.group, "max", donated=True).tolist()
            self.used = {p for p, flag in zip(every, flags, strict=False) if flag}
            self.compare(flags[len(every) :])


class Arrival:
    """The hook of a parameter's gradient.

    The parameter holds it where no garbage collector looks: what it held in turn would live for
    ever, with the group and its connections.
    """

    def __init__(self, gradients: Gradients, i: int, j: int):
        self.gradients, self.i, self.j = weakref.ref(gradients), i, j

    def __call__(self, parameter: nn.Parameter) -> None:
        gradients = self.gradients()
        if gradients is not None:
            gradients._arrived(self.i, gradients.partition.buckets[self.i].slots[self.j])


def reached(loss: Tensor) -> set[Tensor]:
    """The leaves of a loss's graph."""
    leaves: set[Tensor] = set()
    seen, todo = {None}, [loss.grad_fn]
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += [before for before, _ in node.next_functions]
            if hasattr(node, "variable"):
                leaves.add(node.variable)
    return leaves


def check_dense(slot: Slot) -> None:
    if slot.parameter.grad.layout != torch.strided:
        raise RuntimeError(
            f"the gradient of {slot.name} is sparse, and a flat bucket has a place for every "
            "element of a parameter: make the layer with sparse=False"
        )


def _sum_of(i: int) -> str:
    return f"the sum of the gradients of bucket {i}"


def nested() -> bool:
    """Whether the backward that runs was begun by another one's node."""
    frame, runs = sys._getframe(1), 0
    while frame is not None:
        runs += frame.f_code.co_name == "_engine_run_backward"
        frame = frame.f_back
    # A thread of autograd's own, for a GPU, has none of the frames of the one who asked for it.
    own_thread = isinstance(threading.current_thread(), threading._DummyThread)
    return runs > (0 if own_thread else 1)
