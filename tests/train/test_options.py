"""What a run can be told: every wrong call is one line that names cause and remedy, and exit 2."""

from __future__ import annotations

import json
import os

import pytest

from course_lib.train import entry, launch
from course_lib.train.checkpoints import FORM
from course_lib.train.options import Options, Refused, as_dict, checked, given
from course_lib.train.setup import settled

WRONG = {
    "not an option": (["--hiden", "3"], 1, "there is no option --hiden; did you mean --hidden?"),
    "a word of its own": (["extra"], 1, "there is no option extra"),
    "no number": (["--lr", "fast"], 1, "--lr: invalid float value: 'fast'"),
    "not finite": (["--lr", "nan"], 1, "--lr nan has to be 0.0 or more"),
    "below its bound": (["--rows", "0"], 1, "--rows 0 has to be 1 or more"),
    "no time": (["--timeout", "0"], 1, "--timeout 0.0 has to be above 0"),
    "no family": (["--family", "bert"], 1, "invalid choice: 'bert'"),
    "ranks left over": (["--tp", "2"], 3, "--tp 2 does not divide the 3 rank(s)"),
    "more than there are": (["--tp", "4"], 2, "take one of 1, 2, or start another number"),
    "heads that do not divide": (["--hidden", "30"], 1, "hidden=30 does not divide into heads=4"),
    "more ranks than heads": (["--tp", "8"], 8, "--tp 8: 4 heads cannot be spread over 8 ranks"),
    "kv heads that cannot be shared": (
        ["--family", "llama", "--hidden", "48", "--heads", "12", "--kv-heads", "3", "--tp", "4"],
        4, "--tp 4: 3 key/value heads",
    ),
    "dropout of all": (["--dropout", "1"], 1, "dropout=1.0 has to lie from 0 to below 1"),
    "micro-batches": (["--rows", "8", "--accumulate", "3"], 1, "--rows 8 cannot be cut into"),
    "a replica without rows": (["--rows", "3"], 4, "leave some of the 4 replicas without a row"),
    "nowhere to go on": (["--resume"], 1, "--resume goes on with the run in a folder"),
    "nothing to go on with": (["--resume", "--out", "/nowhere"], 1, "no checkpoint in /nowhere"),
    "a size of a model that has one": (
        ["--from", "x", "--hidden", "8"], 1, "--hidden is a size of a new model",
    ),
    "no such file": (["--config", "/nowhere.json"], 1, "--config /nowhere.json: No such file"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_refused_by_name(name):
    argv, world, text = WRONG[name]
    with pytest.raises(Refused) as caught:
        settled(given(argv), world)
    assert text in str(caught.value)


@pytest.mark.parametrize("name", ["not an option", "ranks left over", "nothing to go on with"])
def test_course_train_says_it_in_a_line_and_starts_nobody(name, capsys, monkeypatch):
    argv, world, text = WRONG[name]
    monkeypatch.setattr(launch, "_Ranks", None)
    assert launch.main([*argv, "--ranks", str(world)]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and text in printed.err and printed.err.count("\n") == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_under_a_launcher_rank_0_alone_says_it(rank, capsys, monkeypatch):
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(entry, "Stop", lambda: None)
    monkeypatch.setattr(entry.time, "sleep", lambda seconds: None)
    for key, value in {"RANK": rank, "WORLD_SIZE": 3, "LOCAL_RANK": rank}.items():
        monkeypatch.setenv(key, str(value))
    entry.run(["--tp", "2"], lambda *_: pytest.fail("it began"))
    printed = capsys.readouterr()
    assert codes == [2] and printed.out == ""
    assert printed.err.count("\n") == (1 if rank == 0 else 0)
    assert "--tp 2 does not divide" in printed.err or rank


@pytest.mark.parametrize("ranks", ["0", "two", "-1"])
def test_a_number_of_ranks_that_is_none(ranks, capsys):
    assert launch.main(["--ranks", ranks]) == 2
    assert "--ranks" in capsys.readouterr().err


def test_help_shows_the_options_and_says_what_torchrun_opens(capsys):
    assert launch.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "listens on all" in text and "--fused-loss" in text and "--ranks" in text


def test_a_file_says_the_same_as_the_line_and_the_line_counts_more(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"hidden": 64, "lr": 1, "pack": False, "kv-heads": 2, "out": "x"}))
    told = given(["--config", str(path), "--hidden", "32"])
    assert told == {"hidden": 32, "lr": 1.0, "pack": False, "kv_heads": 2, "out": "x"}
    assert as_dict(checked({}, 1)) == as_dict(Options())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"hiden": 3}', "no option 'hiden'; did you mean 'hidden'?"),
        ('{"hidden": "3"}', "'hidden' is \"3\", and has to be a whole number"),
        ('{"hidden": 3.5}', "has to be a whole number"),
        ('{"hidden": true}', "has to be a whole number"),
        ('{"sequence": 1}', "'sequence' is 1, and has to be true or false"),
        ('{"lr": null}', "'lr' is null, and has to be a number"),
        ('{"family": "bert"}', "invalid choice: 'bert'"),
        ("[1]", "holds a JSON list"),
        ("{", "is no JSON"),
    ],
)
def test_a_file_that_says_something_wrong_is_refused(tmp_path, text, said):
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(Refused) as caught:
        given(["--config", str(path)])
    assert said in str(caught.value)


