"""Notebooks that must fail, each for its own reason; and the one that must pass.

A canary that passes means that CI would be green on a notebook that is broken in the same way.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.commands import ROOT

CANARIES = ROOT / "tests/notebooks/canaries"
CELL_TIMEOUT = "4"  # seconds, for the notebooks that hang

REFUSED = {  # before anything runs
    "shell_command": r"cell 0: runs a shell command \(`false`\)",
    "shell_cell": r"cell 0: runs a shell by %%bash",
    "unknown_line_magic": r"cell 0: uses %no_such_magic; .* only config, load_ext, matplotlib",
    "unknown_cell_magic": r"cell 0: uses %%no_such_magic",
    "magic_inside_ranks": r"cell 0: runs a shell command \(`false`\)",
    "magic_by_a_variable": r"cell 0: calls a magic by a name that only the run knows",
    "never_executed": r"cell 0: was never executed",
}
FAILS = {  # in its first cell
    "exception": r"ValueError.*plain to see",
    "magic_made_at_run_time": r"cell was not run: UsageError: Line magic .*no_such_magic",
    "thread_raises": r"worker ended with an exception that no cell sees: ValueError: lost",
    "program_fails": r"SystemExit\(3\).* ended with 3 and nothing was raised",
    "program_in_the_background_fails": r"SystemExit\(4\).* ended with 4 and nothing was raised",
    "output_differs": r"Cell outputs differ",
    "hang": r"Timeout of 4 seconds exceeded",
    "hang_that_looks_green": r"ran past nbval's timeout of 4 s and swallowed the interrupt",
    "missing_exception": r"was expected to raise an exception, and raised none",
}
RANKS = {  # by cell: what happens to ranks must fail in the notebook too, and fast
    2: r"rank 1 raised ValueError: on one rank only",
    3: r"rank 0 waited in all_reduce.*for rank 1",
    4: r"disagree about a collective: rank 0 calls all_reduce\(max\).* all_reduce\(sum\)",
    5: r"rank 1 was killed by SIGKILL",
}


@dataclass(frozen=True)
class Run:
    """One run of pytest over canaries: exit code, cells by notebook, refusals by notebook."""

    code: int
    cells: dict[str, list[tuple[str, str]]]  # (outcome, its words)
    refused: dict[str, str]


def nbval(folder: Path, *more: str, names: set[str], timeout: str = CELL_TIMEOUT) -> Run:
    file = folder / "outcomes.json"
    command = [
        *(sys.executable, "-m", "pytest", "-q", "--nbval", "--nbval-current-env"),
        *("--nbval-cell-timeout", timeout, "--continue-on-collection-errors"),
        *("-p", "no:cacheprovider", "-p", "tests.support.outcomes", "--color=no", *more),
    ]
    ended = subprocess.run(
        [*command, *(str(CANARIES / f"{name}.ipynb") for name in sorted(names))],
        cwd=ROOT,
        env={
            **{key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")},
            "IPYTHONDIR": str(folder / "ipython"),
            "OUTCOMES_FILE": str(file),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "WORLD_SIZE": "2",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert file.exists(), ended.stdout + ended.stderr
    told = json.loads(file.read_text())
    cells: dict[str, list[tuple[str, str]]] = {name: [] for name in names}
    for node, how, words in told["outcomes"]:
        cells[Path(node.split("::")[0]).stem].append((how, words))
    return Run(ended.returncode, cells, {Path(node).stem: why for node, why in told["uncollected"]})


@pytest.fixture(scope="module")
def canaries(tmp_path_factory):
    return nbval(tmp_path_factory.mktemp("canaries"), names={*REFUSED, *FAILS, "healthy"})


def test_every_canary_has_its_reason():
    found = {path.stem for path in CANARIES.glob("*.ipynb")}
    assert found == {*REFUSED, *FAILS, "healthy", "ranks"}


def test_the_run_is_red(canaries):
    assert canaries.code not in (0, 5)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused_before_it_runs(canaries, name):
    assert re.search(REFUSED[name], canaries.refused[name], re.DOTALL)
    assert canaries.cells[name] == []


@pytest.mark.parametrize("name", sorted(FAILS))
def test_fails_for_its_own_reason(canaries, name):
    assert name not in canaries.refused
    (how, words), *others = canaries.cells[name]
    assert how == "failed"
    assert re.search(FAILS[name], plain(words), re.DOTALL), words
    if name.startswith("hang"):
        assert all(how == "failed" for how, _ in others)
        assert all("was not run: a cell before it ran past" in words for _, words in others)
    else:  # the rest of the notebook is judged by itself
        assert {how for how, _ in others} == {"passed"}
    assert others


def plain(words):
    return re.sub(r"\x1b\[[0-9;]*m", "", words)


def test_the_healthy_one_passes(canaries):
    assert "healthy" not in canaries.refused
    assert [how for how, _ in canaries.cells["healthy"]] == ["passed"] * 5


@pytest.mark.slow
def test_what_happens_on_ranks_fails_in_the_notebook(tmp_path):
    run = nbval(tmp_path, names={"ranks"}, timeout="100")
    cells = run.cells["ranks"]
    failed = [number for number, (how, _) in enumerate(cells) if how == "failed"]
    assert failed == list(RANKS), cells
    for number, reason in RANKS.items():
        assert re.search(reason, plain(cells[number][1]), re.DOTALL), cells[number][1]
    assert cells[-1][0] == "passed"  # the ranks are there again, and talk
