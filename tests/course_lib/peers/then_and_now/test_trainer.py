"""The Trainer in one process: callbacks, metrics, checkpoints, seeds, batch size, evaluation."""

from __future__ import annotations

import importlib.util
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from course_lib.peers.ways.launched import forget, quiet
from tests.course_lib.peers.then_and_now.parts import Sentences, arguments, gpt2

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("accelerate", "transformers")),
    reason="transformers or accelerate is not installed (pip install 'course_lib[huggingface]')",
)


@pytest.fixture(autouse=True)
def _process_as_it_was(monkeypatch):
    """One rank, no hub; what the Trainer sets in this process is put back."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = dict(os.environ)
    state = torch.get_rng_state(), random.getstate(), np.random.get_state()
    deterministic = torch.are_deterministic_algorithms_enabled()
    with quiet():
        yield
    forget()
    os.environ.clear()
    os.environ.update(before)
    torch.use_deterministic_algorithms(deterministic)
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    np.random.set_state(state[2])


def trainer_of(folder, model=None, **more):
    from transformers import Trainer

    others = ("callbacks", "compute_metrics")
    rest = {name: more.pop(name) for name in others if name in more}
    data = {"train_dataset": Sentences(), "eval_dataset": Sentences(6)}
    return Trainer(gpt2() if model is None else model, arguments(folder, **more), **data, **rest)


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_a_callback_is_told_and_can_end_the_run(tmp_path):
    from transformers import TrainerCallback

    steps = []

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **more):
            steps.append(state.global_step)
            control.should_training_stop = state.global_step == 2

    trainer_of(tmp_path, callbacks=[Stop()]).train()
    assert steps == [1, 2]  # of max_steps=4


def test_metrics_are_of_all_that_was_predicted(tmp_path):
    seen = []

    def metrics(found):
        seen.append(found)
        return {"mean": float(found.label_ids.mean()), "rows": len(found.predictions)}

    trainer = trainer_of(tmp_path, compute_metrics=metrics)
    reported = trainer.evaluate()
    labels = torch.stack([one["labels"] for one in Sentences(6)])  # three batches of two
    assert reported["eval_rows"] == 6
    assert reported["eval_mean"] == pytest.approx(labels.float().mean().item())
    with torch.no_grad():
        logits = trainer.model(labels).logits
    assert torch.allclose(torch.tensor(seen[0].predictions), logits, atol=1e-5)


def test_two_checkpoints_stay_and_the_best_is_one_of_them(tmp_path):
    saved = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
    judged = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
    judged |= {"metric_for_best_model": "loss", "greater_is_better": True}  # the first, here
    trainer = trainer_of(tmp_path, **saved, **judged)
    trainer.train()
    left = sorted(path.name for path in tmp_path.glob("checkpoint-*"))
    assert left == ["checkpoint-1", "checkpoint-4"]
    assert Path(trainer.state.best_model_checkpoint).name == "checkpoint-1"


@pytest.mark.slow
def test_seeds_decide_a_run(tmp_path):
    with_dropout = {"embd_pdrop": 0.2}

    def run(**more):
        trainer = trainer_of(tmp_path, gpt2(seed=1, **with_dropout), **more)
        trainer.train()
        return losses(trainer)

    first = run(seed=3)
    assert run(seed=3) == first
    assert run(seed=4) != first
    assert run(seed=3, data_seed=8) != first  # other batches, the same dropout
    assert run(seed=3, full_determinism=True) == first  # on a CPU it is deterministic already
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"]


@pytest.mark.slow
def test_a_batch_that_does_not_fit_is_made_smaller(tmp_path):
    sizes = []

    def limited(module, args, kwargs):
        sizes.append(len(kwargs["input_ids"]))
        if sizes[-1] > 5:
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")

    def run(**more):
        sizes.clear()
        model = gpt2()
        model.register_forward_pre_hook(limited, with_kwargs=True)
        trainer_of(tmp_path, model, per_device_train_batch_size=8, max_steps=1, **more).train()

    with pytest.raises(RuntimeError, match="out of memory"):
        run()
    assert sizes == [8]
    run(auto_find_batch_size=True)
    assert sizes[0] == 8 and sizes[-1] <= 5
    assert sizes == sorted(sizes, reverse=True) and len(sizes) >= 3


def test_evaluation_may_be_all_in_sixteen_bits(tmp_path):
    for name, dtype in (("bf16_full_eval", torch.bfloat16), ("fp16_full_eval", torch.float16)):
        trainer = trainer_of(tmp_path, **{name: True})
        seen = []
        trainer.model.transformer.ln_f.register_forward_hook(
            lambda module, args, out, seen=seen: seen.append(out.dtype)
        )
        assert trainer.evaluate()["eval_loss"] > 0
        assert set(seen) == {dtype}


@pytest.mark.slow
def test_a_compiled_model_is_the_same_model(tmp_path):
    def run(**more):
        trainer = trainer_of(tmp_path, **more)
        trainer.train()
        return type(trainer.model_wrapped).__name__, losses(trainer)

    plain, curve = run(max_steps=2)
    # The compiler's first half alone: the graph is found, and run without generated code.
    compiled, same = run(max_steps=2, torch_compile=True, torch_compile_backend="eager")
    assert (plain, compiled) == ("GPT2LMHeadModel", "OptimizedModule")
    assert same == pytest.approx(curve, rel=1e-5)
