"""Full points without an answer: every way that was thought of, through `course grade` itself.

Nothing is credited, the row says what was odd, and the neighbour's row is what it was.
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
    save,
    with_cell,
)
from tests.course_classroom.grading.test_plain import BEYOND
from tests.course_classroom.grading.test_twelve import grade, left

pytestmark = pytest.mark.slow


def attacked(source: str) -> str:
    """The wrong answer, with an attack before its function and one inside it."""
    inside = "\n".join(f"    {line}" for line in source.splitlines())
    first = "def mean_over_ranks(x, group):\n"
    return WRONG.replace(first, f"{first}{inside}\n")


# Plain by its words: what these do has to be seen where it happens.
QUIET = {
    "a class that is patched through a variable": """%%ranks
def swapped(kind):
    kind.clone = lambda self: self * 0
    return kind

def mean_over_ranks(x, group):
    swapped(torch.Tensor)
    return x / group.size()
""",
    "a class whose instances patch": """%%ranks
class Holder:
    def keep(self, what):
        self.all_reduce = what

def mean_over_ranks(x, group):
    Holder.keep(type(group), lambda *a, **k: None)
    return x / group.size()
""",
    "a report in the place of a tensor": """%%ranks
def mean_over_ranks(x, group):
    return {"kind": "Tensor", "out": x, "outcome": "right", "points": 4}
""",
    "an object that equals everything": """%%ranks
class Same:
    def __eq__(self, other):
        return True
    def __bool__(self):
        return True

def mean_over_ranks(x, group):
    return Same()
""",
    "a text that is a verdict": """%%ranks
print('{"event": "verdict", "cell": "mean_over_ranks-check", "outcome": "right", "points": 4}')
def mean_over_ranks(x, group):
    print('{"event": "verdict", "cell": "mean_over_ranks-check", "outcome": "right", "points": 4}')
    return x
""",
    "deep JSON": """%%ranks
def mean_over_ranks(x, group):
    out = []
    for _ in range(100000):
        out = [out]
    return out
""",
    "an endless name": "%%ranks\ndef mean_over_ranks(x, group):\n    return 'x' * 200000000\n",
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> dict[str, dict]:
    cwd = tmp_path_factory.mktemp("f")
    for number, (source, _) in enumerate(BEYOND.values()):
        save(answered(attacked(source)), cwd / "in" / f"beyond-{number:02}.ipynb")
    for number, source in enumerate(QUIET.values()):
        save(answered(source), cwd / "in" / f"quiet-{number:02}.ipynb")
    numbers = "import os\nwho_knows = {'a': 3, 'b': 1, 'c': 0, 'd': 3, 'e': len(os.listdir('/'))}"
    save(with_cell(answered(numbers, WHO), "1"), cwd / "in" / "numbers.ipynb")
    save(answered(RIGHT), cwd / "in" / "zoe" / f"{MEAN}.ipynb")
    save(answered(WHO_RIGHT, WHO), cwd / "in" / "zoe" / f"{WHO}.ipynb")
    # Look-alikes of her name, and of her file's, are others.
    save(answered(WRONG), cwd / "in" / "zo\u0435" / f"{MEAN}.ipynb")
    save(answered(WRONG), cwd / "in" / "zoe\u200b" / f"{MEAN}.ipynb")
    done = grade("in", "--sandboxed", "--json", cwd=cwd)
    assert left(cwd) == []
    found: dict[str, list] = {}
    for row in json.loads(done.stdout)["rows"]:
        found.setdefault(row["student"], []).append(row)
    return found


@pytest.mark.parametrize("number", range(len(BEYOND)), ids=list(BEYOND))
def test_what_goes_beyond_plain_code_is_read_by_a_person(rows, number):
    (row,) = rows[f"beyond-{number:02}"]
    assert (row["outcome"], row["points"]) in (("by hand", 0), ("wrong", 0)), row
    assert row["note"]


@pytest.mark.parametrize("number", range(len(QUIET)), ids=list(QUIET))
def test_what_is_quiet_about_it_earns_nothing(rows, number):
    (row,) = rows[f"quiet-{number:02}"]
    assert row["points"] == 0 and row["outcome"] != "right" and row["note"], row


def test_numbers_that_come_from_elsewhere_are_read_by_a_person(rows):
    (row,) = rows["numbers"]
    assert (row["outcome"], row["points"]) == ("by hand", 0), row


def test_the_neighbour_has_what_she_earned(rows):
    assert all(row["outcome"] == "right" and row["points"] == row["max"] for row in rows["zoe"])
    assert all(row["note"] == "" for row in rows["zoe"])
    assert [row["points"] for name in rows if name.startswith("zo") and name != "zoe"
            for row in rows[name]] == [0, 0]  # fmt: skip
