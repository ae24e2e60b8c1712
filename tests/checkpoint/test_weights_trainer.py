"""DeepSpeed → `course weights` → transformers → ours → DeepSpeed: the same bits at each step."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from course_lib import pretrained, ranks
from course_lib.checkpoint.weights import convert
from tests.pretrained.parts import bits
from tests.then_and_now import parts
from tests.then_and_now.parts import WORDS, Sentences, gpt2, meet, needs_deepspeed, settings

pytestmark = [needs_deepspeed, pytest.mark.slow]
RUNS = [(kind, stage) for kind in ("gpt2", "llama") for stage in (1, 2, 3)]


def model_of(kind):
    if kind == "gpt2":
        return gpt2(seed=2)
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(2)
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=24, vocab_size=WORDS, max_position_embeddings=32, bos_token_id=0,
            eos_token_id=1, tie_word_embeddings=False,
        )
    )  # fmt: skip


def trains(me, folder):
    """Two steps at each stage, saved as the Trainer does, with the model's config beside; and what
    DeepSpeed's own tool makes of it."""
    deepspeed = meet(me)
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    for kind, stage in RUNS:
        model, run = model_of(kind), f"{folder}/{kind}-{stage}"
        engine = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=settings(stage)
        )[0]
        for step in range(2):
            pairs = [Sentences()[4 * step + 2 * me.rank + i] for i in range(2)]
            batch = {name: torch.stack([pair[name] for pair in pairs]) for name in pairs[0]}
            engine.backward(engine(**batch).loss)
            engine.step()
        engine.save_checkpoint(run)
        torch.distributed.barrier()
        if me.rank == 0:
            model.config.save_pretrained(run)
            torch.save(get_fp32_state_dict_from_zero_checkpoint(run), f"{run}.fp32")
        torch.distributed.barrier()
        engine.destroy()


def through_two(me, folder):
    """Ours over two tensor-parallel ranks, and out again."""
    mesh = ranks.mesh(me, dp=1, tp=2)
    for kind, stage in RUNS:
        model = pretrained.from_pretrained(f"{folder}/{kind}-{stage}.out", mesh)
        pretrained.save(model, f"{folder}/{kind}-{stage}.ours", mesh)


def comes_back(me, folder):
    """DeepSpeed's stage 3 cuts what transformers reads of ours, while it reads; gathered again."""
    deepspeed = meet(me)
    from transformers import AutoModelForCausalLM
    from transformers.integrations import HfDeepSpeedConfig

    off = []
    for kind, stage in RUNS:
        config = settings(3)
        keep = HfDeepSpeedConfig(config)
        model = AutoModelForCausalLM.from_pretrained(f"{folder}/{kind}-{stage}.ours")
        assert all(hasattr(p, "ds_id") and p.numel() == 0 for p in model.parameters())
        engine = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=config
        )[0]
        want = torch.load(f"{folder}/{kind}-{stage}.fp32", weights_only=True)
        for name, p in engine.module.named_parameters():
            with deepspeed.zero.GatheredParameters([p]):
                if not torch.equal(p, want[name]):
                    off.append((kind, stage, name))
        engine.destroy()
        del keep
    return off


def test_every_stage_there_and_back_bit_for_bit(pool, tmp_path):
    from transformers import AutoModelForCausalLM

    parts.run(pool, 2, trains, str(tmp_path), timeout=280)
    for kind, stage in RUNS:
        run, out = tmp_path / f"{kind}-{stage}", Path(f"{tmp_path}/{kind}-{stage}.out")
        want = torch.load(f"{run}.fp32", weights_only=True)
        report = convert(run, out)
        assert report["source"]["stage"] == stage and "config.json" in report["files"]
        model = AutoModelForCausalLM.from_pretrained(out)
        got = model.state_dict()
        assert got.keys() == want.keys()
        assert all(torch.equal(got[name], x) for name, x in want.items())
        pretrained.save(pretrained.from_pretrained(out), tmp_path / "one")
        assert bits(tmp_path / "one") == bits(out)
        shutil.rmtree(tmp_path / "one")
    pool.run(2, through_two, str(tmp_path))
    for kind, stage in RUNS:
        ours, out = (Path(f"{tmp_path}/{kind}-{stage}.{end}") for end in ("ours", "out"))
        assert bits(ours) == bits(out)
    assert parts.run(pool, 2, comes_back, str(tmp_path), timeout=280) == [[], []]


def by_the_trainer(me, folder):
    """What the Trainer saves: its scheduler's state and arguments beside DeepSpeed's own."""
    meet(me)
    from tests.then_and_now.test_trainer_zero import trainer_of, whole

    for stage in (2, 3):
        trainer = trainer_of(
            f"{folder}/{stage}", stage, max_steps=2, eval_strategy="no",
            load_best_model_at_end=False, metric_for_best_model=None, greater_is_better=None,
            warmup_steps=1, lr_scheduler_type="cosine",
        )  # fmt: skip
        trainer.train()
        weights = whole(trainer)
        if me.rank == 0:
            torch.save(weights, f"{folder}/{stage}.want")
    torch.distributed.barrier()


def test_of_the_trainers_folder_the_master_copies(pool, tmp_path):
    parts.run(pool, 2, by_the_trainer, str(tmp_path))
    for stage in (2, 3):
        want = torch.load(tmp_path / f"{stage}.want", weights_only=True)
        report = convert(tmp_path / f"{stage}" / "checkpoint-2", tmp_path / "out")
        assert (report["source"]["stage"], report["source"]["step"]) == (stage, 2)
        assert {"config.json", "generation_config.json", "model.safetensors"} <= set(
            report["files"]
        )
        got = bits(tmp_path / "out")
        assert want.keys() - got.keys() == set()
        for name, x in want.items():
            assert got[name][2] == x.numpy().tobytes(), name
