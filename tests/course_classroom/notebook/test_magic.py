"""`%%ranks` in a real kernel: what a learner sees, what an interrupt does, what ends with it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError

from course_classroom.notebook.magic import default_world, parse_which
from course_classroom.notebook.notebooks import kernel_over_files
from course_classroom.ranks import output
from course_classroom.ranks.carried import defined_names
from course_classroom.ranks.wire import Outcome
from course_lib.processes import why_spawned
from tests.course_classroom.conftest import living


class Session:
    """A notebook's kernel, cell by cell."""

    def __init__(self):
        self._files = tempfile.TemporaryDirectory(prefix="course-kernel-")
        self.client = NotebookClient(
            nbformat.v4.new_notebook(), timeout=90, allow_errors=True, startup_timeout=180
        )
        self.client.kernel_manager_class = kernel_over_files(self._files.name)
        self.kernel = contextlib.ExitStack()
        self.kernel.enter_context(self.client.setup_kernel())
        self.text("%load_ext course_classroom")

    def cell(self, source: str) -> list[dict]:
        cell = nbformat.v4.new_code_cell(source)
        self.client.nb.cells.append(cell)
        return self.client.execute_cell(cell, len(self.client.nb.cells) - 1).outputs

    def text(self, source: str) -> str:
        outputs = self.cell(source)
        assert not [o for o in outputs if o["output_type"] == "error"], outputs
        return "".join(o.get("text", "") for o in outputs)

    def error(self, source: str) -> dict:
        return next(o for o in self.cell(source) if o["output_type"] == "error")


@pytest.fixture(scope="module")
def session(_own_runtime) -> Iterator[Session]:
    opened = Session()
    yield opened
    opened.kernel.close()


@pytest.fixture
def seen(session) -> Iterator[Callable[[], str]]:
    """Run cells as where a person looks on; what the live area has shown so far."""
    shown: list[str] = []
    session.text("import os\nos.environ['JPY_SESSION_NAME'] = '/w/notebooks/a.ipynb'")

    def noted(message, *rest):
        if message["msg_type"] in ("display_data", "update_display_data"):
            shown.append(message["content"]["data"].get("text/plain", ""))
        return process(message, *rest)

    process, session.client.process_message = session.client.process_message, noted
    yield lambda: "\n\n".join(shown)
    vars(session.client).pop("process_message")
    session.text("os.environ.pop('JPY_SESSION_NAME')")


def test_what_ranks_print_is_seen_while_they_run_and_once_afterwards(session, seen):
    cell = "%%ranks\nimport time\nprint('begun', rank)\ntime.sleep(2.6)\nprint('ended')"
    outputs = session.cell(cell)
    printed = "".join(f"[rank {r}] begun {r}\n[rank {r}] ended\n" for r in (0, 1))
    assert [o["output_type"] for o in outputs] == ["stream"] and outputs[0]["text"] == printed
    assert "[rank 0] begun 0\n[rank 1] begun 1\n" in seen()
    assert " s · this cell is ended after 30 s of the ranks' own time, " in seen()
    assert "\nranks 0, 1 are in line 4: time.sleep(2.6)\n" in seen()
    number = session.client.nb.cells[-1].execution_count
    # What a page that was closed meanwhile has lost.
    assert session.text("%ranks last") == f"The output of cell [{number}]:\n{printed}"
    story = session.error("%%ranks\nprint(rank)\n1 / 0")["evalue"]
    assert session.text("%ranks last").endswith(f"[rank 1] 1\n{story}\n")


def test_a_live_area_shows_the_newest_lines_of_each_rank():
    text = "".join(f"step {i}\n" for i in range(30)) + "bar 1\rbar 2"
    outcome = Outcome(3, outputs=[{"output_type": "stream", "name": "stdout", "text": text}])
    first, *rest = output.newest([outcome])
    assert first == "[rank 3] … 23 earlier lines follow at the end"
    assert len(rest) == output.NEWEST and rest[-1] == "[rank 3] bar 2"


