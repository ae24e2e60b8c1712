"""Cells that ended green and were not, waits without a bound, and what a cell leaves running."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell

from course_classroom.notebook.extra import ExtraRanks
from course_classroom.notebook.magic import LONGEST, RanksMagics
from course_classroom.ranks.wire import MOST_PRINTED, MOST_SAID
from course_lib.processes import why_spawned
from tests.course_classroom.conftest import told, works


def test_a_call_that_not_all_began_fails_its_own_cell(two):
    ended = two.run("kept = rank\nif rank == 0:\n    dist.all_reduce(torch.ones(2), async_op=True)")
    first, second, *notes = told(ended).splitlines()
    assert first == (
        "rank 0 began all_reduce(sum) of float32[2] without waiting for it in line 3: "
        "dist.all_reduce(torch.ones(2), async_op=True); rank 1 has not made that call in this cell"
    )
    assert second == "rank 1 finished the cell without calling any collective"
    assert notes == ["New groups were created; the ranks' other variables are unchanged."]
    works(two)
    assert two.pull("kept") == [0, 1]


def test_more_calls_than_the_board_remembers_are_still_counted(two):
    code = "for _ in range(150):\n    dist.all_reduce(torch.ones(1))\n"
    ended = two.run(code + "if rank == 1:\n    h = dist.all_reduce(torch.ones(3), async_op=True)")
    assert told(ended).startswith("rank 1 began all_reduce(sum) of float32[3] without waiting")
    works(two)


def test_a_call_that_all_began_may_be_waited_for_in_a_later_cell(two):
    ended = two.run("x = torch.ones(1)\nlater = dist.all_reduce(x, async_op=True)")
    assert not ended.failed
    ended = two.run("later.wait()\nassert x.item() == 2")
    assert not ended.failed


def test_a_cell_that_swallows_its_interrupt_has_failed(two):
    code = "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    pass"
    ended = two.run(code, ranks=[0], deadline=1.0)
    assert ended.timed_out and "did not end within its 30 s" in told(ended)
    works(two)


def test_a_long_error_and_a_long_value_are_cut(two):
    ended = two.run("raise ValueError('v' * 10**7)")
    assert len(told(ended)) < 3 * MOST_SAID and f"{10**7 - MOST_SAID:,} more characters" in told(
        ended
    )
    (outcome, _) = two.run("'v' * 10**7").outcomes
    (output,) = outcome.outputs
    assert len(output["data"]["text/plain"]) < 2 * MOST_PRINTED
    ended = two.run(
        "from IPython.display import HTML, display\ndisplay(HTML('v' * 10**7))", ranks=[0]
    )
    (output,) = ended.outcomes[0].outputs
    assert output["data"]["text/html"] == "10,000,000 characters of text/html are not shown"


def test_a_deadline_that_is_none_is_refused_before_ranks_start(monkeypatch):
    magics = RanksMagics(InteractiveShell())
    monkeypatch.setattr(magics, "ready", lambda *a, **k: pytest.fail("ranks were started"))
    for seconds in ("inf", "nan", "0", str(LONGEST + 1)):
        with pytest.raises(ValueError, match=r"above 0 and at most 86,400 \(a day\)"):
            magics.run_cell(f"--deadline {seconds}", "1")
        with pytest.raises(ValueError, match="a day"):
            ExtraRanks(1).run("1", deadline=float(seconds))
    monkeypatch.setenv("COURSE_DEADLINE", "inf")
    with pytest.raises(ValueError, match="a day"):
        magics.run_cell("", "1")


def test_the_last_rank_of_a_check_has_another_hash_secret(desk):
    desk.judge.ready()
    zero, one, two = desk.judge.pull("hash('a name')")
    assert two not in (zero, one)
    assert (zero == one) == (not why_spawned()), "forked ranks share one, started ones do not"


def test_a_rank_carries_no_debugger_and_a_cell_may_import_one(two):
    assert two.pull("'pydevd' in __import__('sys').modules") == [False, False]
    ended = two.run("import sys\nassert len(sys.modules) > 500\nimport debugpy.server")
    assert not ended.failed, told(ended)
