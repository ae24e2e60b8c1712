"""The registry of mistakes is sound, and its runner is honest. `make mutants` runs the registry."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections import Counter

import pytest

from tests.mutants import MUTANTS
from tests.mutants.__main__ import main
from tests.support.commands import ROOT
from tests.support.mutation import Mutant, run_all

TRAPS = [f"T{number}" for number in range(1, 37)]


def test_every_entry_is_sound():
    assert [fault for mutant in MUTANTS for fault in mutant.faults(ROOT)] == []
    assert [mutant.id for mutant in MUTANTS if not mutant.why] == []


def test_every_trap_has_a_mutant():
    assert {mutant.trap for mutant in MUTANTS} - {None} == set(TRAPS)


def test_every_mutant_has_a_name_of_its_own():
    assert [name for name, times in Counter(one.id for one in MUTANTS).items() if times > 1] == []


@pytest.mark.slow
def test_every_test_that_a_mutant_names_is_there_with_its_parameters():
    """One that is not ends the run in which all tests are shown to pass without a mistake."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "", "tests"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200).stdout
    there = {line for line in listed.splitlines() if "::" in line}
    assert len(there) > len(MUTANTS)
    there |= {one.split("[")[0] for one in there}
    there |= {one.rpartition("::")[0] for one in there}  # a file, or a class
    assert [(one.id, test) for one in MUTANTS for test in one.tests if test not in there] == []


# --- the runner, on a toy course -----------------------------------------------------------------


@pytest.fixture
def toy(tmp_path):
    support = tmp_path / "tests" / "support"
    support.mkdir(parents=True)
    (tmp_path / "course_lib").mkdir()
    (support / "outcomes.py").write_text((ROOT / "tests/support/outcomes.py").read_text())
    (tmp_path / "course_lib" / "__init__.py").write_text("")
    (tmp_path / "course_lib" / "sums.py").write_text(
        textwrap.dedent(
            """
            def add(a, b):
                return a + b

            def unused():
                return 1
            """
        )
    )
    (tmp_path / "tests" / "test_sums.py").write_text(
        textwrap.dedent(
            """
            import pytest
            from course_lib.sums import add

            @pytest.mark.parametrize("a", [0, 1])
            def test_add(a):
                assert add(a, 2) == a + 2

            def test_commutes():
                assert add(2, 3) == add(3, 2)

            @pytest.fixture
            def broken():
                assert add(1, 1) == 2

            def test_behind_a_fixture(broken):
                pass

            def test_never_passes():
                assert False
            """
        )
    )
    return tmp_path


def verdict_of(toy, old, new, *tests):
    tests = tuple(f"tests/test_sums.py::{test}" for test in tests)
    (verdict,) = run_all([Mutant("toy", "course_lib/sums.py", old, new, tests, "toy")], toy, jobs=1)
    assert "a + b" in (toy / "course_lib" / "sums.py").read_text()
    return verdict


def test_a_mistake_that_is_noticed_is_killed(toy):
    assert verdict_of(toy, "a + b", "a - b", "test_add[1]", "test_commutes").killed


@pytest.mark.parametrize(
    ("old", "new", "tests", "says"),
    [
        (
            "a + b",
            "a + b + 1",
            ["test_add", "test_commutes"],
            "not noticed by tests/test_sums.py::test_commutes",
        ),
        ("def add(", "def sub(", ["test_add"], "nothing could be collected"),
        ("a + b", "a - b", ["test_behind_a_fixture"], "not noticed by"),
        ("a + b", "a - b", ["test_never_passes"], "without the mistake not passed"),
        ("a + b", "a - b", ["test_add[2]"], "without the mistake not passed"),
    ],
    ids=["missed", "no import", "a fixture", "fails anyway", "no such parameter"],
)
def test_what_proves_nothing_lets_the_mistake_live(toy, old, new, tests, says):
    verdict = verdict_of(toy, old, new, *tests)
    assert not verdict.killed
    assert says in verdict.said


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"old": "a * b"}, "is 0 times in"),
        ({"old": "return "}, "is 2 times in"),
        ({"new": "a +"}, "invalid syntax"),
        ({"new": "a + b"}, "old and new are the same"),
        ({"path": "course_lib/none.py"}, "No such file"),
        ({"tests": ("tests/test_sums.py::test_none",)}, "there is no test"),
        ({"tests": ("tests/test_none.py",)}, "there is no test"),
        ({"tests": ()}, "names no test"),
    ],
)
def test_faults_of_an_entry_are_found_without_running(toy, changes, fault):
    good = {
        "id": "toy",
        "path": "course_lib/sums.py",
        "old": "a + b",
        "new": "a - b",
        "tests": ("tests/test_sums.py::test_add[1]",),
        "why": "toy",
    }
    assert Mutant(**good).faults(toy) == []
    (said,) = Mutant(**{**good, **changes}).faults(toy)
    assert fault in said


def test_the_command(capsys):
    assert main(["--list", "--id", "ranks-mesh"]) == 0
    listed = capsys.readouterr().out
    assert "ranks-mesh-transposed" in listed
    assert "verbs-" not in listed
    with pytest.raises(SystemExit):
        main(["--id", "no-such-mutant"])
