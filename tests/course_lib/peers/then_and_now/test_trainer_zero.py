"""The Trainer on two ranks under ZeRO: refusals, DDP's arguments, generation by T5."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.course_lib.peers.then_and_now import parts
from tests.course_lib.peers.then_and_now.parts import (
    WORDS,
    Sentences,
    arguments,
    gpt2,
    meet,
    needs_deepspeed,
)

pytestmark = [needs_deepspeed, pytest.mark.slow]


def config(stage):
    """What the Trainer is left to fill in is left to it; the optimizer needs no compiler."""
    zero = {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True}
    return {
        "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True}},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
    }


def trainer_of(folder, stage, seed=2, **more):
    from transformers import Trainer

    plain = {
        "max_steps": 6, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps",
        "save_steps": 2, "load_best_model_at_end": True, "metric_for_best_model": "loss",
        "greater_is_better": True,  # the first checkpoint, so that something has to be loaded
        "deepspeed": config(stage),
    }  # fmt: skip
    args = arguments(folder, **{**plain, **more})
    return Trainer(gpt2(seed), args, train_dataset=Sentences(), eval_dataset=Sentences(8))


def whole(trainer):
    import deepspeed

    weights = {}
    for name, parameter in trainer.accelerator.unwrap_model(trainer.model).named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], enabled=hasattr(parameter, "ds_id")):
            weights[name] = parameter.detach().clone()
    return weights


def refused(me, folder):
    meet(me)
    said = []
    for call in (
        lambda: trainer_of(folder, 3, auto_find_batch_size=True),
        lambda: trainer_of(folder, 2, save_only_model=True),
        lambda: trainer_of(folder, 2).predict(Sentences(4)),
    ):
        with pytest.raises(ValueError, match=r"\w") as caught:
            call()
        said.append(str(caught.value))
    return said


def test_what_the_trainer_refuses_under_zero(pool, tmp_path):
    for find, only, predict in parts.run(pool, 2, refused, str(tmp_path)):
        assert "isn't supported yet with DeepSpeed Zero-3" in find
        assert "can't be used with `save_only_model` along with `load_best_model_at_end`" in only
        assert "ZeRO inference only makes sense with ZeRO Stage 3" in predict


def generated(me, folder):
    """A T5 made from a config, trained and asked for texts under stage 3."""
    meet(me)
    from transformers import (
        GenerationConfig,
        Seq2SeqTrainer,
        Seq2SeqTrainingArguments,
        T5Config,
        T5ForConditionalGeneration,
    )

    sizes = {"vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1}
    ids = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    made_from = T5Config(**sizes, **ids, num_heads=2, dropout_rate=0.0, initializer_factor=5.0)
    torch.manual_seed(4)
    model = T5ForConditionalGeneration(made_from)
    length = GenerationConfig(max_length=6, suppress_tokens=[0], **ids)
    args = arguments(
        folder, kind=Seq2SeqTrainingArguments, deepspeed=config(3), max_steps=2,
        predict_with_generate=True, generation_config=length,
    )  # fmt: skip
    trainer = Seq2SeqTrainer(model, args, train_dataset=Sentences(16, length=6))
    trainer.train()
    assert trainer.model_wrapped.zero_optimization_stage() == 3
    asked = Sentences(5, length=6)
    found = trainer.predict(asked)
    dense = T5ForConditionalGeneration(made_from)
    dense.load_state_dict(whole(trainer), strict=False)
    prompts = torch.stack([one["input_ids"] for one in asked])
    want = dense.eval().generate(prompts, generation_config=length)
    return found.predictions.tolist(), want.tolist()


def test_a_t5_answers_under_stage_3(pool, tmp_path):
    (words, want), other = parts.run(pool, 2, generated, str(tmp_path))
    assert (words, want) == other  # gathered from both ranks
    assert words[:5] == want and len({tuple(row) for row in want}) > 1
    # The last batch of four is filled up; Trainer.predict drops what fills it, this one does not.
    assert words[5:] == want[:3]


def replicated(me, folder):
    """Without DeepSpeed: torch's DDP with the arguments' words, and loggers by rank."""
    meet(me)
    from transformers import Trainer

    args = arguments(
        folder, ddp_backend="gloo", ddp_find_unused_parameters=True, ddp_broadcast_buffers=False,
        ddp_bucket_cap_mb=7, log_level="info", log_level_replica="error",
    )  # fmt: skip
    trainer = Trainer(gpt2(seed=2), args, train_dataset=Sentences())
    trainer.train()
    ddp = trainer.model_wrapped
    assert type(ddp).__name__ == "DistributedDataParallel" and args.world_size == 2
    settings = ddp.find_unused_parameters, ddp.broadcast_buffers, ddp.bucket_bytes_cap >> 20
    return settings, args.get_process_log_level(), args.should_log


def test_ddps_arguments_and_who_logs(pool, tmp_path):
    import logging

    first, second = parts.run(pool, 2, replicated, str(tmp_path))
    assert first == ((True, False, 7), logging.INFO, True)
    assert second == ((True, False, 7), logging.ERROR, False)


def shared(me, folder):
    """One dict, and one file, for two runs with other arguments."""
    meet(me)
    from transformers import Trainer

    one = config(2)
    before = json.dumps(one)
    file = Path(folder) / f"config-{me.rank}.json"
    file.write_text(before)
    seen = []
    for source, batch in ((one, 2), (one, 4), (str(file), 4)):
        args = arguments(folder, deepspeed=source, max_steps=1, per_device_train_batch_size=batch)
        trainer = Trainer(gpt2(seed=2), args, train_dataset=Sentences())
        trainer.train()
        seen.append(trainer.model_wrapped.train_micro_batch_size_per_gpu())
    return seen, json.dumps(one) == before, file.read_text() == before


def test_one_config_serves_several_runs(pool, tmp_path):
    assert parts.run(pool, 2, shared, str(tmp_path)) == [([2, 4, 4], True, True)] * 2
