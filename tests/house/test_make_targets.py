"""What the targets run, in which variables, and that their exit code is honest.

Nothing is run here: the commands are written down instead.
"""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tools.bootstrap import __main__ as bootstrap
from tools.bootstrap import tasks
from tools.bootstrap.environment import Environment

ROOT = Path(__file__).resolve().parents[2]


class Recorder:
    """Stands in for running a command; answers with the codes it was given, then 0."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.calls: list[tuple[list[str], dict[str, str]]] = []
        self.folders_stood: list[bool] = []

    def __call__(self, command: list[str], root: Path, variables: dict[str, str]) -> int:
        self.calls.append((command[1:], variables))
        self.folders_stood.append(Path(variables.get("IPYTHONDIR", "/")).is_dir())
        return self.codes.pop(0) if self.codes else 0


PYTEST = "pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder"
PYTEST += " --durations=15 --durations-min=5"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """An environment in a folder that holds one lesson and one solution."""
    for name in ("notebooks/01_a.ipynb", "solutions/01/b.ipynb"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("{}")
    for name in ("IPYTHONDIR", "WORLD_SIZE", "PYTEST_ARGS", "BENCH_ARGS"):
        monkeypatch.delenv(name, raising=False)
    return Environment(tmp_path / ".venv", tmp_path / ".venv" / "bin" / "python", True)


def ran(record: Recorder) -> list[str]:
    return [" ".join(command[1:]) for command, _ in record.calls]


def test_make_test(here: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere/else")
    monkeypatch.setenv("MPLBACKEND", "untouched")
    record = Recorder()
    monkeypatch.setattr(tasks, "_run", record)
    assert tasks.test(here.folder.parent, here) == 0
    assert ran(record)[:3] == ["ruff format --check .", "ruff check .", PYTEST]
    strict = ran(record)[3]
    assert strict.startswith("pytest --nbval --nbval-current-env")
    assert strict.endswith("--dist loadfile notebooks solutions")
    variables = record.calls[3][1]
    assert variables["WORLD_SIZE"] == "2"
    assert variables["MPLBACKEND"] == "untouched"
    assert "PYTHONPATH" not in variables
    assert variables["PATH"].startswith(str(here.python.parent))
    assert record.folders_stood[3], "IPYTHONDIR stands while the notebooks run ..."
    assert not Path(variables["IPYTHONDIR"]).exists(), "... and is gone afterwards"
    assert len(record.calls) == 4


@pytest.mark.parametrize("failing", [0, 1, 2, 3])
def test_one_failure_fails_the_whole_and_stops_nothing(
    failing: int, here: Environment, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    record = Recorder(*[0] * failing, 3)
    monkeypatch.setattr(tasks, "_run", record)
    assert tasks.test(here.folder.parent, here) == 1
    assert len(record.calls) == 4, "one run tells all"
    names = ["ruff format", "ruff check", "pytest", "notebooks at world 2"]
    assert capsys.readouterr().err.strip() == f"[course] not green: {names[failing]}"


def test_no_test_found_is_a_failure(
    here: Environment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tasks, "_run", Recorder(0, 0, 5))
    assert tasks.test(here.folder.parent, here) == 1
    assert "pytest                 FAILED, no test was found" in capsys.readouterr().out


def test_make_test_all(here: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Recorder()
    monkeypatch.setattr(tasks, "_run", record)
    assert tasks.test_all(here.folder.parent, here) == 0
    assert ran(record)[2] == f"{PYTEST} -m ", "the slow marks too"
    modes = [(command[2], variables["WORLD_SIZE"]) for command, variables in record.calls[3:]]
    assert modes == [("--nbval", "2"), *(("--nbval-lax", n) for n in "134")]


def test_the_other_targets(here: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Recorder(0, 4, 0, 7)
    monkeypatch.setattr(tasks, "_run", record)
    monkeypatch.setenv("BENCH_ARGS", "tp --json")
    monkeypatch.setenv("ACCEPT_ARGS", "--rehearse --out 'a file.json'")
    root, targets = here.folder.parent, (tasks.notebooks, tasks.exercises, tasks.bench)
    codes = [one(root, here) for one in (*targets, tasks.accept_gpu)]
    assert codes == [0, 4, 0, 7], "the command's own exit code"
    assert record.calls[0][0][2:] == ["notebooks"]
    assert record.calls[1][0][2:] == ["release"]
    assert record.calls[2][0][2:] == ["bench", "tp", "--json"]
    assert record.calls[3][0][1:] == ["tools.accept_gpu", "--rehearse", "--out", "a file.json"]


def test_a_shared_environment_finds_the_course_by_path(here: Environment) -> None:
    shared = here._replace(ours=False)
    assert tasks.child_environment(ROOT, shared)["PYTHONPATH"] == str(ROOT)


def test_every_target_of_the_makefile_is_one_of_the_bootstrap() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    assert set(phony[1].split()) == {*bootstrap.TARGETS, "clean", "help"}
    for target in phony[1].split():
        assert target == "help" or f"make {target} " in bootstrap.HELP
    wanted = {"lab", "test", "setup", "notebooks", "exercises", "test-all", "mutants", "bench"}
    assert wanted <= set(bootstrap.TARGETS)


def test_an_unknown_target_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert bootstrap.main(["tset"]) == 2
    assert "no such target: tset" in capsys.readouterr().err
    assert bootstrap.main(["help"]) == 0


def test_the_bootstrap_is_read_by_an_old_python() -> None:
    for file in sorted((ROOT / "tools" / "bootstrap").glob("*.py")):
        tree = ast.parse(file.read_text(), feature_version=(3, 8))
        imported = {
            name.split(".")[0]
            for node in ast.walk(tree)
            for name in (
                [one.name for one in node.names]
                if isinstance(node, ast.Import)
                else [node.module]
                if isinstance(node, ast.ImportFrom) and not node.level
                else []
            )
        }
        foreign = imported & {"torch", "packaging", "rich", "psutil", "typer", "tomllib", "numpy"}
        assert not foreign, f"{file.name} needs {foreign}, which a fresh clone has not"


def test_ci_runs_the_readmes_command_and_keeps_its_exit_code(tmp_path: Path) -> None:
    """.ci/run in a clone whose `make test` fails, on a machine that lacks nothing."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_text((ROOT / ".ci" / "run").read_text())
    (tmp_path / "Makefile").write_text("test:\n\t@echo making the test; exit 3\n")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("g++", "chromium", "apt-get"):
        (tools / name).write_text("#!/bin/sh\necho called $0 $@ >&2\nexit 1\n")
        (tools / name).chmod(0o755)
    done = subprocess.run(
        ["bash", ".ci/run"], cwd=tmp_path, stdin=subprocess.DEVNULL, text=True, timeout=60,
        env={"PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True, check=False,
    )  # fmt: skip
    assert "making the test" in done.stdout, done.stderr
    assert done.returncode == 2, "make's own code for a failed recipe"
