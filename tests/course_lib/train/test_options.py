"""What a run can be told: every wrong call is one line that names cause and remedy, and exit 2."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from course_lib.checkpoint import checksums
from course_lib.checkpoint.folder import FORM
from course_lib.estimate.fit import params_of_rank
from course_lib.gpt import Config
from course_lib.pretrained.sketch import without_numbers
from course_lib.train import entry, launch
from course_lib.train.checks import check, check_precision, offload_of, resolve, units_of
from course_lib.train.options import Options, Refused, options, parse, parser

pytestmark = pytest.mark.cpu("options")

WRONG = {
    "not an option": (["--hiden", "3"], 1, "there is no option --hiden; did you mean --hidden?"),
    "an opposite": (["--no-pak"], 1, "did you mean --no-pack?"),
    "a word of its own": (["extra"], 1, "there is no option extra"),
    "not finite": (["--lr", "nan"], 1, "--lr nan must be a finite number, 0 or more"),
    "below its bound": (["--rows", "0"], 1, "--rows 0 must be 1 or more"),
    "no time": (["--timeout", "0"], 1, "--timeout 0.0 must be above 0"),
    "more time than there is": (["--timeout", "1e300"], 1, "at most 864000 seconds"),
    "a vocabulary of bytes": (["--vocabulary", "257"], 1, "--vocabulary 257 must be above 257"),
    "ranks left over": (["--tp", "2"], 3, "--tp 2 does not divide the 3 rank(s)"),
    "heads that do not divide": (["--hidden", "30"], 1, "hidden=30 does not divide into heads=4"),
    "more ranks than heads": (
        ["--tp", "8"], 8, "--tp 8: 4 heads cannot be distributed over 8 ranks",
    ),
    "micro-batches": (["--rows", "8", "--accumulate", "3"], 1, "--rows 8 cannot be divided into"),
    "a replica without rows": (["--rows", "3"], 4, "leaves some of the 4 replicas without a row"),
    "nowhere to go on": (["--resume"], 1, "--resume continues the run in a folder"),
    "nothing to go on with": (["--resume", "--out", "/nowhere"], 1, "no checkpoint in /nowhere"),
    "a size of a model that has one": (
        ["--from", "x", "--hidden", "8"], 1, "--hidden is a size of a new model",
    ),
    "no such file": (["--config", "/nowhere.json"], 1, "--config /nowhere.json: No such file"),
    "the old name of precision": (
        ["--dtype", "bfloat16"], 1, "there is no option --dtype; did you mean --precision?",
    ),
    "a stage for nothing to offload": (
        ["--offload", "cpu"], 2, "--stage 0 --offload cpu: offload cannot be used with stage 0",
    ),
    "units below stage 3": (
        ["--stage", "2", "--units", "blocks"], 2, "--units blocks needs stage 3, where parameters",
    ),
    "fast and lean": (["--fast", "--lean"], 2, "not allowed with argument --fast"),
    "parameters that stay where they are": (
        ["--stage", "2", "--offload", "cpu", "--no-offload-parameters"], 2,
        "--no-offload-parameters needs stage 3",
    ),
    "neither goes": (
        ["--stage", "3", "--offload", "cpu", "--no-offload-optimizer", "--no-offload-parameters"],
        2, "leaves nothing to offload; omit one of the two",
    ),
    "a folder for no file": (
        ["--stage", "3", "--offload", "cpu", "--offload-folder", "x"], 2,
        "--offload-folder x is for files, but this is --offload cpu",
    ),
    "no such unit": (
        ["--stage", "3", "--units", "blocks.*,blok"], 2,
        "--units blok matches no module of the model. It has blocks, dropout, head, norm,",
    ),
    "a unit in a unit": (
        ["--stage", "3", "--units", "blocks,blocks.0.mlp"], 2, "is inside a different named module",
    ),
    "nothing left to train on": (["--held-back", "1"], 1, "--held-back 1.0 leaves nothing"),
    "two beginnings": (["--resume", "--out", "x", "--from", "y"], 1, "omit one of them"),
    "other ranks than there are": (["--ranks", "3"], 2, "does not match this run of 2 rank(s)"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_refused_by_name(name):
    argv, world, text = WRONG[name]
    with pytest.raises(Refused) as caught:
        resolve(parse(argv), world)
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


def test_no_ranks_are_as_many_as_one_model_is_sharded_over():
    assert launch._count(parse(["--ranks", "0", "--tp", "3"])) == 3
    assert launch._count(parse(["--ranks", "2", "--tp", "2"])) == 2
    for wrong in ("-1", "1025"):
        with pytest.raises(Refused, match=f"--ranks {wrong} must be an integer from 0 to"):
            launch._count(parse(["--ranks", wrong]))


def test_a_model_too_large_is_told_with_what_it_needs(capsys):
    argv = ["--hidden", "100000", "--layers", "100", "--heads", "4", "--tp", "2", "--stage", "1"]
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.int8)
    assert entry._tell(caught.value, 1, 4, parse(argv)) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "no memory for 1152921504606846976 bytes more" in line
    params = params_of_rank(parse(argv).config(), 2, 1)
    gib = params * (4 + 4 + 8 / 2) / (1 << 30)  # itself, its gradient, half of two moments
    assert f"The states of its {params:,} parameters need {gib:,.1f} GiB on each rank" in line
    assert "--stage 3" in line and "--offload nvme" in line


def test_a_file_says_the_same_as_the_line_and_the_line_counts_more(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"hidden": 64, "lr": 1, "pack": False, "kv-heads": 2, "out": "x"}))
    read = parse(["--config", str(path), "--hidden", "32"])
    assert read == Options(
        hidden=32, lr=1.0, pack=False, kv_heads=2, out="x",
        typed=("hidden", "lr", "pack", "kv_heads", "out"),
    )  # fmt: skip
    assert parse([]) == Options()
    path.write_text(json.dumps({"fast": True, "stage": 3}))
    assert parse(["--config", str(path)]).fast
    assert not parse(["--config", str(path), "--lean"]).fast
    for text in ('{"lean": true}', '{"fast": false}'):
        path.write_text(text)
        assert parse(["--config", str(path)]) == Options(typed=("fast",))


def test_options_reach_the_ranks_as_they_were_read():
    read = parse(["--stage", "3", "--units", "blocks", "--lr", "0.1", "--fast"])
    assert Options.from_json(read.to_json()) == read
    assert "typed" not in read.as_dict() and set(read.as_dict()) == {one.name for one in options()}


def test_every_option_is_in_the_help_with_its_default(monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # a word with a hyphen is broken at it
    text = " ".join(parser("course train").format_help().split())
    for option in options():
        flag = option.metadata.get("name", "--" + option.name.replace("_", "-"))
        assert flag in text and " ".join(option.metadata["help"].split()) in text, option.name


def test_units_by_name():
    outline = without_numbers(Config.gpt2(vocabulary=31, length=8, hidden=8, layers=3, heads=2))
    blocks = list(outline.blocks)
    assert units_of(outline, "") is None
    assert units_of(outline, "blocks") == blocks == units_of(outline, "blocks.*")
    assert units_of(outline, "head, blocks.[02].mlp") == [
        blocks[0].mlp,
        blocks[2].mlp,
        outline.head,
    ]
    with pytest.raises(Refused, match="no module"):
        units_of(outline, "*.*.*.*.*")


@pytest.mark.parametrize(
    ("argv", "plan"),
    [
        (["--stage", "1"], None),
        (["--stage", "1", "--offload", "cpu"], {"optimizer": "cpu"}),
        (["--stage", "3", "--offload", "cpu"], {"optimizer": "cpu", "parameters": "cpu"}),
        (["--stage", "3", "--offload", "cpu", "--no-offload-parameters"], {"optimizer": "cpu"}),
        (
            ["--stage", "3", "--offload", "cpu", "--no-offload-optimizer"],
            {"optimizer": None, "parameters": "cpu"},
        ),
        (
            ["--stage", "3", "--offload", "nvme"],
            {"optimizer": "nvme", "parameters": "nvme", "folder": Path("run/offload")},
        ),
        (
            ["--stage", "2", "--offload", "nvme", "--offload-folder", "/fast"],
            {"optimizer": "nvme", "folder": Path("/fast")},
        ),
    ],
)
def test_what_the_engine_is_told_to_offload(argv, plan):
    read = parse(argv)
    check(read, 2)
    wanted = plan if plan is None or "folder" not in plan else {**plan, "take_over": True}
    assert offload_of(read, Path("run")) == wanted


def test_a_precision_that_the_device_lacks(monkeypatch):
    check_precision("float16", torch.device("cpu"))
    monkeypatch.setattr(torch.nn.functional, "layer_norm", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        check_precision("bfloat16", torch.device("cpu"))

    def lacking(*args):
        raise RuntimeError('"LayerNormKernelImpl" not implemented for Half')

    monkeypatch.setattr(torch.nn.functional, "layer_norm", lacking)
    with pytest.raises(Refused, match="--precision float16 is not supported by the cpu"):
        check_precision("float16", torch.device("cpu"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"hiden": 3}', "there is no option --hiden; did you mean --hidden?"),
        ('{"hidden": 3.5}', "argument --hidden: invalid int value: '3.5'"),
        ('{"sequence": 1}', "--no-sequence: ignored explicit argument '1'"),
        ('{"out": null}', "'out' cannot be null in a file"),
        ("[1]", "holds a JSON list"),
        ("{", "is not JSON"),
    ],
)
def test_a_file_that_says_something_wrong_is_refused(tmp_path, text, said):
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(Refused) as caught:
        parse(["--config", str(path)])
    assert said in str(caught.value)


def saved(tmp_path, **changed):
    """A run's folder, as far as options look at it."""
    folder = tmp_path / "checkpoints" / "step-000006"
    folder.mkdir(parents=True)
    record = {"form": FORM, "step": 6, "mesh": {"dp": 1, "tp": 2}, "config": {}, "data": {}}
    record["scalars"] = {}
    then = Options(tp=2, lr=0.5, steps=9, out="elsewhere", json=True, stage=2, ranks=2)
    record |= {"options": then.as_dict()}
    record["engine"] = {"skipped": 0, "scale": None, "groups": []}
    record |= changed
    text = json.dumps(record)
    (folder / "training.json").write_text(text)
    (folder / checksums.SUMS).write_text(
        checksums.as_text({"training.json": checksums.of_bytes(text.encode())})
    )
    (tmp_path / "checkpoints" / "latest").write_text("step-000006\n")
    return ["--resume", "--out", str(tmp_path)]


