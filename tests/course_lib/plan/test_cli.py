"""`course plan` as people call it: what is typed, what is printed, what is left in a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from course_classroom.cli.plan import _short
from course_lib.estimate.time import Link, calibrate, presets
from course_lib.gpt import Config
from course_lib.plan import Model, Task, search
from course_lib.pretrained.config import to_transformers
from tests.course_lib.peers.deepspeed_config.test_walk import KEYS
from tests.course_lib.plan.parts import BERT, CLUSTER, GPT2
from tests.support.commands import called

MODEL = Config.gpt2(hidden=96, layers=2, heads=4, vocabulary=400, length=64)


@pytest.fixture
def small(tmp_path) -> tuple:
    """What is typed for a small model on a small machine, both in files."""
    keys = to_transformers(MODEL, torch.float32)
    (tmp_path / "small.json").write_text(json.dumps(keys))
    machine(tmp_path)
    words = ("--config", tmp_path / "small.json", "--machine", tmp_path / "machine.json")
    return (*words, "--gpus", 4, "--tokens", 1024)


def machine(folder, memory=10**8):
    (folder / "machine.json").write_text(json.dumps({"like": "laptop", "memory": memory}))


def plan(capsys, *words) -> tuple[int, str, str]:
    return called(capsys, "plan", *words)


def test_the_document_has_the_plans_of_the_search(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(KEYS))
    words = ("--config", tmp_path, "--machine", "workstation", "--price", 0.5, "--top", 3, "--json")
    code, out, err = plan(capsys, *words)
    assert (code, err) == (0, "")
    document = json.loads(out)
    known = presets.cluster("workstation")
    task = Task.of(Model.read(tmp_path), known, presets.constants(known), price=0.5)
    found = search(task)
    assert document["fits"] == len(found.plans) and len(document["plans"]) == 3
    for got, want in zip(document["plans"], found.plans, strict=False):
        assert got["seconds"]["total"] == pytest.approx(want.seconds.total)
        assert (got["gpu_bytes"], got["name"]) == (want.needs.gpu, want.name)
        assert got["cost_per_billion_tokens"] == pytest.approx(task.cost(want.seconds.total))
        assert got["tokens_per_second"] == pytest.approx(task.tokens / want.seconds.total)
    assert document["considered"] == found.considered
    assert {one["reason"] for one in document["fallen"]} == set(found.fallen)
    assert document["machine"]["name"] == known.name and document["advice"] is None
    assert document["constants"]["reach"] == task.constants.reach


def test_the_table_says_the_fastest_and_the_reasons(capsys, small):
    code, out, err = plan(capsys, *small, "--price", 1.0, "--top", 4)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    head = next(i for i, line in enumerate(lines) if "s/step" in line)
    rows = [line.split() for line in lines[head + 1 : head + 5]]
    assert [row[0] for row in rows] == ["1", "2", "3", "4"]
    assert all(float(row[-1].replace(",", "")) > 0 for row in rows) and "cost" in lines[head]
    assert [_short(x) for x in (12.3456, 0.0123, 0.00123, 7e-6)] == [
        "12.3", "0.0123", "0.0012", "<0.0001",
    ]  # fmt: skip
    text = " ".join(out.split())
    assert "ways were considered" in text and "no disk" in text
    assert "4 GPUs of laptop CPU, 0.1 GB each" in text


def test_nothing_fits(capsys, tmp_path, small):
    machine(tmp_path, memory=1000)
    words = (*small, "--emit", "torchrun", "--out", tmp_path / "out")
    code, out, err = plan(capsys, *words)
    assert code == 1 and "there is no plan to write" in err and not (tmp_path / "out").exists()
    text = " ".join(out.split())
    assert "Nothing fits. The nearest plan: tp" in text and "It would fit with: GPUs with" in text
    assert "plans no pipeline parallelism" in text
    code, out, err = plan(capsys, *words[:-4], "--json")
    assert code == 1 and json.loads(out)["advice"]["remedies"] and json.loads(out)["plans"] == []


def test_a_node_may_be_another(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(KEYS))
    words = ("--config", tmp_path, "--machine", "workstation", "--gpus", 4, "--json")
    code, _, err = plan(capsys, *words)
    assert code == 2 and "--gpus-per-node" in err
    document = json.loads(plan(capsys, *words, "--gpus-per-node", 4, "--gpu-memory", "12MB")[1])
    assert (document["machine"]["gpus"], document["machine"]["memory"]) == (4, 12 * 10**6)
    assert document["fits"] and all(x["gpu_bytes"] <= 12 * 10**6 for x in document["plans"])


def test_of_another_family_the_page_says_what_is_not_planned(capsys, tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    words = ("--config", tmp_path / "config.json", "--machine", "workstation", "--length", 128)
    code, out, _ = plan(capsys, *words)
    text = " ".join(out.split())
    assert code == 0 and "The tensor-parallel layout of model_type 'bert' is not" in text
    assert text.startswith("Fastest plan that fits: tp 1, dp 2") and "no plan" not in text
    code, _, err = plan(capsys, *words, "--emit", "torchrun", "--out", tmp_path / "out")
    assert code == 2 and "cannot make a new model of this shape" in err
    assert "No plan here can be written" in err


@pytest.mark.parametrize("kind", ["deepspeed", "fsdp2", "accelerate", "torchrun", "slurm"])
def test_files_are_left_and_never_written_over(capsys, tmp_path, small, kind):
    names = [
        one["name"] for one in json.loads(plan(capsys, *small, "--json", "--top", 999)[1])["plans"]
    ]
    at = next(i for i, name in enumerate(names, 1) if name.startswith("tp 1, dp 4, stage 2, 4"))
    words = (*small, "--choose", at, "--emit", kind, "--out", tmp_path / "out", "--json")
    code, out, err = plan(capsys, *words)
    assert (code, err) == (0, "")
    written = json.loads(out)["written"]
    assert written and all((tmp_path / "out").samefile(name.rpartition("/")[0]) for name in written)
    assert plan(capsys, *words)[0] == 0  # the same files
    for name in written:
        Path(name).write_text("somebody's own")
    code, _, err = plan(capsys, *words)
    assert code == 2 and "is there already" in err and "--out" in err
    code, _, err = plan(capsys, *words, "--choose", 9999)
    assert code == 2 and "there are plans 1 to" in err


def test_a_plan_that_cannot_be_said_names_one_that_can(capsys, tmp_path, small):
    words = (*small, "--json", "--top", 999)
    names = [one["name"] for one in json.loads(plan(capsys, *words)[1])["plans"]]
    at = next(i for i, name in enumerate(names, 1) if "sequence" in name)
    emit = (*words, "--emit", "deepspeed", "--out", tmp_path / "out")
    code, _, err = plan(capsys, *emit, "--choose", at)
    assert code == 2 and "sequence parallelism has no setting" in err
    other = int(err.rpartition("--choose ")[2])
    assert "sequence" not in names[other - 1] and plan(capsys, *emit, "--choose", other)[0] == 0


WRONG = [
    (("--emit", "megatron"), "--emit megatron is none of"),
    (("--machine", "laptop", "--calibrate"), "measures this machine, but --machine is laptop"),
    (("--config", "none/config.json"), "is not there; name a config.json"),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=[message[:30] for _, message in WRONG])
def test_a_wrong_call_says_what_is_wrong(capsys, small, words, message):
    code, out, err = plan(capsys, *small, *words)
    assert (code, out) == (2, "") and err.startswith("course plan: ") and message in err
    code, _, err = plan(capsys, *small[:2])
    assert code == 2 and "name a machine with --machine (dgx-2h" in err


def test_a_measured_machine_is_kept_and_read(capsys, tmp_path, small, monkeypatch):
    measured = CLUSTER.changed(cores=2, overlaps=False, halves=Link(5e9, 1e-6))
    asked = []
    monkeypatch.setattr(calibrate, "calibrate", lambda like: asked.append(like) or measured)
    words = (*small[:2], *small[4:], "--json", "--machine", tmp_path / "here.json")
    code, out, _ = plan(capsys, *words, "--calibrate")
    first = json.loads(out)
    assert code == 0 and first["constants"] == {"reach": 1.0, "spread": 0.0}
    assert "4 ranks share 2 cores, so each takes 2 times as long" in " ".join(first["remarks"])
    code, _, err = plan(capsys, *words, "--calibrate")
    assert code == 2 and "--calibrate would write over" in err
    again = json.loads(plan(capsys, *words)[1])
    assert again["plans"] == first["plans"] and [one.hidden for one in asked] == [96]


def test_a_dropout_is_said_to_be_counted(capsys, tmp_path):
    keys = to_transformers(GPT2.changed(dropout=0.1), torch.float32)
    (tmp_path / "config.json").write_text(json.dumps(keys))
    code, out, _ = plan(capsys, "--config", tmp_path, "--machine", "workstation")
    assert code == 0 and "The dropout of 0.1 is counted" in " ".join(out.split())
