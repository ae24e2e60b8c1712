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


def every_verb(me, rows: int) -> None:
    """Each verb once, in a ledger of its own; `rows` of 64 floats to each rank on average."""
    world, n, rank, row = dist.group.WORLD, me.world, me.rank, 64 * FLOAT
    whole, root = torch.randn(n * rows, 64), n - 1
    uneven = [rows + (r - n // 2) * 8 for r in range(n)]
    of_uneven, own_uneven = torch.randn(sum(uneven), 64), torch.randn(uneven[rank], 64)
    size, own, every = n * rows * row, uneven[rank] * row, sum(uneven) * row
    others, last, first = (n - 1) * rows * row, rank == root, rank == 0
    verbs, even, cut = collectives, list(whole.chunk(n)), list(of_uneven.split(uneven))
    likes = [own_uneven] * n

    def check(op: str, payload: int, must: int, call, *args, **how) -> None:
        with ledger() as book:
            result = call(*args, **how)
            if "async_op" in how:
                result.wait()
        (record,) = book.records
        assert (record.op, record.payload, record.must) == (op, payload, must), (op, record)
        assert record.elements * FLOAT == payload and book.bytes(column="must") == must
        if op == "broadcast" and torch.cuda.is_available():
            return  # gloo's own, from the host's copies, along another road than ours
        assert must <= record.moved <= must * 1.005 + HEADERS, record

    check("all_reduce", size, 2 * others, verbs.all_reduce, whole, world)
    check("all_reduce", size, 2 * others, verbs.all_reduce, whole, world, "max", async_op=True)
    check("all_gather", size, (n - 1) * size, verbs.all_gather, whole, world)
    check("all_gather", own, (n - 1) * own, verbs.all_gather, own_uneven, world, sizes=uneven)
    check("reduce_scatter", size, others, verbs.reduce_scatter, whole, world)
    scatter, rest = verbs.reduce_scatter, every - own
    check("reduce_scatter", every, rest, scatter, of_uneven, world, sizes=uneven)
    check("broadcast", size, 0 if rank == n - 2 else size, verbs.broadcast, whole, world, src=root)
    mine, how = whole if last else None, {"src": root, "like": whole}
    check("scatter", size * last, others * last, verbs.scatter, mine, world, **how)
    mine, how = of_uneven if first else None, {"sizes": uneven, "like": of_uneven}
    check("scatter", every * first, (every - own) * first, verbs.scatter, mine, world, **how)
    check("gather", size, 0 if last else size, verbs.gather, whole, world, dst=root)
    check("gather", own, 0 if first else own, verbs.gather, own_uneven, world, sizes=uneven)
    check("all_to_all", size, others, verbs.all_to_all, even, world)
    check("all_to_all", every, every - own, verbs.all_to_all, cut, world, like=likes)
    check("barrier", 0, 0, verbs.barrier, world)
    if rank == 0:
        check("send", size, size, verbs.send, whole, world, dst=1)
    if rank == 1:
        check("recv", 0, 0, verbs.recv, whole.shape, world, src=0)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_every_verb_is_booked_once_with_its_closed_form_and_moves_no_more(pool, world):
    pool.run(world, every_verb, 4096 // world)  # a megabyte in all


def raw_calls(me) -> None:
    """torch.distributed's own calls, in forms that a ledger has to read differently."""
    n, rank = me.world, me.rank
    x, lists = torch.ones(n * 6, 5), [torch.empty(6, 5) for _ in range(n)]
    right, left, first = (rank + 1) % n, (rank - 1) % n, rank == 0
    b, own = x.nbytes, x.nbytes // n
    both, there = b + n * 5 * FLOAT, [torch.empty_like(x) for _ in range(n)]
    rows = [6 + (r - rank) for r in range(n)]  # what goes to rank r, and what comes from it
    back = [6 - (r - rank) for r in range(n)]
    went = sum(rows) * 5 * FLOAT

    def batch():
        ops = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, torch.empty_like(x), left)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    def coalesced():
        with dist._coalescing_manager(async_ops=True) as works:
            dist.all_reduce(x.clone())
            dist.all_reduce(x.clone()[:n])
        works.wait()

    def asynchronous():
        dist.all_reduce(x.clone(), async_op=True).wait()

    def split_unevenly():
        dist.all_to_all_single(torch.empty(sum(back), 5), torch.ones(sum(rows), 5), back, rows)

    def check(want: tuple | list[tuple], call, *args) -> None:
        want = want if isinstance(want, list) else [want]
        with ledger() as book:
            call(*args)
        assert [(r.op, r.payload, r.must) for r in book.records] == want
        assert {r.dtype for r in book.records} == {"" if want[0][0] == "barrier" else "float32"}

    check(("all_reduce", b, 2 * (n - 1) * own), dist.all_reduce, x.clone())
    check(("all_reduce", b, 2 * (n - 1) * own), asynchronous)
    check(("all_reduce", both, 2 * (n - 1) * both // n), coalesced)
    check(("all_gather", b, (n - 1) * b), dist.all_gather, there, x)
    check(("reduce_scatter", b, b - own), dist.reduce_scatter, torch.empty(6, 5), list(x.chunk(n)))
    check(("all_to_all", b, b - own), dist.all_to_all_single, torch.empty_like(x), x)
    check(("all_to_all", went, went - own), split_unevenly)
    check(("broadcast", b, 0 if rank == n - 2 else b), dist.broadcast, x.clone(), n - 1)
    check(("reduce", b, 0 if first else b), dist.reduce, x.clone(), 0)
    check(("gather", b, 0 if first else b), dist.gather, x, there if first else None)
    check(
        ("scatter", b * first, (b - own) * first),
        dist.scatter,
        torch.empty(6, 5),
        list(x.chunk(n)) if first else None,
    )
    check([("send", b, b), ("recv", 0, 0)], batch)
    check(("barrier", 0, 0), dist.barrier)
    if LISTS:
        check(("all_to_all", b, b - own), dist.all_to_all, lists, list(x.chunk(n)))
    with ledger() as book:
        dist.all_gather_object([None] * n, {"rank": rank})
    # How long each object is, and the objects themselves.
    assert [r.dtype for r in book.records] == ["int64", "uint8"]


@pytest.mark.cpu("gloo has no coalesced all-reduce of a GPU's tensors")
@pytest.mark.parametrize("world", [2, 3])
def test_raw_calls_are_read_whatever_their_form(pool, world):
    pool.run(world, raw_calls)