def saved(tmp_path, **changed):
    """A run's folder, as far as options look at it."""
    folder = tmp_path / "checkpoints" / "step-000006"
    folder.mkdir(parents=True)
    record = {"form": FORM, "step": 6, "mesh": {"dp": 1, "tp": 2}, "config": {}, "data": {}}
    record["options"] = as_dict(Options(tp=2, lr=0.5, steps=9, out="elsewhere", json=True))
    record |= changed
    (folder / "training.json").write_text(json.dumps(record))
    (tmp_path / "checkpoints" / "latest").write_text("step-000006\n")
    return ["--resume", "--out", str(tmp_path)]


def test_going_on_takes_what_was_typed_then(tmp_path):
    options, (path, record) = settled(given(saved(tmp_path)), 2)
    assert (options.tp, options.lr, options.steps, options.json) == (2, 0.5, 9, False)
    assert path.name == "step-000006" and record["step"] == 6
    again = ["--resume", "--out", str(tmp_path), "--steps", "20", "--lr", "0.5"]
    assert settled(given(again), 2)[0].steps == 20


@pytest.mark.parametrize(
    ("more", "world", "said"),
    [
        (["--hidden", "64"], 2, "--hidden 64 is not what"),
        (["--lr", "0.1"], 2, "was trained with, --lr 0.5"),
        ([], 4, "was written by dp 1 × tp 2 ranks, and this run has dp 2 × tp 2"),
        (["--tp", "1"], 2, "--tp 1 is not what"),
    ],
)
def test_going_on_otherwise_is_refused(tmp_path, more, world, said):
    argv = saved(tmp_path)
    with pytest.raises(Refused) as caught:
        settled(given([*argv, *more]), world)
    assert said in str(caught.value) and "step-000006" in str(caught.value)


def test_beginning_anew_in_the_folder_of_a_run_is_refused(tmp_path):
    saved(tmp_path)
    with pytest.raises(Refused, match="holds a run with checkpoints"):
        settled(given(["--out", str(tmp_path)]), 1)


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"form": 2}, "not a record of this form"), ("latest", "no whole checkpoint is there")],
)
def test_a_record_that_is_not_one_is_an_error(tmp_path, changed, said):
    if changed == "latest":
        argv = saved(tmp_path)
        (tmp_path / "checkpoints" / "latest").write_text("../../elsewhere\n")
    else:
        argv = saved(tmp_path, **changed)
    with pytest.raises(ValueError, match=said):
        settled(given(argv), 2)
