"""Every verb, even and uneven, at worlds 2, 3 and 4: payload and must exact, moved within 0.5 %."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course_lib import collectives
from course_lib.ledger import ledger

FLOAT = 4
LISTS = torch.__version__ >= "2.13"  # since when gloo takes lists in all_to_all
HEADERS = 2048  # bytes: gloo's own, in a call that has nothing, or little, to send


def columns(book) -> tuple:
    record = book.records[-1]
    assert (record.elements * FLOAT, record.must) == (record.payload, book.bytes(column="must"))
    return record.op, book.count(), record.payload, record.must, record.moved


def run_verbs(me, rows: int) -> dict[str, tuple]:
    """Each verb once, in a ledger of its own; `rows` of 64 floats to each rank on average."""
    world, n, rank = dist.group.WORLD, me.world, me.rank
    whole = torch.randn(n * rows, 64)
    uneven = [rows + (r - n // 2) * 8 for r in range(n)]
    own_uneven = torch.randn(uneven[rank], 64)
    of_uneven = torch.randn(sum(uneven), 64)
    root = n - 1
    calls = {
        "all_reduce": lambda: collectives.all_reduce(whole, world),
        "all_reduce max, async": lambda: collectives.all_reduce(
            whole, world, "max", async_op=True
        ).wait(),
        "all_gather": lambda: collectives.all_gather(whole, world),
        "all_gather uneven": lambda: collectives.all_gather(own_uneven, world, sizes=uneven),
        "reduce_scatter": lambda: collectives.reduce_scatter(whole, world),
        "reduce_scatter uneven": lambda: collectives.reduce_scatter(of_uneven, world, sizes=uneven),
        "broadcast": lambda: collectives.broadcast(whole, world, src=root),
        "scatter": lambda: collectives.scatter(
            whole if rank == root else None, world, src=root, like=whole
        ),
        "scatter uneven": lambda: collectives.scatter(
            of_uneven if rank == 0 else None, world, sizes=uneven, like=of_uneven
        ),
        "gather": lambda: collectives.gather(whole, world, dst=root),
        "gather uneven": lambda: collectives.gather(own_uneven, world, sizes=uneven),
        "all_to_all": lambda: collectives.all_to_all(list(whole.chunk(n)), world),
        "all_to_all uneven": lambda: collectives.all_to_all(
            list(of_uneven.split(uneven)), world, like=[own_uneven] * n
        ),
        "barrier": lambda: collectives.barrier(world),
    }
    if rank == 0:
        calls["message"] = lambda: collectives.send(whole, world, dst=1)
    if rank == 1:
        calls["message"] = lambda: collectives.recv(whole.shape, world, src=0)
    found = {}
    for name, call in calls.items():
        with ledger() as book:
            call()
        found[name] = columns(book)
    return found


def expected(n: int, rank: int, rows: int) -> dict[str, tuple[str, int, float]]:
    """The closed forms once more, written out for these calls: op, payload, must."""
    row = 64 * FLOAT
    uneven = [(rows + (r - n // 2) * 8) * row for r in range(n)]
    own, every, whole = uneven[rank], sum(uneven), n * rows * row
    last = rank == n - 1
    table = {
        "all_reduce": ("all_reduce", whole, 2 * (n - 1) * rows * row),
        "all_reduce max, async": ("all_reduce", whole, 2 * (n - 1) * rows * row),
        "all_gather": ("all_gather", whole, (n - 1) * whole),
        "all_gather uneven": ("all_gather", own, (n - 1) * own),
        "reduce_scatter": ("reduce_scatter", whole, (n - 1) * rows * row),
        "reduce_scatter uneven": ("reduce_scatter", every, every - own),
        "broadcast": ("broadcast", whole, 0 if rank == n - 2 else whole),
        "scatter": ("scatter", whole if last else 0, (n - 1) * rows * row if last else 0),
        "scatter uneven": ("scatter", *((every, every - own) if rank == 0 else (0, 0))),
        "gather": ("gather", whole, 0 if last else whole),
        "gather uneven": ("gather", own, 0 if rank == 0 else own),
        "all_to_all": ("all_to_all", whole, (n - 1) * rows * row),
        "all_to_all uneven": ("all_to_all", every, every - own),
        "barrier": ("barrier", 0, 0),
    }
    if rank == 0:
        table["message"] = ("send", whole, whole)
    if rank == 1:
        table["message"] = ("recv", 0, 0)
    return table


@pytest.mark.parametrize("world", [2, 3, 4])
def test_every_verb_is_booked_once_with_its_closed_form_and_moves_no_more(pool, world):
    rows = 4096 // world  # a megabyte in all
    for rank, found in enumerate(pool.run(world, run_verbs, rows)):
        for name, (op, payload, must) in expected(world, rank, rows).items():
            assert found[name][:4] == (op, 1, payload, must), (name, rank)
            moved = found[name][4]
            if name == "broadcast" and torch.cuda.is_available():
                continue  # gloo's own, from the host's copies, along another road than ours
            assert must <= moved <= must * 1.005 + HEADERS, (name, rank, must, moved)


def raw_calls(me) -> list[tuple]:
    """torch.distributed's own calls, in forms that a ledger has to read differently."""
    n, rank = me.world, me.rank
    x, found = torch.ones(n * 6, 5), []
    right, left = (rank + 1) % n, (rank - 1) % n

    def batch():
        ops = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, torch.empty_like(x), left)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    def coalesced():
        with dist._coalescing_manager(async_ops=True) as works:
            dist.all_reduce(x.clone())
            dist.all_reduce(x.clone()[:n])
        works.wait()

    def split_unevenly():
        rows = [6 + (r - rank) for r in range(n)]  # what goes to rank r
        back = [6 - (r - rank) for r in range(n)]
        out = torch.empty(sum(back), 5)
        dist.all_to_all_single(out, torch.ones(sum(rows), 5), back, rows)

    lists = [torch.empty(6, 5) for _ in range(n)]
    calls = [
        lambda: dist.all_reduce(x.clone()),
        lambda: dist.all_reduce(x.clone(), async_op=True).wait(),
        coalesced,
        lambda: dist.all_gather([torch.empty_like(x) for _ in range(n)], x),
        lambda: dist.reduce_scatter(torch.empty(6, 5), list(x.chunk(n))),
        lambda: dist.all_to_all_single(torch.empty_like(x), x),
        split_unevenly,
        *([lambda: dist.all_to_all(lists, list(x.chunk(n)))] if LISTS else []),
        lambda: dist.broadcast(x.clone(), n - 1),
        lambda: dist.reduce(x.clone(), 0),
        lambda: dist.gather(x, [torch.empty_like(x) for _ in range(n)] if rank == 0 else None),
        lambda: dist.scatter(torch.empty(6, 5), list(x.chunk(n)) if rank == 0 else None),
        batch,
        lambda: dist.barrier(),
        lambda: dist.all_gather_object([None] * n, {"rank": rank}),
    ]
    for call in calls:
        with ledger() as book:
            call()
        found.append([(r.op, r.payload, r.must, r.dtype) for r in book.records])
    return found


