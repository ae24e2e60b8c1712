"""The ledger, which watches this rank's torch operations and books the collectives.

A torch dispatch mode sees all of them, from any issuer, including the backward pass. A verb of the
course is booked instead of its operations. Lesson 01 opens the first ledger.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from course_lib.collectives import Verb, current
from course_lib.ledger import calls, origin
from course_lib.ledger.book import Book, Record
from course_lib.ledger.forms import must
from course_lib.ledger.in_flight import DeviceTimes, Flights, Landing
from course_lib.ledger.torch_calls import OPERATIONS, LightMode, handle, listening
from course_lib.ledger.wire import Flow

Operation = torch._ops.OpOverload


@contextmanager
def ledger(
    mesh: DeviceMesh | None = None, *, axes: Mapping[str, dist.ProcessGroup] | None = None
) -> Iterator[Book]:
    """Book every collective that this rank issues in the body, from any code.

    `mesh` names the groups of its axes, and `axes` names single groups; other groups are named by
    their ranks. Ledgers may be nested, and each books everything. A ledger follows the thread that
    opens it and autograd's threads, but no other threads.
    """
    flow = Flow()
    flights = Flights(flow)
    book = Book(_axes(mesh, axes), flow, flights.refresh)
    try:
        with listening(flights), LedgerRecorder(book, flights):
            yield book
    finally:
        book.open = False
        flights.close()


class LedgerRecorder(LightMode):
    """A mode that sees each torch operation before it runs, and leaves it unchanged."""

    supports_higher_order_operators = True  # they pass, like all operations except collectives

    def __init__(self, book: Book, flights: Flights) -> None:
        super().__init__()
        self._book = book
        self._flights = flights
        self._opener = threading.get_ident()
        self._roads: dict[object, Callable] = {}
        self._of_verb: dict[Verb, Record] = {}
        self._groups_seen: set[str] = set()
        self._functional: list[Landing] | None = None

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # compiled code runs as it would without a ledger

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(_is_distributed(kind) for kind in types):
            # A DTensor handles the call first. It decomposes it into plain tensors and collectives,
            # which are dispatched here again.
            return NotImplemented
        road = self._roads.get(func)
        if road is None:
            road = self._roads[func] = self._road(func)
        return road(func, args, kwargs or {})

    def _road(self, func: object) -> Callable:
        name = func._schema.name if isinstance(func, Operation) else ""
        if name.startswith("c10d::") and name in OPERATIONS:
            return self._collective
        if name == "_c10d_functional::wait_tensor":
            return self._wait_tensor
        if name in calls.NO_COLLECTIVES or not name.startswith(calls.FUNCTIONAL):
            return lambda func, args, kwargs: func(*args, **kwargs)
        return self._functional_collective

    def _collective(self, func: Operation, args: tuple, kwargs: dict):
        call, verb = calls.read(func, args, kwargs), current.get()
        backend = calls.backend_of(call.group, call.device)
        record = self._of_verb.get(verb) if verb is not None else None
        if new := record is None:
            record = self._record(call, verb)
        new_group = call.group.group_name not in self._groups_seen
        self._groups_seen.add(call.group.group_name)
        on_device = DeviceTimes(record, call.device) if backend == "nccl" else None
        landing = self._flights.depart(record, backend == "gloo", new_group)
        if new:
            self._book.records.append(record)
            record.start = perf_counter()
        try:
            result = func(*args, **kwargs)
        except BaseException:
            # This rank refused the call, so nothing has begun.
            self._flights.land(landing)
            if new:
                self._book.records.remove(record)
            raise
        if verb is not None:
            self._of_verb[verb] = record
        if self._functional is not None:
            self._functional.append(landing)
        self._flights.follow(landing, handle(result), on_device)
        return result

    def _functional_collective(self, func: Operation, args: tuple, kwargs: dict):
        tensor = next(iter(calls.tensors_in([*args, *kwargs.values()])), None)
        key = getattr(torch._C.DispatchKey, tensor.device.type.upper(), None)
        if key is None:  # a device without memory, such as meta
            return func(*args, **kwargs)
        # Its body issues the real collective. This mode is off while it handles an operation, so it
        # is turned on again for the body, which is redispatched directly so that it does not return
        # here. Outer ledgers see only the body, so they must learn which operation it belongs to.
        watches = [
            self,
            *(m for m in _get_current_dispatch_mode_stack() if type(m) is LedgerRecorder),
        ]
        outer = [watch._functional for watch in watches]
        for watch in watches:
            watch._functional = []
        try:
            with self:
                result = func.redispatch(torch._C.DispatchKeySet(key), *args, **kwargs)
            for watch in watches:
                for landing in watch._functional:
                    watch._flights.returned(landing, calls.tensors_in(result))
        finally:
            for watch, before in zip(watches, outer, strict=True):
                watch._functional = before
        return result

    def _wait_tensor(self, func: Operation, args: tuple, kwargs: dict):
        start = perf_counter()
        result = func(*args, **kwargs)
        self._flights.waited_for_tensor(args[0] if args else kwargs["tensor"], start)
        return result

    def _record(self, call: calls.Call, verb: Verb | None) -> Record:
        """Return the call's record, or the record of the verb to which the operation belongs."""
        if verb is not None:
            n, rank = verb.group.size(), verb.group.rank()
            own = verb.sizes[rank] if verb.sizes is not None else 0
            least = must(verb.op, n, rank, verb.payload, own, verb.root or 0)
            dtype = "" if verb.op == "barrier" else call.dtype
            whole = {"elements": verb.elements, "payload": verb.payload, "must": least}
            call = replace(call, op=verb.op, group=verb.group, dtype=dtype, **whole)
        functional = self._functional is not None
        site, phase, issuer = origin.find(call.wants_gradient, functional, self._opener)
        return Record(
            op=call.op,
            axis=self._book.axis_of(call.group),
            ranks=call.group.size(),
            phase=self._book.marked_phase or phase,
            elements=call.elements,
            dtype=call.dtype,
            payload=call.payload,
            must=call.must,
            site=site,
            issued_by=issuer,
            start=perf_counter(),
            label="" if verb is None else verb.label,
        )


def _is_distributed(kind: type) -> bool:
    """Return True for a class of tensors from torch.distributed, or derived from such a class."""
    return any(base.__module__.startswith("torch.distributed.") for base in kind.__mro__)


def _axes(
    mesh: DeviceMesh | None, axes: Mapping[str, dist.ProcessGroup] | None
) -> dict[str, dist.ProcessGroup]:
    named = dict(axes or {})
    if mesh is not None:
        if mesh.mesh_dim_names is None:
            raise ValueError(
                "the mesh has no names for its axes; build it with mesh_dim_names=, "
                "or name the groups with axes="
            )
        named.update({name: mesh.get_group(name) for name in mesh.mesh_dim_names})
    for name, group in named.items():
        if not isinstance(group, dist.ProcessGroup):
            raise TypeError(f"axes[{name!r}] must be a group of ranks, not {group!r}")
    return named
