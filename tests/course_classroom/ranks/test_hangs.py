"""The report of a hang names the line, the call, and the rank that never came, for any code."""

from __future__ import annotations

import re

import pytest

from course_classroom.ranks.agreement import named_holders
from course_classroom.ranks.output import newest
from tests.course_classroom.conftest import freed, printed, told, works

RAW = ("x = torch.ones(3, 2)", "\nif rank == 0:\n    dist.all_reduce(x)\n")
DDP = (
    "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 5))",
    "loss = model(torch.randn(2, 4)).sum()\nif rank == 0:\n    loss.backward()",
)
FSDP = (
    "from torch.distributed.device_mesh import init_device_mesh\n"
    "from torch.distributed.fsdp import fully_shard\n"
    "model = torch.nn.Linear(4, 6)\n"
    "fully_shard(model, mesh=init_device_mesh(device.type, (world,)))",
    "if rank == 0:\n    model(torch.randn(2, 4))",
)


@pytest.mark.parametrize(
    ("cells", "call", "line", "checked"),
    [
        (RAW, "all_reduce", "line 3: dist.all_reduce(x)", False),
        (DDP, "all_reduce", "line 3: loss.backward()", True),
        (DDP, "all_reduce", "line 3: loss.backward()", False),
        (FSDP, "all_gather", "line 2: model(torch.randn(2, 4))", True),
    ],
    ids=["raw", "ddp", "ddp unchecked", "fsdp2"],
)
def test_who_waits_where_and_who_never_came(two, cells, call, line, checked):
    made, hangs = cells
    assert not two.run(made, deadline=60.0).failed
    ended = two.run(hangs, deadline=4.0, checked=checked)
    text = freed(ended) if checked else told(ended)  # checked: no need to wait
    waiting, absent = text.splitlines()[:2]
    assert waiting.startswith("rank 0 waited in ") and call in waiting and line in waiting
    assert absent.startswith("rank 1 finished the cell")
    if checked:
        assert "for rank 1" in waiting
    works(two)


def test_three_ranks_the_missing_one_is_named(clusters):
    cluster = clusters(3)
    text = told(cluster.run("if rank != 1:\n    dist.barrier()"))
    assert "rank 0 waited in barrier for rank 1 in line 2" in text
    assert "rank 2 waited in barrier for rank 1 in line 2" in text
    works(cluster)


def test_ranks_that_wait_for_each_other_are_freed_before_the_deadline(two):
    text = freed(two.run("dist.recv(torch.empty(3), (rank + 1) % world)", deadline=20.0))
    assert "rank 0 waited in recv(from rank 1) of float32[3] for rank 1" in text
    assert "rank 1 waited in recv(from rank 0) of float32[3] for rank 0" in text
    works(two)


def test_two_groups_in_another_order(two):
    code = """
a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
first, second = (a, b) if rank == 0 else (b, a)
dist.all_reduce(torch.ones(2), group=first)
dist.all_reduce(torch.ones(2), group=second)
"""
    text = freed(two.run(code, deadline=20.0))
    assert text.count("waited in all_reduce(sum) of float32[2]") == 2 and "line 4" in text
    works(two)
    two.run("del a, b, first, second")  # a later test names what holds a dead group


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "dist.all_reduce(torch.ones(3 + rank))",
            ["rank 0 calls all_reduce(sum) of float32[3]", "float32[4] in line 1"],
        ),
        (
            "dist.all_reduce(torch.ones(9, dtype=[torch.float32, torch.float64][rank]))",
            ["float32[9]", "float64[9]"],
        ),
        (
            "x = torch.ones(2)\nif rank: dist.broadcast(x, 0)\nelse: dist.all_reduce(x)",
            ["rank 0 calls all_reduce(sum) of float32[2] in line 3", "broadcast(root 0)"],
        ),
        (
            "dist.all_reduce(torch.ones(2), [dist.ReduceOp.SUM, dist.ReduceOp.MAX][rank])",
            ["all_reduce(sum)", "rank 1 calls all_reduce(max)"],
        ),
        ("dist.broadcast(torch.ones(2), rank)", ["root 0", "root 1"]),
        (
            "x = torch.ones(3 + rank)\n"
            "dist.all_gather([torch.empty_like(x) for _ in range(world)], x)",
            ["rank 0 calls all_gather of float32[3]", "rank 1 calls all_gather of float32[4]"],
        ),
        (
            "out = torch.empty(4)\n"
            "dist.all_to_all_single(out, torch.ones(4), [2, 2], [1, 3] if rank else [2, 2])",
            ["all_to_all"],
        ),
        (
            "if rank == 0: dist.send(torch.ones(3), 1)\nelse: dist.recv(torch.ones(4), 0)",
            ["send(to rank 1) of float32[3]", "recv(from rank 0) of float32[4]"],
        ),
    ],
    ids=["shape", "dtype", "verb", "sum-against-max", "root", "list", "splits", "message"],
)
def test_ranks_that_disagree_are_told_at_once_and_keep_their_group(two, code, said):
    two.run("kept = group")
    text = freed(two.run(code))
    assert "the ranks disagree about a collective" in text
    for part in said:
        assert part in text
    works(two)
    if "send" not in code:
        assert two.pull("kept is group") == [True, True]