@pytest.mark.cpu("gloo has no coalesced all-reduce of a GPU's tensors")
@pytest.mark.parametrize("world", [2, 3])
def test_raw_calls_are_read_whatever_their_form(pool, world):
    n, b = world, world * 6 * 5 * FLOAT
    own = b // n
    for rank, found in enumerate(pool.run(world, raw_calls)):
        (*plain, both, meeting, objects) = found
        coalesced = b + n * 5 * FLOAT
        went = sum(6 + (r - rank) for r in range(n)) * 5 * FLOAT
        assert [[record[:3] for record in records] for records in plain] == [
            [("all_reduce", b, 2 * (n - 1) * own)],
            [("all_reduce", b, 2 * (n - 1) * own)],
            [("all_reduce", coalesced, 2 * (n - 1) * coalesced // n)],
            [("all_gather", b, (n - 1) * b)],
            [("reduce_scatter", b, b - own)],
            [("all_to_all", b, b - own)],
            [("all_to_all", went, went - own)],
            *([[("all_to_all", b, b - own)]] if LISTS else []),
            [("broadcast", b, 0 if rank == n - 2 else b)],
            [("reduce", b, 0 if rank == 0 else b)],
            [("gather", b, 0 if rank == 0 else b)],
            [("scatter", b if rank == 0 else 0, b - own if rank == 0 else 0)],
        ]
        assert both == [("send", b, b, "float32"), ("recv", 0, 0, "float32")]
        assert meeting == [("barrier", 0, 0, "")]
        assert [(op, dtype) for op, _, _, dtype in objects] == [
            ("all_gather", "int64"),  # how long each object is
            ("all_gather", "uint8"),  # the objects themselves
        ]
