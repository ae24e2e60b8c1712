"""What a run leaves where something goes wrong at its end: never a checkpoint of destroyed weights,
always a sentence with the step, the file and what to do."""

from __future__ import annotations

import errno

import pytest

from course_lib.checkpoint.box_writer import BoxWriter
from course_lib.train import program
from course_lib.train.checks import resolve
from course_lib.train.curve import Curve
from course_lib.train.options import Refused, parse
from course_lib.train.record import Failed
from tests.course_lib.tensor_parallel.parts import said
from tests.course_lib.train.test_layouts import SMALL, Asked, Quiet, trained


def destroyed(me, folder: str, argv: list) -> str:
    wild = [*SMALL, "--tp", "1", "--steps", "1", "--lr", "1e30", "--warmup", "0", *argv]
    return said(Failed, trained, me, wild, folder)


@pytest.mark.parametrize("every", ["1", "50"])
def test_destroyed_weights_are_not_saved(pool, tmp_path, every):
    for message in pool.run(2, destroyed, str(tmp_path / "run"), ["--validate-every", every]):
        assert message.startswith("step 1: the validation loss is nan after this step, and")
        assert "Start a new run with a smaller --lr" in message
    assert not (tmp_path / "run" / "checkpoints").exists()


def full(me, folder: str) -> str:
    """The third line of the curve, and then the second save, meet a full disk."""

    def no_room(*args, **keys):
        raise OSError(errno.ENOSPC, "No space left on device")

    add, write, messages = Curve.add, BoxWriter.put, []
    argv = [*SMALL, "--tp", "1", "--save-every", "2"]
    try:
        Curve.add = lambda self, point: no_room() if point.step == 3 else add(self, point)
        messages.append(said(Failed, trained, me, argv, f"{folder}/a"))
        Curve.add, BoxWriter.put = add, no_room
        messages.append(said(Failed, trained, me, argv, f"{folder}/b"))
    finally:
        Curve.add, BoxWriter.put = add, write
    return messages


def test_a_full_disk_is_said_with_what_is_there_to_go_on_from(pool, tmp_path):
    (messages,) = pool.run(1, full, str(tmp_path))
    saved = tmp_path / "a" / "checkpoints" / "step-000002"
    assert messages[0] == (
        f"step 3: {tmp_path}/a/loss.csv could not be written (No space left on device). "
        f"Free disk space, and continue from {saved} with --resume"
    )
    assert messages[1].startswith("step 2 could not be saved: ")
    assert messages[1].endswith(
        "There is no checkpoint yet; free disk space or name a different --out"
    )
    assert not (tmp_path / "b" / "checkpoints").exists()


class Heard(Quiet):
    def __init__(self):
        self.texts = []

    def say(self, text: str) -> None:
        self.texts.append(text)


def heard(me, folder: str, argv: list) -> list[str]:
    show = Heard()
    options = resolve(parse([*SMALL, "--tp", "1", *argv, "--out", folder]), me.world)
    program.train(options, me, Asked(me, None), show)
    return show.texts


def test_where_there_is_no_validation_it_is_said(pool, tmp_path):
    argv = ["--held-back", "0.0001", "--steps", "1"]
    (texts,) = pool.run(1, heard, str(tmp_path), argv)
    (line,) = [text for text in texts if "no validation loss" in text]
    assert "raise --held-back or --corpus-bytes" in line
    assert not [text for text in texts if text.startswith("validation loss")]


def too_little(me, folder: str) -> str:
    return said(Refused, trained, me, [*SMALL, "--tp", "1", "--rows", "9000"], folder)


def test_too_little_text_is_a_wrong_call(pool, tmp_path):
    for message in pool.run(2, too_little, str(tmp_path / "run")):
        assert message.startswith("the corpus: ") and "--corpus-bytes" in message
