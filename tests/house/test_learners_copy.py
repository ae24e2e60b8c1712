"""make in a learner's copy: what learners type works, and the rest says in a line why it cannot."""

from __future__ import annotations

import pytest

from tests.house.toy import Toy
from tools.bootstrap import __main__ as bootstrap
from tools.bootstrap.learners_copy import FOR_AUTHORS, MARK


@pytest.mark.parametrize("target", FOR_AUTHORS)
def test_a_target_for_authors_says_what_to_run_instead(toy: Toy, target: str) -> None:
    (toy.root / MARK).touch()
    done = toy.make(target)
    assert done.returncode == 2
    said = [line for line in done.stdout.splitlines() if not line.startswith("make: ***")]
    assert len(said) == 1, done.stdout
    assert f"learner's copy of the course, without tests and solutions: `make {target}`" in said[0]
    assert "`make lab`" in said[0] and "check 01" in said[0]
    assert not toy.venv.exists(), "nothing is installed for it"


def test_what_a_learner_types_works_there(ready: Toy) -> None:
    (ready.root / MARK).touch()
    for target, said in {"setup": "ready: ", "lab": "course lab", "bench": "course bench"}.items():
        done = ready.make(target)
        assert done.returncode == 0 and said in done.stdout, done.stdout


def test_help_lists_what_there_is(toy: Toy) -> None:
    whole = toy.make("help").stdout
    assert whole == f"{bootstrap.HELP}\n"
    (toy.root / MARK).touch()
    left = toy.make("help").stdout.splitlines()
    gone = [line for line in whole.splitlines() if line not in left]
    assert {line.split()[1] for line in gone} == set(FOR_AUTHORS)
    assert len(gone) == len(FOR_AUTHORS)


def test_the_targets_for_authors_are_targets() -> None:
    assert set(FOR_AUTHORS) < set(bootstrap.TARGETS)
