"""Every command that README.md, CONTRIBUTING.md and docs/ show runs as written in a fresh clone.

`make test` runs the quick ones, `make test-all` all.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import typer

from course_classroom.cli import app
from tests.course_classroom.cli.documented import FILES, LLAMA, ROOT, Shown, clone, run, shown
from tests.course_lib.checkpoint.deepspeed_parts import made, write
from tests.house.toy import wheel
from tools.bootstrap.__main__ import TARGETS

pytestmark = pytest.mark.own_ranks("documented commands start their own ranks")

INSTALLS = "installs an environment with pip; tests/house/test_bootstrap.py run make in toy clones"
ANOTHER = "on another machine, or as its root"
GPU = "takes GPUs, or half an hour; tests/house/test_accept_*.py rehearse it"
LAB = "serves JupyterLab until it is ended; tests/course_classroom/workspace/test_lab.py starts it"
NETWORK = "asks the network"
OPTION = "names an option in a sentence, without the others of its call"
NBGRADER = (
    "another program's, on its own clone; tests/course_classroom/grading/test_stock.py runs it"
)
# Not run, and why.
NOT_RUN = {
    "git clone ADDRESS course": NETWORK,
    "git clone https://… course && cd course": NETWORK,
    "git clone https://… ~/grading": NETWORK,
    "cd course": "the clone has another name here",
    "make lab": LAB,
    'make lab LAB_ARGS="--no-browser"': LAB,
    'make lab LAB_ARGS="--no-browser --port 9000"': LAB,
    'cd /srv/course && make lab LAB_ARGS="--no-browser"': LAB,
    "COURSE_WORK=~/my-course make lab": LAB,
    "COURSE_WORK=~/work-ana make lab": LAB,
    "COURSE_VENV=$CONDA_PREFIX make lab": LAB,
    "make lab COURSE_VENV=/its/folder": LAB,
    "make lab HASHES=hashes.txt": LAB,
    "make lab PYTHON=python3.12": LAB,
    "make lab TORCH_INDEX_URL=https://...": LAB,
    "make setup": INSTALLS,
    "make setup HASHES=hashes.txt": INSTALLS,
    "sudo make setup": INSTALLS,
    "sudo make setup PYTHON=/usr/bin/python3": INSTALLS,
    "make test": "would run itself",
    ".venv/bin/python -m pytest -n 2 tests/house": "`make test` runs them",
    "COURSE_VENV=/path make test": "would run itself",
    "make test-all": "would run itself",
    "make mutants": "takes most of an hour; a nightly job of its own runs it",
    "make accept-gpu": GPU,
    'make accept-gpu ACCEPT_ARGS="--one-gpu"': GPU,
    "conda env create -f environment.yml": NETWORK,
    ".venv/bin/pip install -c constraints.txt triton": NETWORK,
    ".venv/bin/pip install uv && PATH=.venv/bin:$PATH python -m tools.pins": NETWORK,
    ".venv/bin/pip download -d wheels -c constraints.txt "
    "'.[classroom,deepspeed,huggingface,bench,dev]'": NETWORK,
    ".venv/bin/torchrun --nnodes 2 --node-rank 0 --nproc-per-node 8 --master-addr host-a "
    "--master-port 29500 -m course_lib.train --tp 8 --out /shared/run": "takes two hosts; "
    "tests/course_lib/peers/nodes/test_two_hosts.py has two",
    "srun .venv/bin/python -m course_lib.train --tp 8 --stage 1 --steps 200 --out /shared/run":
        "takes SLURM; tests/course_lib/peers/launchers/test_slurm.py runs what srun starts",
    "rsync -a ../learners/ node:learners/": ANOTHER,
    "rsync -a --delete --exclude=/.venv --exclude=/work --exclude='*.egg-info' learners-2/ "
    "/srv/course/": ANOTHER,
    "sudo mv ~/learners /srv/course && sudo chown -R root: /srv/course": ANOTHER,
    "cd /srv/course": ANOTHER,
    "cd ~/grading": NBGRADER,
    "sudo chmod -R a+rX,go-w /srv/course": ANOTHER,
    "sudo -E /opt/tljh/user/bin/python -m pip install -c constraints.txt "
    "'.[classroom,deepspeed,huggingface]'": ANOTHER,
    "nbgrader generate_assignment 01_collectives": NBGRADER,
    "nbgrader autograde 01_collectives": NBGRADER,
    "nbgrader generate_feedback 01_collectives": NBGRADER,
    "nbgrader export --to nbgrader.csv": NBGRADER,
    "course plan --emit torchrun": OPTION,
    "course bench scale": "runs with --plot, below",
    "course plan --calibrate": OPTION,
    "course status --all": OPTION,
    "course status --all /home": "looks through the homes of this machine",
    'for home in /home/*; do name=$(basename "$home"); mkdir -p submitted/"$name"; cp -r '
    '"$home"/course-work/exercises/01_collectives submitted/"$name"/ 2>/dev/null; done':
        "copies out of the homes of this machine",
    "COURSE=/srv/course SUBMISSIONS=$PWD/submitted RESULTS=$PWD/results; mkdir -p \"$RESULTS\"":
        ANOTHER,
    "course bench plan --set ranks=N": "N stands for a number",
    "course bench NAME": "NAME stands for a benchmark",
    "course grade --json": OPTION,
}  # fmt: skip
# Not run either: they take bubblewrap or podman, and /srv/course.
SANDBOXES = ("bwrap --unshare-all", "podman run --rm")
SHORT = "--runs 1 --set layers=1 --set ranks=2 --limit 60"
# Run in a smaller form, as their 200 steps or many runs take minutes: what is added.
SMALL = {
    ".venv/bin/course train --ranks 2 --tp 2 --steps 200 --out runs/first": "--steps 3",
    ".venv/bin/course train --ranks 4 --tp 2 --stage 3 --offload cpu --precision bfloat16 --plot":
        "--steps 3",
    ".venv/bin/torchrun --standalone --nproc-per-node 8 -m course_lib.train --tp 4 --stage 2 "
    "--steps 200": "--steps 3",
    ".venv/bin/course bench scale --plot scaling.png": SHORT,
    "course bench scale --plot scaling.png": SHORT,
    "course bench classroom": "--runs 1",
    "course bench loss": "--runs 1 --set tokens=64 --set vocabulary=6000",
    "course bench tp": SHORT,
}  # fmt: skip
# Exit code 1 is no failure of these: they report a finding.
FINDS = {
    ".venv/bin/course doctor": "what this machine lacks",
    "course doctor": "what this machine lacks",
    "course doctor --json": "what this machine lacks",
    "course bench tp": "a peer that is not installed",
    "course bench loss": "a peer that is not installed",
    "course bench scale --plot scaling.png": "a way that took too long",
    ".venv/bin/course bench scale --plot scaling.png": "a way that took too long",
}
QUICK = (".venv/bin/course status",)
SHOWN = [one for one in shown() if not one.named]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory) -> Path:
    """A fresh clone with the files of a reader's own that the commands name."""
    folder = clone(tmp_path_factory.mktemp("documented") / "course")
    (folder / "args.json").write_text('{"learning_rate": 1e-4, "max_steps": 10}')
    settings = {
        "train_batch_size": "auto",
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 0},
    }
    (folder / "ds_config.json").write_text(json.dumps(settings))
    write(folder / "checkpoint-500", 2, 2, made({"model.norm.weight": (8,)}))
    exercise = "01_collectives/ring_bytes.ipynb"
    (folder / "submitted" / "ana" / "01_collectives").mkdir(parents=True)
    shutil.copy(folder / "exercises" / exercise, folder / "submitted" / "ana" / exercise)
    (folder / "wheels").mkdir()
    wheel(folder / "wheels", "torch", "2.13.0")
    home = folder.parent / "home"
    home.mkdir()
    done = run(Shown("", ""), "course lab --prepare", folder, home, 120)
    assert done.returncode == 0, done.stderr
    return folder


