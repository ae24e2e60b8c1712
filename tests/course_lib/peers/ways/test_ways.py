"""Settings, workloads, configs and variables of the ways, which lesson 13 and test_matrix run."""

from __future__ import annotations

import json
import os
import sys

import pytest
import torch

from course_lib.peers.deepspeed_config.check import check_file
from course_lib.peers.ways.ds_config import ds_config, for_trainer
from course_lib.peers.ways.expected import expected
from course_lib.peers.ways.launched import launched, variables
from course_lib.peers.ways.setting import NotThere, WaySetting
from course_lib.peers.ways.trainer_run import arguments
from course_lib.peers.ways.with_deepspeed import imported
from course_lib.peers.ways.workload import Workload
from tests.course_lib.peers.ways.runs import ENV, alone, check_curves, needs_all, several

WORKLOAD = Workload(steps=4)


def sizes(workload: Workload) -> tuple[int, int]:
    """(parameters, those of the table that is read twice)."""
    model = workload.model()
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    table = model.get_input_embeddings().weight.numel()
    return sum(p.numel() for p in model.parameters()), table if tied else 0


@pytest.mark.gpu
@needs_all
@pytest.mark.skipif(not torch.cuda.is_available(), reason="DeepSpeed has fp16 on GPUs alone")
def test_sixteen_bits_with_a_loss_scale(pool):
    settings = [WaySetting(stage=stage, precision="float16", clip=0.5) for stage in (1, 2, 3)]
    runs = pool.run(2, several, WORKLOAD, settings, timeout=240, env=ENV, alone=True)[0]
    for setting in settings:
        there = check_curves(runs, setting)
        assert there == ["dense", "course_lib", "deepspeed", "trainer+deepspeed"]


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"stage": 2, "offload": "all"}, "stage 2 does not shard"),
        ({"stage": 0, "offload": "optimizer"}, "no rank has a shard at stage 0"),
        ({"stage": 3, "offload": "nvme"}, "needs a folder"),
        ({"precision": "fp8"}, "float32, bfloat16, float16"),
        *(({"clip": clip}, "must be a number above 0") for clip in (0, -1, float("nan"))),
    ],
)
def test_a_setting_that_no_way_has_is_refused(setting, reason):
    with pytest.raises(ValueError, match=reason):
        WaySetting(**setting)


def test_a_family_and_a_closed_form_that_are_none_are_refused():
    with pytest.raises(ValueError, match="is not one of gpt2, llama, t5"):
        Workload(family="bert")
    with pytest.raises(ValueError, match="closed form"):
        expected("deepspeed", WaySetting(precision="float16"), 10, 2)


def test_a_package_that_is_missing_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(NotThere, match=r"pip install 'course_lib\[huggingface\]'"):
        Workload().model()
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(NotThere, match=r"pip install 'course_lib\[deepspeed\]'"):
        imported()


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_the_configs_of_all_settings_have_no_error(tmp_path, precision):
    """`course ds-check` on what DeepSpeed is given, and on what the Trainer is, with its values."""
    me = alone(world=2)
    offloads = {0: [None], 1: [None, "optimizer"], 2: [None, "optimizer"]}
    offloads[3] = [None, "optimizer", "all", "nvme"]
    for stage, places in offloads.items():
        for offload in places:
            setting = WaySetting(
                stage=stage, offload=offload, precision=precision, clip=0.5, folder=str(tmp_path)
            )
            given = arguments(me, WORKLOAD, setting, str(tmp_path))
            for config, known in (
                (ds_config(WORKLOAD, setting), None),
                (for_trainer(WORKLOAD, setting), given),
            ):
                file = tmp_path / "ds_config.json"
                file.write_text(json.dumps(config))
                report = check_file(file, world=2, arguments=known)
                wrong = [item.message for item in report.findings if item.level == "error"]
                assert not wrong, (str(setting), wrong)
                if known is not None:
                    values = {name: entry["value"] for name, entry in report.resolved.items()}
                    assert values["gradient_clipping"] == 0.5
                    assert values["optimizer.params.lr"] == WORKLOAD.lr


def test_a_dataloader_reads_the_batches_of_the_loop_in_their_order():
    """Of a sampler that shuffles nothing Accelerate deals batch i to rank i mod N."""
    world, accumulate = 3, 2
    workload = Workload(steps=2, uneven=True)
    rows = workload.rows(world, accumulate)
    assert len(rows) == 2 * accumulate * world * workload.batch
    taken = iter(range(len(rows)))
    for step in range(2):
        for micro in range(accumulate):
            for rank in range(world):
                batch = workload.batch_of(step, micro, rank)
                for row in range(workload.batch):
                    got = rows[next(taken)]
                    assert all(torch.equal(got[name], batch[name][row]) for name in batch)


def test_ranks_that_share_a_gpu_are_told_its_number():
    """DeepSpeed sets the GPU of that number, which need not be the rank's number."""
    told = [variables(alone(2, 1, device)) for device in ("cuda:0", "cuda:1", "cpu")]
    assert [each["LOCAL_RANK"] for each in told] == ["0", "1", "1"]


@needs_all
def test_nothing_that_a_way_has_set_is_met_by_the_next(tmp_path):
    """Neither a launcher's variables nor what Accelerate keeps of its ranks."""
    import transformers
    from accelerate.state import PartialState

    before = dict(os.environ)
    with launched(alone()):
        os.environ["ACCELERATE_USE_DEEPSPEED"] = "false"
        os.environ.pop("LOCAL_RANK")  # a process alone, which makes no group
        os.environ.pop("WORLD_SIZE")
        given = arguments(alone(), WORKLOAD, WaySetting(), str(tmp_path))
        assert transformers.TrainingArguments(**given).device.type == "cpu"
        assert PartialState._shared_state
    assert not PartialState._shared_state
    assert dict(os.environ) == before