def test_calls_in_flight_are_compared_when_the_other_comes(two):
    code = "h = dist.all_reduce(torch.ones(3 + rank), async_op=True)\nh.wait()"
    assert "the ranks disagree" in told(two.run(code, deadline=4.0))
    works(two)


def test_a_handle_waited_for_in_vain(two):
    text = told(
        two.run("if rank:\n    h = dist.all_reduce(torch.ones(3), async_op=True)\n    h.wait()")
    )
    assert "rank 1 waited in all_reduce(sum) of float32[3] (asynchronous) for rank 0" in text
    works(two)


def test_legitimate_programs_pass_the_referee(two):
    code = """
from course_lib.collectives import all_gather, all_reduce, reduce_scatter
x = torch.arange(6.0) + rank
flight = [all_reduce(x * k, group, async_op=True) for k in range(5)]
late = dist.all_reduce(x.clone(), async_op=True)     # in flight while messages cross
box = torch.empty(6)
if rank == 0:
    dist.send(x, 1)
else:
    dist.recv(box, 0)
late.wait()
good = [h.wait()[1].item() for h in reversed(flight)] == [3.0 * k for k in (4, 3, 2, 1, 0)]
both = [dist.isend(x, 1 - rank), dist.irecv(box, 1 - rank)]
[h.wait() for h in both]
mine = [1, 3] if rank else [3, 1]     # rank 0 keeps 3 rows, the rest crosses one by one
dist.all_to_all_single(torch.empty(4), torch.ones(4), mine, mine)
names = [None] * world
dist.all_gather_object(names, {"rank": rank, "odd": "x" * rank})
print(good, box.tolist() == (torch.arange(6.0) + 1 - rank).tolist(), names[1]["odd"])
"""
    assert printed(two.run(code)) == ["True True x\n"] * 2


def test_a_failure_in_a_helper_names_the_cell_that_holds_it(two):
    two.run("def helper(x):\n    return dist.all_reduce(x)", label="cell [4]")
    text = told(two.run("if rank == 0:\n    helper(torch.ones(1))", label="cell [5]"))
    assert "in cell [4], line 2: return dist.all_reduce(x)" in text
    two.run("def deep(n):\n    return 1 / n if n == 0 else deep(n - 1)", label="cell [6]")
    text = told(two.run("deep(1)", label="cell [7]"))
    assert "ZeroDivisionError: division by zero in cell [6], line 2" in text
    assert "It got there through line 1: deep(1), then cell [6], line 2: return 1 / n" in text


