"""The workflows of GitHub, held against what they rely on: Pythons, targets, files, bounds.

They run elsewhere; what can go wrong in them without a run is found here.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.accept_gpu.stages import stages
from tools.bootstrap import __main__ as bootstrap

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".github" / "workflows"
FILES = sorted(FOLDER.glob("*.yml"))


def read(name: str) -> dict[str, Any]:
    told = yaml.safe_load((FOLDER / name).read_text())
    told["on"] = told.pop(True)  # YAML 1.1 reads the word `on` as a truth
    return told


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_there_are_three() -> None:
    assert [file.name for file in FILES] == ["ci.yml", "gpu.yml", "nightly.yml"]


def test_one_python_starts_its_ranks_one_by_one() -> None:
    (job,) = read("ci.yml")["jobs"].values()
    matrix = job["strategy"]["matrix"]
    assert matrix["start"] == [""] and [one["start"] for one in matrix["include"]] == ["spawn"]
    assert {one["python"] for one in matrix["include"]} < set(matrix["python"])
    (run,) = [step for step in job["steps"] if "run" in step]
    assert run["env"]["COURSE_START"] == "${{ matrix.start }}"


def test_the_night_runs_what_the_day_leaves_out() -> None:
    told = read("nightly.yml")
    assert told["on"]["schedule"]
    limits = {"whole": ("test-all", 120), "mutants": ("mutants", 60)}
    assert told["jobs"].keys() == limits.keys()
    for name, (target, minutes) in limits.items():
        (run,) = [step for step in told["jobs"][name]["steps"] if "run" in step]
        assert run["run"] == f".ci/run {target}"
        assert told["jobs"][name]["timeout-minutes"] >= minutes


def test_ci_runs_on_every_python_that_the_course_claims() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    claimed = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    (job,) = read("ci.yml")["jobs"].values()
    assert job["strategy"]["matrix"]["python"] == claimed, "as texts: 3.10 is no number"
    assert job["strategy"]["fail-fast"] is False
    (setup,) = [step for step in job["steps"] if "setup-python" in step.get("uses", "")]
    assert setup["with"]["python-version"] == "${{ matrix.python }}"
    assert setup["with"]["cache"] == "pip"
    for file in setup["with"]["cache-dependency-path"].split():
        assert (ROOT / file).is_file()
    (run,) = [step for step in job["steps"] if "run" in step]
    assert run["run"] == ".ci/run" and os.access(ROOT / ".ci" / "run", os.X_OK)
    assert run["env"]["PYTHON"] == f"${{{{ steps.{setup['id']}.outputs.python-path }}}}"


def test_ci_starts_by_itself_and_a_newer_push_ends_the_older() -> None:
    told = read("ci.yml")
    assert set(told["on"]) == {"push", "pull_request", "workflow_dispatch"}
    assert "github.ref" in told["concurrency"]["group"]
    assert "pull_request" in told["concurrency"]["cancel-in-progress"]


def test_the_gpu_job_is_asked_for_and_never_runs_a_forks_code() -> None:
    told = read("gpu.yml")
    assert told["on"] == {"workflow_dispatch": None, "pull_request": {"types": ["labeled"]}}
    (job,) = told["jobs"].values()
    assert job["runs-on"] == ["self-hosted", "gpu"]
    asked = " ".join(job["if"].split())
    assert asked == (
        "github.event_name == 'workflow_dispatch' || (github.event.label.name == 'gpu' && "
        "github.event.pull_request.head.repo.full_name == github.repository)"
    )
    assert job["concurrency"] == {"group": "gpu", "cancel-in-progress": False}
    assert "concurrency" not in told, "any other label would push a waiting run out"


def test_the_gpu_job_brings_its_verdict_home_whatever_it_is() -> None:
    _, accept, upload = steps(read("gpu.yml"))
    assert accept["run"] == "make accept-gpu"
    assert accept["env"]["ACCEPT_ARGS"] == f"--out {upload['with']['path']}"
    assert upload["if"] == "always()" and upload["with"]["if-no-files-found"] == "error"


def test_the_gpu_job_outlives_the_limits_of_its_stages() -> None:
    (job,) = read("gpu.yml")["jobs"].values()
    setting_up = 15
    limits = sum(stage.limit for stage in stages(8)) / 60
    assert limits + setting_up <= job["timeout-minutes"] < 6 * 60, "GitHub's own bound is 6 hours"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_workflow_keeps_the_rules(file: Path) -> None:
    told = read(file.name)
    assert told["permissions"] == {"contents": "read"}
    for job in told["jobs"].values():
        assert (job.get("concurrency") or told["concurrency"])["group"]
        assert 0 < job["timeout-minutes"] <= 275 and "permissions" not in job
    for step in steps(told):
        assert ("uses" in step) != ("run" in step)
        if "uses" in step:
            assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"]), (
                "no tag: it can move"
            )
        if "checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False
    for line in re.findall(r"uses: .*", file.read_text()):
        assert re.search(r"@[0-9a-f]{40}  # v\d+\.\d+\.\d+$", line), "a reader sees the version"
    for target in re.findall(r"\bmake ([a-z-]+)", file.read_text()):
        assert target in bootstrap.TARGETS, f"there is no make {target}"
    # What somebody else can write (a title, a branch's name) must not become a command.
    for step in steps(told):
        assert "${{" not in step.get("run", "")


def test_one_action_is_the_same_commit_in_every_workflow() -> None:
    used = {line for file in FILES for line in re.findall(r"uses: (\S+@\S+)", file.read_text())}
    names = [line.partition("@")[0] for line in used]
    assert len(names) == len(set(names)), sorted(used)