def test_lines_are_counted_as_the_editor_counts_them_and_cells_by_their_number(session):
    error = session.error("%%ranks\n\nif rank:\n    1 / 0\n")
    assert error["ename"] == "RanksFailed"
    assert "rank 1 raised ZeroDivisionError: division by zero in line 4: 1 / 0" in error["evalue"]
    assert error["traceback"] == error["evalue"].splitlines()
    session.text("%%ranks\ndef helper():\n    dist.barrier()")
    cell = f"cell [{session.client.nb.cells[-1].execution_count}], line 3: dist.barrier()"
    error = session.error("%%ranks\nif rank == 0:\n    helper()")
    assert f"rank 0 waited in barrier for rank 1 in {cell}" in error["evalue"]


def test_figures_and_rich_output_come_in_rank_order(session):
    outputs = session.cell(
        "%%ranks\nimport matplotlib.pyplot as plt\nfrom IPython.display import HTML, display\n"
        "plt.plot([0, rank]); plt.show()\ndisplay(HTML(f'<b>{rank}</b>'))"
    )
    kinds = [o.get("text", "").strip() or sorted(o["data"])[0] for o in outputs]
    assert kinds == ["[rank 0]", "image/png", "[rank 0]", "text/html"] + (
        ["[rank 1]", "image/png", "[rank 1]", "text/html"]
    )
    html = [o["data"]["text/html"] for o in outputs if "text/html" in o.get("data", {})]
    assert html == ["<b>0</b>", "<b>1</b>"]


def test_wrong_words_are_told_with_the_right_ones(session):
    session.text("%%ranks\nkept = 3")
    for line, message in [
        ("%%ranks 5\n1", "there is no rank [5] among 2 ranks"),
        ("%%ranks --dedline 3\n1", "unrecognized arguments: --dedline"),
        ("%%ranks one\n1", "write ranks like 0 or 0,2 or 1-3"),
        ("%%ranks --deadline 0\n1", "give seconds above 0"),
        ("%%ranks --world 0\n1", "a world of 0 ranks is not possible"),
        ("%%ranks --world -2\n1", "a world of -2 ranks is not possible"),
        ("%ranks dance", "write status, start, stop, restart or last"),
        ("from course_classroom import pull\npull('keptt')", "name 'keptt' is not defined"),
    ]:
        error = session.error(line)
        assert message in error["evalue"], line
        assert error["traceback"] == [f"{error['ename']}: {error['evalue']}"], "one sentence"
    # Nothing was given up for a wish that cannot be met.
    assert session.text("%%ranks\nprint(world, kept)") == "[rank 0] 2 3\n[rank 1] 2 3\n"


def test_another_world_starts_anew_and_says_so(session, seen):
    session.text("%%ranks\nkept = 1")
    text = session.text(
        "%%ranks --world 1\nimport time\nprint('kept' in globals(), world)\ntime.sleep(1.7)"
    )
    assert "ranks' own time" in seen() and "Ranks: 1 instead" not in seen()
    assert text == "Ranks: 1 instead of 2, with new, empty variables.\n[rank 0] False 1\n"
    session.text("%%ranks --world 2\n1")


def test_a_restart_says_what_there_is_and_keeps_the_number(session):
    session.text("%%ranks\nkept = 1")
    text = session.text("%ranks restart --world 1")
    assert text.startswith("rank 0 of 1 ") and "released" not in text
    assert session.text("%ranks restart").startswith("rank 0 of 1 ")
    assert "world of 0 ranks" in session.error("%ranks restart --world 0")["evalue"]
    assert session.text("%%ranks\nprint('kept' in globals(), world)") == "[rank 0] False 1\n"
    session.text("%%ranks --world 2\n1")


