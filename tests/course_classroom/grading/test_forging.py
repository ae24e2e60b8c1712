"""Points that were not earned: what a submission says of itself, brings along or bends is no use.

One run of `course grade`, with real ranks.
"""

from __future__ import annotations

import json

import pytest

from tests.course_classroom.grading.hand_in import (
    MEAN,
    RIGHT,
    WHO,
    WHO_RIGHT,
    WRONG,
    answered,
    body,
    save,
    with_cell,
)
from tests.course_classroom.grading.test_twelve import grade, left

FAKE = 'raise SystemExit("not the real one")\n'
BENT = f"""%%ranks
import course_classroom.judge.bench as inner

def bent(function, x, group):
    return {{"kind": "Tensor", "out": x}}

inner.report = bent
{RIGHT.removeprefix("%%ranks")}"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> dict[str, dict]:
    cwd = tmp_path_factory.mktemp("f")
    home = save(answered(WRONG), cwd / "in" / "mia" / f"{MEAN}.ipynb").parent
    for name in ("torch.py", "json.py", "psutil.py", "course_lib/__init__.py", "zmq/__init__.py"):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(FAKE)
    save(answered(BENT), cwd / "in" / "ned.ipynb")
    save(with_cell(answered(WHO_RIGHT, WHO), "while True:\n    pass"), cwd / "in" / "pia.ipynb")
    save(answered(body("held = torch.ones(2**33)")), cwd / "in" / "qiu.ipynb")
    done = grade("in", "--sandboxed", "--json", cwd=cwd)
    assert left(cwd) == []
    return {row["student"]: row for row in json.loads(done.stdout)["rows"]}


def test_modules_that_a_submission_brings_stand_in_for_nothing(rows):
    assert (rows["mia"]["outcome"], rows["mia"]["misconception"]) == ("wrong", "sum"), rows["mia"]


def test_an_answer_that_bends_its_measuring_is_left_to_a_person(rows):
    assert (rows["ned"]["outcome"], rows["ned"]["points"]) == ("by hand", 0)
    assert "uses course_classroom.judge.bench" in rows["ned"]["note"]


def test_a_cell_that_never_ends_costs_nothing_beside_a_right_answer(rows):
    assert (rows["pia"]["outcome"], rows["pia"]["points"]) == ("right", 1), rows["pia"]


def test_more_memory_than_there_may_be_is_told_from_a_mistake(rows):
    assert (rows["qiu"]["outcome"], rows["qiu"]["points"]) == ("out of memory", 0), rows["qiu"]
