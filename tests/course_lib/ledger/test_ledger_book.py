"""The book: phases, axes, questions, tables, nesting, and that a ledger leaves no trace."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from course_lib import collectives, ranks
from course_lib.ledger import Record, ledger
from course_lib.ledger.in_flight import Flights
from course_lib.ledger.wire import Flow

FLOAT = 4


class Sum(torch.autograd.Function):
    """An all-reduce forward and another one backward."""

    @staticmethod
    def forward(ctx, x):
        return collectives.all_reduce(x, dist.group.WORLD)

    @staticmethod
    def backward(ctx, gradient):
        return collectives.all_reduce(gradient, dist.group.WORLD)


class Averager:
    """As much of an optimizer as one with its own `step` shows from outside."""

    def __init__(self, parameters):
        self.param_groups = [{"params": list(parameters)}]

    def step(self):
        for parameter in self.param_groups[0]["params"]:
            parameter.data = collectives.all_reduce(parameter.data, dist.group.WORLD)


class Summing(nn.Linear):
    def forward(self, x):
        return Sum.apply(super().forward(x))


def phases(me) -> list[list[str]]:
    world, model = dist.group.WORLD, Summing(3, 3)
    x = torch.ones(3)

    def backward():
        collectives.all_reduce(x, world)

    books = []
    with ledger() as book:
        collectives.all_reduce(x, world)
        loss = model(x).sum()
        loss.backward()
        Averager(model.parameters()).step()
        backward()
    books.append([r.phase for r in book.records])
    with ledger() as book, torch.no_grad():
        model(x)
        with book.phase("step"):
            model(x)
            with book.phase("other"):
                Averager([nn.Parameter(x)]).step()
            collectives.all_reduce(x, world)
        collectives.all_reduce(x, world)
    books.append([r.phase for r in book.records])
    with ledger() as book:
        twice = nn.Sequential(model, model)
        torch.utils.checkpoint.checkpoint(twice, x, use_reentrant=False).sum().backward()
        y = x.clone().requires_grad_()
        dist._functional_collectives.all_reduce(y, "sum", world).sum()
    books.append([r.phase for r in book.records])
    return books


def test_the_phase_is_found_and_a_marked_one_wins(pool):
    for found, marked, recomputed in pool.run(2, phases):
        assert found == ["other", "forward", "backward", "step", "step", "backward"]
        assert marked == ["forward", "step", "other", "step", "other"]
        # Twice forward; backward, the first one forward again, and its backward.
        assert recomputed == ["forward"] * 2 + ["backward"] * 3 + ["forward"]


def labels(me) -> tuple:
    world, x = dist.group.WORLD, torch.ones(6)
    with ledger() as book:
        with collectives.labelled("scalars"):
            handle = collectives.all_reduce(x[:1], world, async_op=True)
            with collectives.labelled("flags"):
                collectives.all_gather(x, world)
        handle.wait()
        collectives.all_reduce(x, world)
        dist.all_reduce(x)
    one, six = 8 * (me.world - 1) / me.world, 48 * (me.world - 1) / me.world
    assert book.bytes(label="scalars") == one and book.bytes(label="") == 2 * six
    assert book.bytes() == one + 24 * (me.world - 1) + 2 * six
    assert book.count("all_reduce", label="") == 2 and book.count(label="flags") == 1
    return tuple(r.label for r in book.records)


def test_a_label_tells_messages_apart(pool):
    assert pool.run(2, labels) == [("scalars", "flags", "", "")] * 2


def axes(me) -> dict:
    mesh = ranks.mesh(me, dp=2, tp=2)
    pair = ranks.new_group(me, [0, 3])
    again = ranks.new_group(me, [0, 2]), ranks.new_group(me, [1, 3])
    x = torch.ones(8)
    found = {}
    named = {"plain": {}, "mesh": {"mesh": mesh}, "axes": {"axes": {"mp": mesh.get_group("tp")}}}
    for name, options in named.items():
        with ledger(**options) as book:
            collectives.all_reduce(x, mesh.get_group("tp"))
            collectives.all_reduce(x, mesh.get_group("dp"))
            collectives.all_reduce(x, dist.group.WORLD)
            collectives.all_reduce(x, again[me.rank % 2])
            if me.rank in (0, 3):
                collectives.all_reduce(x, pair)
        found[name] = [r.axis for r in book.records]
        found[name, "must"] = [r.must for r in book.records]
    with ledger(mesh=mesh) as book:
        collectives.all_reduce(x, mesh.get_group("tp"))
    found["counts"] = [book.count(axis=a) for a in ("tp", "dp", "world", "ranks 7")]
    return found


def test_a_group_goes_by_the_name_of_its_axis_or_by_its_ranks(pool):
    for rank, found in enumerate(pool.run(4, axes)):
        tp = "ranks 0,1" if rank < 2 else "ranks 2,3"
        dp = "ranks 0,2" if rank % 2 == 0 else "ranks 1,3"
        pair = ["ranks 0,3"] if rank in (0, 3) else []
        assert found["plain"] == [tp, dp, "world", dp, *pair]
        assert found["mesh"] == ["tp", "dp", "world", "dp", *pair]
        assert found["axes"] == ["mp", dp, "world", dp, *pair]
        assert found["mesh", "must"] == [32, 32, 48, 32, 32][: 4 + len(pair)]
        assert found["counts"] == [1, 0, 0, 0]


def questions(me) -> None:
    world, x = dist.group.WORLD, torch.ones(10)
    with ledger() as book:
        for _ in range(3):
            collectives.all_reduce(x, world)
        with book.phase("step"):
            collectives.broadcast(x, world)
        assert book.count() == 4, "a book can be read while it is open"
        collectives.all_gather(x, world)
    assert book.count("all_reduce") == book.count(op="all_reduce", axis="world") == 3
    assert book.count("all_reduce", phase="step") == 0
    assert book.bytes("all_reduce", column="payload") == 3 * 10 * FLOAT
    # 3 x 2 (n-1)/n x 40 bytes is whole, though a third of it is not.
    assert book.bytes("all_reduce", column="must") == 6 * (me.world - 1) * 40 / me.world
    assert isinstance(book.bytes("all_reduce", column="must"), int)
    assert book.bytes("all_gather") == (me.world - 1) * 40, "must is the default column"
    assert book.bytes(column="moved") == sum(r.moved for r in book.records)
    assert book.bytes("all_gather", column="moved") == book.records[-1].moved > 0
    for wrong, message in (
        ({"op": "allreduce"}, "op='allreduce' is not in a ledger; choose from all_reduce, "),
        ({"axis": "tp"}, "axis='tp' is not in a ledger; choose from world"),
        ({"phase": "fwd"}, "phase='fwd' .* forward, backward, step, other"),
        ({"column": "sent"}, "column='sent' .* payload, must, moved"),
    ):
        with pytest.raises(ValueError, match=message):
            book.bytes(**wrong)
    with pytest.raises(ValueError, match="phase='optimizer'"), book.phase("optimizer"):
        pass


def test_questions_are_answered_exactly_and_unknown_names_refused(pool):
    pool.run(3, questions)


def tables(me) -> tuple[str, str, str]:
    world, x = dist.group.WORLD, torch.ones(10)
    with ledger() as book:
        for _ in range(2):
            collectives.all_reduce(x, world)
    with ledger() as empty:
        pass
    return str(book.table(moved=False)), repr(book), str(empty.table())


def test_a_table_and_what_the_lessons_tables_leave_out(pool):
    for text, with_moved, empty in pool.run(3, tables):
        heads, rule, row, _, total = text.splitlines()
        assert heads.split() == ["op", "axis", "phase", "count", "payload", "must", "call", "site"]
        assert row.split()[:6] == ["all_reduce", "world", "other", "2", "80", "106.7"]
        assert total.split() == ["total", "2", "80", "106.7"] and set(rule) == {"-"}
        assert "moved" in with_moved
        assert empty == "no collective was recorded"


def flights(me) -> None:
    world, x, word = dist.group.WORLD, torch.ones(1 << 18), torch.ones(1)
    with ledger() as book:
        if me.rank == 0:
            handle = collectives.all_reduce(x, world, async_op=True)
            assert book.records[0].end is None
            # Rank 1 joins in only when it hears this: a call that waited would never get here.
            collectives.send(word, world, dst=1)
        else:
            collectives.recv((1,), world, src=0)
            time.sleep(0.3)
            handle = collectives.all_reduce(x, world, async_op=True)
        resumed = time.perf_counter()
        handle.wait()
        collectives.all_reduce(x, world)
        # Two at once: what was sent meanwhile is shared out, and the sum stays exact.
        both = [collectives.all_reduce(x, world, async_op=True) for _ in range(2)]
        for one in both:
            one.wait()
        dist.send(x, 1) if me.rank == 0 else dist.recv(x, 0)
    under_way, alone, *_ = [span for span in book.spans() if span.op == "all_reduce"]
    message = book.spans()[-1]
    assert under_way.asynchronous and not alone.asynchronous and not message.asynchronous
    assert message.end > message.start
    if me.rank == 0:
        assert under_way.end - under_way.start > 0.3, "it was under way until rank 1 came"
        ((begun, ended),) = under_way.waits
        assert begun >= resumed
        assert ended >= under_way.end > begun
    first, second, *both = [r for r in book.records if r.op == "all_reduce"]
    assert sum(r.moved for r in book.records) == book.bytes(column="moved")
    assert first.moved == pytest.approx(first.must, rel=0.005)
    assert second.moved == pytest.approx(second.must, rel=0.005)
    assert sum(r.moved for r in both) == pytest.approx(2 * first.must, rel=0.005)


def test_a_span_lasts_as_long_as_the_call_is_under_way(pool):
    pool.run(2, flights)


class Work:
    """A backend's work whose thread has something else to do before it tells the ledger."""

    def __init__(self) -> None:
        self.future = torch.futures.Future()
        self.future.add_done_callback(lambda _: time.sleep(0.2))

    def get_future(self) -> torch.futures.Future:
        return self.future


