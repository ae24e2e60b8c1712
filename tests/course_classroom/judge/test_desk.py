"""What a learner's slips are answered: which cell was read, which name was meant, in a sentence."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from IPython.core.interactiveshell import InteractiveShell

from course_classroom import judge as checks
from course_classroom.judge import desk, frame
from course_classroom.notebook.magic import RanksMagics
from course_classroom.ranks import output

NAME = "mean_over_ranks"
RIGHT = {"A": 2, "B": 1, "C": 0}  # of who_hangs


class Notebook:
    """A notebook whose `%%ranks` cells are noted, and not run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.shell = InteractiveShell()
        self.shell.register_magics(RanksMagics)
        self.defined = self.shell.magics_manager.registry["RanksMagics"].defined
        monkeypatch.setattr(desk, "get_ipython", lambda: self.shell)
        self.shell.user_ns |= {name: getattr(checks, name) for name in checks.__all__}

    def cell(self, source: str) -> None:
        assert self.shell.run_cell(source).success

    def ranks(self, source: str) -> None:
        self.defined.ran_on_ranks(source)

    def text(self, name: str = NAME) -> str:
        return desk.check(name).text


@pytest.fixture
def notebook(monkeypatch, tmp_path) -> Notebook:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    return Notebook(monkeypatch)


def test_a_cell_that_could_not_be_read_is_not_taken_for_the_last_one(notebook):
    notebook.ranks(f"def {NAME}(x, group:\n    return x\n")
    first = notebook.text()
    assert first == "Python cannot read the cell in line 2: '(' was never closed."
    notebook.ranks("def mean(x, group):\n    return x")  # renamed
    assert notebook.text() == (
        f"{first}\nThat is the last `%%ranks` cell with `{NAME}`: no later one has defined it."
    )
    notebook.cell(f"def {NAME}(x, group):\n    return x")  # without the magic
    assert notebook.text().endswith("is `%%ranks` the first line of its cell?")
    notebook.ranks(f"def {NAME}(x, group):\n    ...")
    assert notebook.text() == frame.EMPTY


def test_an_answer_in_the_notebook_s_own_process_is_called_that(notebook):
    notebook.cell(f"def {NAME}(x, group):\n    return x")
    assert notebook.text() == (
        f"`{NAME}` is defined in the notebook's own process: is `%%ranks` the first line of its "
        "cell?"
    )
    notebook.cell(f"who_hangs = {RIGHT}")  # numbers belong there
    notebook.ranks(f"who_hangs = {RIGHT}\ndef {NAME}(x, group):\n    ...")
    notebook.cell(f"who_hangs = {dict.fromkeys(RIGHT, 5)}")
    assert "own process" not in notebook.text("who_hangs") + notebook.text()


def test_a_page_has_its_exercise_and_a_name_may_be_left_out(notebook, monkeypatch, capsys):
    with pytest.raises(ValueError, match="this page is not an exercise"):
        desk.hint()
    notebook.cell(f"who_hangs = {RIGHT}")
    assert desk.check().exercise == "who_hangs"
    monkeypatch.setattr(desk, "AT_ONCE", 0.0)
    desk.hint()
    assert capsys.readouterr().out.startswith("Hint 1 of 4: ")
    monkeypatch.setenv("JPY_SESSION_NAME", f"/w/exercises/00_start_here/{NAME}.ipynb")
    desk.hint()
    assert "Which collective gives every rank the sum?" in capsys.readouterr().out


def test_running_all_cells_takes_no_hint(notebook, capsys, monkeypatch):
    notebook.cell(f"who_hangs = {RIGHT}\ncheck('who_hangs')\nhint()")
    assert capsys.readouterr().out.endswith("Run only it.\n")
    monkeypatch.setattr(desk, "AT_ONCE", 0.0)
    desk.hint()
    assert capsys.readouterr().out.startswith("Hint 1 of 4: "), "the first one is still to come"


SLIPS = {
    f"hint('{NAME[:-1]}')": f"there is no exercise 'mean_over_rank'; did you mean '{NAME}'?",
    "check('zzz')": "there is no exercise 'zzz'; its page has the name in its check",
    "check({})": 'the name of an exercise must be in quotes, as in hint("mean_over_ranks")',
    "cell_of('ring')": "no %%ranks cell has defined ring yet; did you mean 'rings'?",
    "predict('04.sent', '4')": "a prediction is a number without quotes or unit, or `...` for a "
    "blank; 04.sent got '4'",
    "predict(4, '04.sent')": 'the question must be first, in quotes: predict("01.two", ..., "MB")',
    "hint(1, 2)": "hint() takes from 0 to 1 positional arguments but 2 were given",
}


@pytest.mark.parametrize("cell", SLIPS)
def test_a_slip_is_told_in_one_sentence(notebook, capsys, cell):
    notebook.ranks("def rings():\n    pass")
    notebook.shell.run_cell(cell)
    kind, _, said = capsys.readouterr().out.partition(": ")
    assert kind in ("ValueError", "TypeError", "KeyError") and said == f"{SLIPS[cell]}\n"


@pytest.fixture
def shown(monkeypatch) -> Iterator[list[str]]:
    """What a live area shows, of which a person sees the first part after a moment."""
    texts: list[str] = []
    monkeypatch.setattr(output, "QUIET", 0.05)
    monkeypatch.setenv("JPY_SESSION_NAME", "/w/exercises/a.ipynb")

    def display(bundle: dict, **options: object) -> SimpleNamespace:
        texts.append(bundle["text/plain"])
        return SimpleNamespace(update=lambda bundle, raw: texts.append(bundle["text/plain"]))

    monkeypatch.setattr(output, "display", display)
    monkeypatch.setattr(output, "clear_output", lambda: texts.append("gone"))
    yield texts
    assert threading.active_count() < 50


def wait_for(happened: Callable[[], object]) -> None:
    ended = threading.Event()
    for _ in range(2000):
        if happened() or ended.wait(0.01):
            return
    raise AssertionError("it never came")


def test_a_long_check_shows_what_it_does_and_leaves_nothing(notebook, monkeypatch, shown):
    def judge(exercise, sources, values, judge):
        judge.enter("your cell is run")
        wait_for(lambda: shown)
        spent = SimpleNamespace(left=lambda: "5 s of the ranks' own time, 3 s used")
        judge.note([], ["rank 0 is in line 1: __report__ = __tried__()"], spent)
        wait_for(lambda: shown[1:])
        return frame.Verdict(exercise.name, frame.WRONG, "sum", "It is the sum.", 0, 2)

    monkeypatch.setattr(frame, "judge", judge)
    assert desk.check(NAME).text == "It is the sum."
    assert shown[0].endswith(" s · your cell is run") and shown[-1] == "gone"
    more = "your cell is run, up to 5 s of the ranks' own time, 3 s used\nrank 0 is in the check's"
    assert more in shown[1]


def test_where_no_person_looks_on_a_check_shows_nothing(notebook, monkeypatch, shown):
    monkeypatch.delenv("JPY_SESSION_NAME")
    notebook.cell(f"who_hangs = {RIGHT}")
    assert notebook.text("who_hangs") and shown == []