def test_going_on_takes_what_was_typed_then(tmp_path):
    again = resolve(parse(saved(tmp_path)), 2)
    assert (again.tp, again.lr, again.steps, again.json, again.stage) == (2, 0.5, 9, False, 2)
    assert Path(again.checkpoint).name == "step-000006" and again.out == str(tmp_path)
    longer = ["--resume", "--out", str(tmp_path), "--steps", "20", "--lr", "0.5"]
    assert resolve(parse(longer), 2).steps == 20


@pytest.mark.parametrize(
    ("more", "world", "said"),
    [
        (["--hidden", "64"], 2, "--hidden 64 differs from"),
        (["--lr", "0.1"], 2, "was trained with --lr 0.5"),
    ],
)
def test_going_on_otherwise_is_refused(tmp_path, more, world, said):
    argv = saved(tmp_path)
    with pytest.raises(Refused) as caught:
        resolve(parse([*argv, *more]), world)
    assert said in str(caught.value) and "step-000006" in str(caught.value)


OF_THREE = {"stage": 3, "offload": "nvme", "units": "head", "fast": True, "offload_folder": "disk"}


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_what_another_layout_has_no_use_for_is_not_kept(tmp_path, stage):
    then = Options(tp=2, offload_parameters=False, **OF_THREE).as_dict()
    argv = saved(tmp_path, options=then)
    again = resolve(parse([*argv, "--stage", str(stage), *(["--offload", "cpu"] * (stage > 0))]), 2)
    assert again.offload == ("cpu" if stage else "none") and again.offload_folder == ""
    assert again.offload_parameters and (again.units, again.fast) == (
        ("head", True) if stage == 3 else ("", False)
    )