@pytest.mark.cpu("no tensor is made")
def test_the_end_is_known_even_if_its_thread_was_slow_to_tell():
    record = Record("all_reduce", "world", 2, "backward", 1, "float32", 4, 4, "a:1", "DDP", 0.0)
    flights, work = Flights(Flow()), Work()
    flights.follow(flights.depart(record, True, False), work, None)
    backend = threading.Thread(target=work.future.set_result, args=(None,))
    backend.start()
    work.future.wait()  # as DDP's reducer does: it goes on before everybody has been told
    assert record.end is None
    flights.refresh(wait=False)
    assert record.end is not None
    backend.join()


def no_trace(me) -> None:
    world, x = dist.group.WORLD, torch.ones(12)
    wait = dist.Work.wait
    books = []

    def fails() -> None:
        with ledger() as outer, ledger() as inner:
            collectives.all_reduce(x, world)
            assert dist.Work.wait is not wait
            with ledger() as innermost:
                collectives.barrier(world)
            books.extend((outer, inner, innermost))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert [book.count() for book in books] == [2, 2, 1]
    assert _get_current_dispatch_mode_stack() == []
    assert dist.Work.wait is wait
    collectives.all_reduce(x, world)
    assert books[0].count() == 2

    # A call that torch refuses was no collective.
    with ledger() as book, pytest.raises(RuntimeError):
        dist.all_gather([torch.empty(1), torch.empty(2)], torch.empty(me.rank + 1))
    assert book.count() == 0

    # No buffer outlives its handle, in the ledger or behind it.
    with ledger() as book:
        given = torch.ones(12)
        seen = weakref.ref(given.untyped_storage())
        work = dist.all_reduce(given, async_op=True)
        work.wait()
        del given, work
        gc.collect()
        # The backend's thread lets go of a work a moment after it has told that it is complete.
        patience = time.monotonic() + 2.0
        while seen() is not None and time.monotonic() < patience:
            time.sleep(0.001)
        assert seen() is None


def test_a_ledger_leaves_nothing_behind_and_holds_nothing(pool):
    pool.run(2, no_trace)


def training(me) -> None:
    found = []
    for watch in (contextlib.nullcontext(), ledger()):
        torch.manual_seed(3)
        model = nn.Sequential(Summing(5, 5), nn.Dropout(), Summing(5, 5))
        model = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        torch.manual_seed(4 + me.rank)
        with watch:
            for _ in range(3):
                model(torch.randn(7, 5)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        found.append([parameter.detach() for parameter in model.parameters()])
    assert all(map(torch.equal, *found))


def test_a_ledger_changes_no_bit_of_a_training_run(pool):
    pool.run(2, training)


@pytest.mark.cpu("no tensor is made")
def test_what_is_no_group_is_refused_as_an_axis():
    refusal = pytest.raises(TypeError, match=r"axes\['tp'\] must be a group of ranks")
    with refusal, ledger(axes={"tp": 3}):
        pass
    assert _get_current_dispatch_mode_stack() == []
