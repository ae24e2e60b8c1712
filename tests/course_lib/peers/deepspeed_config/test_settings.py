"""A rung's settings: DeepSpeed parses them in silence, the Trainer resolves them, FSDP2 runs."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib import ranks
from course_lib.estimate.ladder import Nodes
from course_lib.estimate.ladder import settings as rungs
from course_lib.estimate.setting import Setting
from course_lib.peers.deepspeed_config import fsdp2, settings
from course_lib.peers.deepspeed_config.auto import resolve
from course_lib.peers.deepspeed_config.settings import Sizes
from tests.course_lib.peers.deepspeed_config.oracle import parses
from tests.course_lib.peers.deepspeed_config.parts import loud, report

SIZES = Sizes(hidden=1024, unit=12 * 1024**2, largest=50257 * 1024)
MACHINE = Nodes(24 * 10**9, gpus=4, nodes=2)
ONE = Nodes(24 * 10**9)
RUNGS = [*rungs(8, "bfloat16"), *rungs(1, "float32"), *rungs(2, "float16")]
NAMES = [f"{setting.precision} {name}" for name, setting in RUNGS]
ZERO = "zero_optimization"
# What has an effect, by stage.
OF_STAGE = {
    0: {"stage"},
    2: {"stage", "overlap_comm", "contiguous_gradients", "reduce_scatter", "reduce_bucket_size",
        "allgather_bucket_size", "offload_optimizer", "round_robin_gradients"},
    3: {"stage", "overlap_comm", "contiguous_gradients", "reduce_bucket_size", "sub_group_size",
        "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
        "stage3_max_live_parameters", "stage3_max_reuse_distance", "offload_optimizer",
        "offload_param", "stage3_gather_16bit_weights_on_model_save"},
}  # fmt: skip


def test_deepspeed_parses_every_rung_without_a_word():
    pytest.importorskip("deepspeed")
    files = [settings.deepspeed(setting, ONE, SIZES) for _, setting in RUNGS]
    answers = parses([json.dumps(file) for file in files])
    for (_, setting), (read, error) in zip(RUNGS, answers, strict=True):
        assert not error and f"'zero_optimization_stage', {setting.stage}" in read


@pytest.mark.parametrize(("name", "setting"), RUNGS, ids=NAMES)
def test_a_file_says_what_the_rung_does_and_nothing_without_effect(name, setting):
    config = settings.deepspeed(setting, MACHINE, SIZES, nvme_path="/disk")
    zero = config[ZERO]
    assert set(zero) <= OF_STAGE[setting.stage], set(zero) - OF_STAGE[setting.stage]
    assert config["train_batch_size"] == 8 * setting.rows * setting.accumulate
    assert config["train_micro_batch_size_per_gpu"] == setting.rows
    assert config["gradient_accumulation_steps"] == setting.accumulate
    halves = {"bfloat16": {"bf16"}, "float16": {"fp16"}, "float32": set()}
    assert {"bf16", "fp16"} & set(config) == halves[setting.precision]
    assert ("aio" in config) == (setting.optimizer == "nvme")
    assert "auto" not in json.dumps(config)
    for section, place in (("optimizer", setting.optimizer), ("param", setting.parameters)):
        offload = zero.get(f"offload_{section}", {"device": None})
        assert offload["device"] == place
        assert offload.get("nvme_path") == ("/disk" if place == "nvme" else None)
    if setting.stage == 3:
        live = zero["stage3_max_live_parameters"]
        assert live == (2 * SIZES.unit if setting.lean else 10**9)
        assert zero["stage3_param_persistence_threshold"] > 0
    if setting.parameters == "nvme":
        assert zero["offload_param"]["buffer_size"] >= SIZES.largest


@pytest.mark.parametrize(("name", "setting"), RUNGS, ids=NAMES)
def test_the_trainer_makes_the_same_of_its_own(name, setting):
    """With "auto" and the arguments that come with it: no conflict, nothing left over."""
    for machine in (MACHINE, Nodes(10**8, gpus=2)):
        own = settings.deepspeed(setting, machine, SIZES, trainer=True)
        arguments = settings.training_arguments(setting, "ds_config.json")
        got = resolve(own, arguments, {"hidden_size": SIZES.hidden}, machine.world)
        assert not got.conflicts and not got.unresolved and not got.refusals
        want = settings.deepspeed(setting, machine, SIZES)
        for kind in ("bf16", "fp16"):
            here = got.config.pop(kind)
            there = want.pop(kind, {"enabled": False})
            assert here["enabled"] == there["enabled"]
        assert got.config == want
        assert arguments["gradient_checkpointing"] == setting.recompute
        assert "auto" in json.dumps(own)


@pytest.mark.parametrize("machine", [MACHINE, Nodes(2 * 10**7, gpus=2)], ids=["24 GB", "20 MB"])
def test_the_checker_finds_nothing(machine):
    """Neither an error nor a warning, nor a key that this release never asks."""
    model = {"model_type": "llama", "hidden_size": SIZES.hidden}
    for _, setting in RUNGS:
        arguments = settings.training_arguments(setting, "ds.json")
        for trainer, more in ((False, {}), (True, {"arguments": arguments, "model": model})):
            config = settings.deepspeed(setting, machine, SIZES, trainer=trainer)
            found = report(json.dumps(config), world=machine.world, **more).findings
            old = [item for item in found if "older spelling" in item.message]
            assert loud(found) == old == [], (setting, trainer, found)


# ---- FSDP2 and Accelerate
class Blocks(nn.Module):
    """Three blocks where Transformers' GPT-2 has them."""

    def __init__(self):
        super().__init__()
        self.transformer = nn.Module()
        self.transformer.h = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.checkpointed = False

    def gradient_checkpointing_enable(self):
        self.checkpointed = True

    def forward(self, x):
        for block in self.transformer.h:
            x = block(x).relu()
        return x


