"""Buckets of gradients, each of which is sent as soon as its last gradient has arrived.

Every rank sends buckets in the same order, regardless of the order of the gradients, while the
backward pass still works on the layers below. Each stage defines the message. Lesson 09.
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
    """The gradients of a partition during and after a backward pass, summed over a group.

    A stage implements `send` for a full bucket and `receive` for the result. After a backward pass
    outside of `no_sync`, `used` contains the parameters for which any rank had a gradient.
    """

    keep = True  # buffers stay between backward passes
    in_flight: int | None = None  # most messages in progress, or None for no limit

    def __init__(self, partition: Partition, group: Group):
        check_member(group)
        self.partition, self.group = partition, group
        self.buffers: list[Tensor | None] = [
            bucket.buffer() if self.keep else None for bucket in partition.buckets
        ]
        self.sync = True
        self.finished = 0  # backward passes
        self.used: set[nn.Parameter] = set()
        self._came: list[set[Slot]] = [set() for _ in partition.buckets]  # in this backward pass
        self._sent = 0  # buckets, in this backward pass
        self._under_way: deque[tuple[int, Handle]] = deque()
        self._own: set[nn.Parameter] = set()  # parameters with a gradient on this rank
        self._task: int | None = None  # the id of the running backward pass
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
        """Accumulate the gradients of the block's backward passes locally, without sending them."""
        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before

    def forget(self) -> None:
        """Drop all gradients, as an optimizer's zero_grad does."""
        for parameter in self.partition.where:
            parameter.grad = None

    def expect(self, loss: Tensor) -> set[nn.Parameter]:
        """Find the parameters that get a gradient from the backward pass of this loss. Buckets then
        do not wait for other parameters, which would delay all later buckets."""
        there = reached(loss)
        self._expected = [
            sum(slot.parameter in there for slot in bucket.slots)
            for bucket in self.partition.buckets
        ]
        return there

    def waiting(self, what: str) -> AbstractContextManager:
        """Return a context in which a stage can add information to a failed wait."""
        return nullcontext()

    def mark(self) -> list[int]:
        """Return bytes whose maxima over the ranks a stage needs after each backward pass."""
        return []

    def compare(self, most: list[int]) -> None:
        """Receive the maxima of the bytes that `mark` returned on all ranks."""

    def abandon(self) -> None:
        """End a failed backward pass: drop its gradients and wait for its messages."""
        self._task = None
        self._drop()
        if not self.keep:
            self.buffers = [None] * len(self.buffers)

    def remove(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()

    def _arrived(self, i: int, slot: Slot) -> None:
        self._begin()
        if slot in self._came[i]:
            raise RuntimeError(
                f"rank {self.group.rank()}: the gradient of {slot.name} arrived twice in a backward"
            )
        self._came[i].add(slot)
        self._take(i, slot)
        if self.sync:
            self._send_full()

    def _begin(self) -> None:
        """Notice the start of a backward pass, and register a callback for its end."""
        task = torch._C._current_graph_task_id()
        if task == self._task:
            return
        if nested():
            raise RuntimeError(
                f"rank {self.group.rank()}: a backward pass runs inside a second one. Is part of "
                "the model run by a reentrant checkpoint? Use checkpoint(…, use_reentrant=False)"
            )
        self._task = task
        self._drop()  # a failed pass has left its counts
        torch.autograd.Variable._execution_engine.queue_callback(self.finish)

    def _take(self, i: int, slot: Slot) -> None:
        """Copy a gradient into its bucket, and make the parameter's gradient a view of it."""
        check_dense(slot)
        if self.buffers[i] is None:
            self.buffers[i] = self.partition.buckets[i].room()
        view = self.partition.buckets[i].view(self.buffers[i], slot)
        # If the parameter's gradient was this view already, autograd has added to it in place.
        if begins_at(slot.parameter.grad) != begins_at(view):
            view.copy_(slot.parameter.grad)
            slot.parameter.grad = view

    def _send_full(self) -> None:
        """Send the full buckets, up to the first that is not full."""
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
            elif slot.parameter.grad is not None:  # from an earlier backward pass
                self._own.add(slot.parameter)
                self._take(i, slot)
            else:
                if self.buffers[i] is None:
                    self.buffers[i] = self.partition.buckets[i].room()
                self.partition.buckets[i].view(self.buffers[i], slot).zero_()
        while self.in_flight is not None and len(self._under_way) >= self.in_flight:
            self._wait()
        with self.waiting(_sum_of(i)):  # may reveal a neighbour that has gone
            self._under_way.append((i, self.send(i, self.buffers[i])))

    def _wait(self) -> None:
        i, handle = self._under_way.popleft()
        with self.waiting(_sum_of(i)):
            result = handle.wait()
        self.receive(i, result)

    def finish(self) -> None:
        """End a backward pass: send all other buckets, even incomplete ones, and wait for all."""
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
        for _, handle in self._under_way:  # its buffer is in use until then
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
        """Exchange in one small message the parameters that have a gradient on any rank. All other
        parameters keep none, as in one process, so the optimizer skips them."""
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

    The parameter hides this hook from the garbage collector. A strong reference from here would
    therefore keep the group and its connections alive forever.
    """

    def __init__(self, gradients: Gradients, i: int, j: int):
        self.gradients, self.i, self.j = weakref.ref(gradients), i, j

    def __call__(self, parameter: nn.Parameter) -> None:
        gradients = self.gradients()
        if gradients is not None:
            gradients._arrived(self.i, gradients.partition.buckets[self.i].slots[self.j])


def reached(loss: Tensor) -> set[Tensor]:
    """Return the leaves of a loss's graph."""
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
            f"the gradient of {slot.name} is sparse, but a flat bucket has a place for every "
            "element of a parameter: make the layer with sparse=False"
        )


def _sum_of(i: int) -> str:
    return f"the sum of the gradients of bucket {i}"


def nested() -> bool:
    """Return True if a node of a backward pass started the running backward pass."""
    frame, runs = sys._getframe(1), 0
    while frame is not None:
        runs += frame.f_code.co_name == "_engine_run_backward"
        frame = frame.f_back
    # An autograd thread for a GPU has none of the Python frames of its caller.
    own_thread = isinstance(threading.current_thread(), threading._DummyThread)
    return runs > (0 if own_thread else 1)