def test_what_holds_a_dead_group_is_named_and_says_so_when_used(two):
    two.run("mesh = dist.device_mesh.init_device_mesh(device.type, (world,))", label="cell [2]")
    two.run(
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\n"
        "mine = [dist.new_group([0, 1])]\nfree = torch.ones(3)\nfor one in mine:\n    pass",
        label="cell [3]",
    )
    text = told(
        two.run("model(torch.ones(1, 2)).sum().backward() if rank else None", label="cell [4]")
    )
    assert "These hold a dead group. Create them again before use: " in text
    for name in (
        "`model` (made in cell [3])",
        "`mine` (made in cell [3])",
        "`mesh` (made in cell [2])",
    ):
        assert name in text
    assert "free" not in text and "`one`" not in text, "a loop's variable is not made again"
    for use in (
        "model(torch.ones(1, 2))",
        "dist.all_reduce(torch.ones(1), group=mine[0])",
        "dist.all_reduce(torch.ones(1), group=mesh.get_group())",
    ):
        for checked in (True, False):
            text = freed(two.run(use, checked=checked))
            assert "this group did not survive the failure in cell [4]" in text, use
            assert "`group` is the new group of all ranks" in text
    works(two)
    two.run("del model, mine, mesh, one")


def test_of_many_that_hold_a_dead_group_five_are_named():
    holders = [(f"v{i}", f"cell [{i}]") for i in range(7)]
    assert named_holders(holders).endswith(", `v4` (made in cell [4]), and 2 more")
    assert named_holders(holders[:1]) == "`v0` (made in cell [0])"


def test_a_long_cell_says_where_it_is(two):
    said: list[str] = []
    two.run(
        "import time\nprint('here', rank)\nif rank:\n    time.sleep(2.2)\ndist.barrier()",
        deadline=10.0,
        alive=lambda outcomes, doing, spent: said.append(
            "\n".join([*newest(outcomes), *doing, spent.left()])
        ),
    )
    assert said[0].startswith("[rank 0] here 0\n[rank 1] here 1\n"), "what they have printed"
    rest = "rank 0 waits in barrier (line 5)\nrank 1 is in line 4: time.sleep(2.2)\n10 s of the "
    assert re.search(re.escape(rest) + r"ranks' own time, \d s used$", said[-1])


THREAD = """import sys, threading, time; go = threading.Event()
def call():
    {before}
    dist.all_reduce(torch.ones(3))
t = threading.Thread(target=call)
if rank == 0:
    t.start()
{after}"""
WAITS = """    work = None  # what all_reduce has once its call is made
    while work is None:
        time.sleep(0.01)
        frame = sys._current_frames().get(t.ident)
        while frame is not None and "work" not in frame.f_locals:
            frame = frame.f_back
        work = frame"""


def test_a_thread_that_outlives_its_cell_harms_no_later_one(two):
    """Its call would take the numbers of a later cell's, or wait in the place of one."""
    # Cells and threads wait for each other, and no clock is asked.
    later = "y = torch.ones(2)\ndist.all_reduce(y)\ngo.set()\nrank or t.join()\nprint(y.tolist())"
    call = "dist.all_reduce(torch.ones(3))"
    # What torch asks of a group to note an error, asked while a later cell runs.
    ends_late = THREAD.replace(call, f"try: {call}\n    finally: go.wait(), dist.get_rank()")
    ended = two.run(ends_late.format(before="", after=WAITS), label="cell [3]")
    assert ended.notes[0] == (
        "On rank 0 a thread that this cell started still waits in all_reduce (line 4: "
        f"try: {call}). No rank will make that call. Wait for a thread in its "
        "own cell, with thread.join()."
    )
    assert printed(two.run(later, label="cell [4]")) == ["[2.0, 2.0]\n"] * 2
    two.run(THREAD.format(before="go.wait()", after=""), label="cell [5]")
    first, second = printed(two.run(later, label="cell [6]"))
    assert second == "[2.0, 2.0]\n" and second in first  # two streams, in any order
    refused = first.replace(second, "")
    assert refused.startswith(
        "A call was refused because it comes from a thread that cell [5] started (cell [5], "
    )
    joined = THREAD.replace("if rank == 0:\n    ", "")
    assert not two.run(joined.format(before="", after="t.join()"), label="cell [7]").notes
    works(two)


def test_an_unchecked_cell_pays_nothing_and_recovers_too(two):
    two.run("from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as modes")
    assert printed(two.run("print(len(modes()))", checked=False)) == ["0\n", "0\n"]
    assert printed(two.run("print(len(modes()))", checked=True)) == ["1\n", "1\n"]