def sharded(me, lines: list[tuple[str, bool, bool, bool]]) -> None:
    """Each text shards a model of two ranks as it says, and the model trains a step."""
    ranks.mesh(me, dp=me.world, tp=1)  # the group
    for text, reshards, halves, again in lines:
        torch.manual_seed(5)
        names = {"model": Blocks()}
        # On a CPU nothing is pinned, and autocast is that of the CPU.
        text = text.replace("pin_memory=True", "pin_memory=False")
        exec(compile(text, "fsdp2.py", "exec"), names)
        model, optimizer = names["model"], names["optimizer"]
        whole = [tuple(p.shape) for p in Blocks().parameters()]
        blocks = getattr(model, "module", model).transformer.h
        assert getattr(model, "module", model).checkpointed == again
        out = model(torch.ones(2, 6))
        assert (out.dtype == torch.bfloat16) == halves
        here = [type(p).__name__ == "DTensor" for p in blocks[0].parameters()]
        assert all(here) == any(here) == reshards, text
        F.mse_loss(out.float(), torch.zeros(2, 6)).backward()
        optimizer.step()
        if reshards:
            assert [tuple(p.shape) for p in model.parameters()] == whole  # DTensors' own shapes
            assert all(p.to_local().numel() < p.numel() for p in model.parameters())


def test_fsdp2s_lines_shard_as_they_say(pool):
    """Stage 3 is resharded after the forward, stage 2 is not, stage 0 is DDP; offload is on CUDA's
    side alone, where a CPU has no second place."""
    cases = [
        (fsdp2.python(Setting(1), "gpt2"), False, False, False),
        (fsdp2.python(Setting(1, precision="float32", recompute=True, stage=2), "gpt2"),
         False, False, True),
        (fsdp2.python(Setting(1, stage=2), "gpt2"), False, True, False),
        (fsdp2.python(Setting(1, stage=3, recompute=True), "gpt2"), True, True, True),
        (fsdp2.python(Setting(1, stage=3, optimizer="cpu", parameters="cpu"), "gpt2"),
         True, True, False),
    ]  # fmt: skip
    pool.run(2, sharded, cases, timeout=120)


@pytest.mark.parametrize(("name", "setting"), RUNGS, ids=NAMES)
def test_what_fsdp2_has_no_word_for_is_said(name, setting):
    notes, text = fsdp2.notes(setting), fsdp2.python(setting, "llama")
    compile(text, "fsdp2.py", "exec")
    away = bool(setting.optimizer or setting.parameters)
    assert ("CPUOffloadPolicy(" in text) == away
    assert ("MixedPrecisionPolicy(" in text) == (setting.master and setting.stage > 0)
    assert ("model.model.layers" in text) == (setting.stage > 0)
    assert any("NVMe" in note for note in notes) == (setting.optimizer == "nvme")
    assert any("no stage 2" in note for note in notes) == (setting.stage == 2)
    alone = (setting.optimizer == "cpu") != (setting.parameters == "cpu")
    assert any("FSDP2 cannot offload only" in note for note in notes) == alone
    assert ("DistributedDataParallel" in text) == (setting.stage == 0)


@pytest.mark.parametrize(("name", "setting"), RUNGS, ids=NAMES)
def test_accelerate_reads_both_files(name, setting, tmp_path):
    yaml = pytest.importorskip("yaml")
    for machine in (ONE, MACHINE):
        own = yaml.safe_load(fsdp2.accelerate_deepspeed(setting, machine, "ds_config.json"))
        assert own["distributed_type"] == "DEEPSPEED" and own["num_processes"] == machine.world
        section = own["deepspeed_config"]
        assert section["deepspeed_config_file"] == "ds_config.json"
        assert section["zero3_init_flag"] is (setting.stage == 3)
        assert "mixed_precision" not in own
        text = fsdp2.accelerate_fsdp2(setting, machine, "gpt2")
        found = yaml.safe_load(text)
        assert found["mixed_precision"] == fsdp2.MIXED[setting.precision]
        if setting.stage:
            section = found["fsdp_config"]
            assert found["distributed_type"] == "FSDP" and section["fsdp_version"] == 2
            assert section["fsdp_reshard_after_forward"] is (setting.stage == 3)
            assert section["fsdp_offload_params"] is bool(setting.optimizer or setting.parameters)
            assert section["fsdp_transformer_layer_cls_to_wrap"] == "GPT2Block"
            assert section["fsdp_activation_checkpointing"] is setting.recompute
        else:
            assert found["distributed_type"] == ("MULTI_GPU" if machine.world > 1 else "NO")
        assert ("main_process_ip" in found) == (machine.nodes > 1)


def test_accelerates_own_reader_takes_them(tmp_path):
    pytest.importorskip("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    known = {action.dest for action in launch_command_parser()._actions}
    for _, setting in RUNGS:
        for text in (
            fsdp2.accelerate_deepspeed(setting, MACHINE, "ds_config.json"),
            fsdp2.accelerate_fsdp2(setting, MACHINE, "llama"),
        ):
            file = tmp_path / "default.yaml"
            file.write_text(text)
            read = load_config_from_file(str(file))
            assert read.num_processes == 8 and read.num_machines == 2
            assert set(read.fsdp_config) | set(read.deepspeed_config) <= known
