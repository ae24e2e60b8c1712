"""A run's files, damaged in every way: each is a sentence with the file, the cause and what to do,
the same on all ranks, before anything is changed; and what is whole goes on as before."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest

from course_lib.checkpoint import checksums
from course_lib.pretrained.header import CheckpointError
from course_lib.train import record
from course_lib.train.checks import resolve
from course_lib.train.curve import COLUMNS, Curve, CurvePoint, read
from course_lib.train.options import parse
from tests.course_lib.train.conftest import COURSE, STEPS, ended

pytestmark = pytest.mark.own_ranks("those of course train")

BEFORE = "to continue from the previous one, write step-000009 into"


@pytest.fixture
def run(undisturbed, tmp_path) -> Path:
    """A copy of a run with a checkpoint of step 12 and, before it, one of step 9."""
    out = tmp_path / "run"
    shutil.copytree(undisturbed, out)
    earlier = out / "checkpoints" / "step-000009"
    shutil.copytree(out / "checkpoints" / "step-000012", earlier)
    return out


def refused(out: Path) -> str:
    """Why a launcher would not start the ranks."""
    with pytest.raises(CheckpointError) as caught:
        resolve(parse(["--resume", "--out", str(out), "--steps", "13"]), 2)
    return str(caught.value)


def flip(path: Path, at: float = 0.5) -> None:
    raw = bytearray(path.read_bytes())
    raw[int(at * (len(raw) - 1))] ^= 4
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\xff\xfe\x00", "names '��\\x00', which is no complete checkpoint"),
        (b"step-000010\n", "names 'step-000010', which is no complete"),
        (b"x" * 100_000, f"names {'x' * 60!r}, which"),
        (None, "which names the last checkpoint, cannot be read (No such file or directory)"),
        ("folder", "cannot be read (Is a directory)"),
    ],
)
def test_a_latest_that_names_none(run, raw, text):
    latest = run / "checkpoints" / "latest"
    latest.unlink()
    if raw == "folder":
        latest.mkdir()
    elif raw is not None:
        latest.write_bytes(raw)
    message = refused(run)
    assert f"{latest}" in message and text in message
    assert "are complete: step-000009, step-000012. Write the name of one into" in message


def test_a_run_that_has_lost_its_latest_is_not_begun_anew(run):
    (run / "checkpoints" / "latest").unlink()
    with pytest.raises(ValueError, match="holds a run with checkpoints; continue it"):
        resolve(parse(["--out", str(run)]), 2)


def changed(key: str, value: object):
    """A change of training.json: what stands at `a.b` becomes the value, or goes (...)."""

    def change(text: str) -> str:
        told = json.loads(text)
        *path, last = key.split(".")
        inner = told
        for name in path:
            inner = inner[name]
        if value is ...:
            del inner[last]
        else:
            inner[last] = value
        return json.dumps(told, indent=1)

    return change


RECORDS = {
    "cut off": (lambda text: text[:300], "cannot be read as JSON"),
    "another value": (changed("options.lr", 0.5), "or its line in SHA256SUMS is damaged"),
    "another form": (changed("form", 1), "has format 1, but this course_lib reads format 3"),
    "no engine": (changed("engine", ...), "it lacks engine"),
    "another step": (changed("step", 11), "is of step 11, but its folder is step"),
    "an option less": (changed("options.lr", ...), "the options lack lr"),
    "an option more": (changed("options.rate", 1), "the options contain the unknown rate"),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_that_says_something_else(run, name):
    change, text = RECORDS[name]
    path = run / "checkpoints" / "step-000012" / "training.json"
    path.write_text(change(path.read_text()))
    if "damaged" not in text:  # as another release has written it
        own = {path.name: checksums.of_bytes(path.read_bytes())}
        path.with_name(checksums.SUMS).write_text(
            checksums.as_text(checksums.read(path.parent, str) | own)
        )
    message = refused(run)
    assert str(path) in message and text in message and BEFORE in message


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"hidden": ...}, ", config: it lacks hidden"),
        ({"hiden": 24}, ", config: a config has no key 'hiden'"),
        ({"heads": 5}, ", config: hidden=24 does not divide into heads=5"),
    ],
)
def test_a_config_that_is_none(run, config, text):
    path, saved = record.last(run)
    saved["config"] = {k: v for k, v in {**saved["config"], **config}.items() if v is not ...}
    with pytest.raises(CheckpointError) as caught:
        record.config_of(path, saved)
    assert text in str(caught.value) and BEFORE in str(caught.value)


def test_the_sums_are_those_of_sha256sum(undisturbed):
    folder = undisturbed / "checkpoints" / "step-000012"
    lines = (folder / checksums.SUMS).read_text().splitlines()
    inside = sorted(path.name for path in folder.glob("*.json"))
    digests = [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in inside]
    assert lines == [f"{digest}  {name}" for digest, name in zip(digests, inside, strict=True)]


def test_a_damaged_state_ends_a_run_before_it_begins(run):
    """From the command line: one line, exit code 1, and everything as it was."""
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    flip(run / "checkpoints" / "step-000012" / "optimizer.safetensors")
    done = ended(COURSE, "--resume", "--steps", STEPS + 1, "--out", run)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and line.startswith("course train: --resume from")
    assert "optimizer.safetensors is damaged in " in line and BEFORE in line
    after = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    assert {p.name for p in before if before[p] != after.get(p)} == {"optimizer.safetensors"}
    assert before.keys() == after.keys()


def test_a_run_that_has_lost_its_curve_begins_another(run):
    (run / "loss.csv").unlink()
    done = ended(COURSE, "--resume", "--steps", STEPS + 1, "--out", run)
    assert (done.returncode, done.stderr) == (0, "")
    assert "loss.csv has no line up to step 12, so it starts after that" in done.stdout
    assert [point.step for point in read(run / "loss.csv")] == [STEPS + 1]


@pytest.mark.slow
def test_a_finished_run_says_that_it_is_and_how_to_go_on(run):
    done = ended(COURSE, "--resume", "--out", run)
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        f"the run in {run} is finished (it is at step 12 of 12); to continue, set --steps above 12"
        in done.stdout
    )
    assert done.stdout.splitlines()[-1].endswith(f"checkpoint in {run}/checkpoints/step-000012")
    assert "going on" not in done.stdout


POINTS = [CurvePoint(n, 1 / n, 10 * n, 0.1 * n, 1e-3) for n in range(1, 7)]


@pytest.fixture
def curve(tmp_path) -> Path:
    path = tmp_path / "loss.csv"
    made = Curve(path)
    for point in POINTS:
        made.add(point)
    made.close()
    return path


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (b"\n3,", b"\nthree,", "line 4 is not a line of a loss curve ('three,"),
        (b"\n3,", b"\n3,7,", "must be 6 numbers"),
        (b"\n3,", b"\n", "line 4 is not a line of a loss curve ('0.3"),
        (b"\n3,0.3", b"\n3,1e999", "a number is not finite"),
        (b"\n3,", b"\n4,", "line 4, has step 4 after step 2"),
        (b"step,", b"stop,", f"whose first line is {','.join(COLUMNS)}"),
    ],
)
def test_a_damaged_line_of_the_curve_is_named(curve, old, new, text):
    raw = curve.read_bytes()
    curve.write_bytes(raw.replace(old, new, 1))
    harmed = curve.read_bytes()
    for use in (read, lambda path: Curve(path, 6)):
        with pytest.raises(ValueError, match=re.escape(text)) as caught:
            use(curve)
        message = str(caught.value)
        assert str(curve) in message
        assert "restore the file, or move it away and continue with a new curve" in message
    assert curve.read_bytes() == harmed


def test_a_curve_that_is_not_the_checkpoint_s(curve):
    digest = Curve(curve, 6).digest()
    assert Curve(curve, 6, digest).whole
    text = curve.read_text()
    curve.write_text(text.replace("3,0.33", "3,0.34"))
    with pytest.raises(ValueError, match="has changed in the lines up to step 6"):
        Curve(curve, 6, digest)
    curve.write_text("".join(text.splitlines(keepends=True)[:5]))
    with pytest.raises(ValueError, match="ends at step 4, but the checkpoint is of step 6"):
        Curve(curve, 6, digest)
    curve.unlink()
    assert not Curve(curve, 6, digest).whole
    assert read(curve) == []
