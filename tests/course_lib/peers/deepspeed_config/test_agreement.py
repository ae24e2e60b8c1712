"""One set of numbers: ladder, its own files under ds-check, plan and estimate, on drawn cases."""

from __future__ import annotations

import json
import random

import pytest
import torch

from course_lib.estimate.model import Model
from course_lib.estimate.time import Place
from course_lib.estimate.time.presets import constants, preset
from course_lib.peers.deepspeed_config import check, schema, walk
from course_lib.peers.deepspeed_config.memory import forecast
from course_lib.plan import Task
from course_lib.plan.search import Counts
from tests.course_lib.estimate.test_transformers_model import small

pytest.importorskip("transformers")

FAMILIES = ("llama-3.1-8b", "mistral-7b", "qwen2.5-7b", "gemma-2b", "gpt-neox-20b", "gpt2-xl")
CASES = 50


def test_the_tools_agree_and_find_nothing_in_their_own_files(tmp_path):
    draw, known, fitted = random.Random(5), schema.load(), 0
    machine = preset("workstation")
    for case in range(CASES):
        path = tmp_path / f"{case}" / "config.json"
        path.parent.mkdir()
        path.write_text(
            json.dumps(small(draw.choice(FAMILIES), vocab_size=draw.choice((1000, 4001))))
        )
        gpus, length = draw.choice((1, 2, 4)), draw.choice((48, 96))
        how = {"gpus": gpus, "per_node": gpus, "rows": draw.choice((1, 4, 8)), "length": length}
        how["precision"] = draw.choice(("bfloat16", "float16"))
        task = walk.WalkTask.read(path, f"{draw.randint(5, 60)}MB", None, **how)
        found = walk.walk(task)
        if found.first is None:
            continue
        fitted += 1
        words, setting = (case, found.answer), found.back_up
        files = walk.files_of(found)
        (path.parent / "ds.json").write_text(files["ds_config.json"])
        arguments = json.loads(files["training_arguments.json"])
        arguments |= {"learning_rate": draw.choice((1e-5, 2e-4)), "seed": draw.randint(0, 9)}
        arguments |= {"weight_decay": draw.choice((0.0, 0.1)), "max_grad_norm": draw.choice((1, 5))}
        report = check.check_file(
            path.parent / "ds.json", world=gpus, arguments=arguments, model=task.model.keys,
            known=known,
        )  # fmt: skip
        assert not report.findings, (words, report.findings)
        again = {"recompute": arguments["gradient_checkpointing"], "length": length}
        checked = forecast(report.config, path, gpus, **again)
        assert checked.total("gpu") == pytest.approx(found.forecast.total("gpu"), rel=0.02), words
        assert checked.gpu["activations"] == found.forecast.gpu["activations"], words
        planned = Task.of(
            task.model, machine.changed(gpus=gpus, memory=task.machine.gpu_bytes),
            constants(machine), gpus=gpus, length=length, precision=how["precision"],
        )  # fmt: skip
        needs = Counts(planned).needs(setting, Place(1, gpus, gpus))
        assert needs.gpu == found.forecast.total("gpu"), words
        dtype = getattr(torch, how["precision"])
        kept = Model.read(path).kept(setting.rows, length, dtype, recompute=setting.recompute)
        assert kept.peak == checked.gpu["activations"], words
    assert fitted > CASES // 2