def test_an_interrupt_ends_the_cell_and_keeps_the_ranks(session):
    session.text("%%ranks\nkept = rank")
    session.client.timeout = 2  # nbclient interrupts a cell that takes longer
    session.client.interrupt_on_timeout = True
    try:
        outputs = session.cell("%%ranks\nimport time\nif rank:\n    time.sleep(60)\ndist.barrier()")
    except CellTimeoutError:
        outputs = session.client.nb.cells[-1].outputs
    finally:
        session.client.timeout, session.client.interrupt_on_timeout = 90, False
    error = next(o for o in outputs if o["output_type"] == "error")
    assert error["ename"] == "KeyboardInterrupt"
    told = "\n".join(error["traceback"])
    assert "The cell was interrupted." in told
    assert "rank 1 was still busy in line 4: time.sleep(60)" in told
    assert session.text("%%ranks\nprint(kept)") == "[rank 0] 0\n[rank 1] 1\n"


def test_a_rank_that_prints_without_end_does_not_fill_the_notebook(session):
    text = session.text("%%ranks 1\nfor k in range(40_000):\n    print('a line of text', k)")
    assert text.startswith("[rank 1] a line of text 0\n") and len(text) < 100_000
    assert "more characters, which are not shown" in text.splitlines()[-1]


def test_the_status_and_the_stop(session):
    session.text("%%ranks\n1")
    status = session.text("%ranks").splitlines()
    assert status[0].startswith("rank 0 of 2 (on one machine), gloo") and len(status) == 2
    assert session.text("%ranks stop") == (
        "No ranks are running; the next %%ranks cell starts them.\n"
    )
    again = session.text("%%ranks 0\nprint('here')")
    assert again.endswith("[rank 0] here\n") and "start again with empty variables" in again


def test_a_kernel_that_shuts_down_takes_its_ranks_along(session):
    """The last test of this kernel."""
    session.text("%%ranks\n1")
    kernel = psutil.Process(int(session.text("import os\nprint(os.getpid())")))
    ranks = kernel.children(recursive=True)
    assert len(ranks) == (2 if why_spawned() else 3), "two, and what they are forked from"
    session.text("from course_classroom.judge import check")
    ranks = kernel.children(recursive=True)
    assert len(ranks) == (2 if why_spawned() else 4), "and the judge's own"
    session.kernel.close()
    assert living([rank.pid for rank in ranks], 40.0) == []  # a parent takes its time


def test_what_torch_logs_beside_a_profile_is_not_a_ranks_own_output(capsys):
    bar = " 0%\r50%\r100%\r\n"
    logged = "USDT:2026-01-01 01:02:03 71:71 SyncActivityProfilerHandler.cpp:52] profiler_start\n"
    text = f"{bar}one\n{logged}[W0101 01:02:03.4 file.cpp:1] a warning\nINFO:2026-01-01 is mine\n"
    outcome = Outcome(0, outputs=[{"output_type": "stream", "name": "stderr", "text": text}])
    output.show([outcome])
    assert (
        capsys.readouterr().out == "[rank 0] 100%\n[rank 0] one\n[rank 0] INFO:2026-01-01 is mine\n"
    )


def test_ranks_are_named_in_several_ways():
    assert parse_which("", 4) is None and parse_which("all", 4) is None
    assert parse_which("2", 4) == [2] and parse_which("0,2-3", 4) == [0, 2, 3]
    with pytest.raises(ValueError, match="no rank"):
        parse_which("3-9", 4)
    with pytest.raises(ValueError, match="a range counts upwards"):
        parse_which("3-1", 4)


def test_the_world_comes_from_the_environment_or_the_machine(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert default_world() == 3
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ValueError, match="WORLD_SIZE='two' is not a number of ranks"):
        default_world()
    monkeypatch.delenv("WORLD_SIZE")
    for gpus, ranks in ((0, 2), (1, 2), (4, 4)):
        monkeypatch.setattr("torch.cuda.device_count", lambda gpus=gpus: gpus)
        assert default_world() == ranks


def test_a_cells_definitions_are_found_even_if_it_cannot_be_parsed():
    """A check has to judge the answer that does not compile, not the one before it."""
    assert defined_names("def f(:\n  pass") == ["f"]
    assert defined_names("def f(): pass\nclass A: pass\nx = 1\n  def inner(): pass") == ["f", "A"]
    assert defined_names("import a.b, c as d\nif 1:\n  def f(): x = 1\ny = 2") == [
        "a",
        "d",
        "f",
        "y",
    ]