def fault(command: Shown, folder: Path) -> str:
    """What went wrong when the command was run; nothing, if nothing did."""
    added = SMALL.get(command.text, "")
    page = (ROOT / command.page).read_text()
    own = re.findall(r"```json\n(\{\"model_type.*?)```", page, re.DOTALL)
    (folder / "config.json").write_text(own[0] if own else json.dumps(LLAMA))
    done = run(command, f"{command.text} {added}", folder, folder.parent / "home", 600)
    good = (0, 1) if command.text in FINDS else (0,)
    if done.returncode not in good or "Traceback" in done.stderr:
        return f"{command.page}: {command.text} {added}: {done.returncode}\n{done.stderr[-2000:]}"
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    lost = [x for x in command.output.splitlines() if " ".join(x.split()) not in lines]
    return f"{command.page}: {command.text} does not print {lost}" if lost else ""


def not_run(command: Shown) -> bool:
    return command.text in NOT_RUN or command.text.startswith(SANDBOXES)


def is_quick(command: Shown) -> bool:
    return bool(command.output) or command.text in QUICK


def all_faults(commands: list[Shown], folder: Path) -> list[str]:
    once: dict[str, Shown] = {}
    for one in commands:
        if not not_run(one):
            once.setdefault(one.text.removeprefix(".venv/bin/"), one)
    return list(filter(None, (fault(one, folder) for one in once.values())))


def test_the_quick_ones_run_as_written(fresh):
    chosen = [one for one in SHOWN if is_quick(one)]
    assert len(chosen) == len(QUICK) + 5
    faults = all_faults(chosen, fresh)
    assert not faults, "\n\n".join(faults)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_all_run_as_written(fresh):
    faults = all_faults([one for one in SHOWN if not is_quick(one)], fresh)
    assert not faults, "\n\n".join(faults)


def test_what_is_not_run_is_still_shown():
    texts = {one.text for one in SHOWN}
    for stated in (NOT_RUN, SMALL, FINDS):
        assert not stated.keys() - texts
    assert not SMALL.keys() & NOT_RUN.keys()
    assert all(any(text.startswith(one) for text in texts) for one in SANDBOXES)
    pages = "".join((ROOT / page).read_text() for page in {one.page for one in shown()})
    assert [first for first in FILES if f"```\n{first}\n" not in pages] == []


def test_commands_that_are_named_in_sentences_are_there():
    commands = typer.main.get_command(app).commands
    for one in shown():
        if one.named:
            program, name = one.text.split()
            assert name in (commands if program == "course" else {"help", "clean", *TARGETS}), one
