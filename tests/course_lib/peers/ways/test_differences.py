"""Where ways differ by design: what a mean is over, what decays, and what a name does not say."""

from __future__ import annotations

import dataclasses
import tempfile

import pytest
import torch

from course_lib.peers.ways import trainer_run
from course_lib.peers.ways.ds_config import ds_config, for_trainer
from course_lib.peers.ways.evidence import Before
from course_lib.peers.ways.launched import launched, quiet
from course_lib.peers.ways.setting import WaySetting
from course_lib.peers.ways.trainer_run import arguments
from course_lib.peers.ways.with_deepspeed import imported
from course_lib.peers.ways.workload import Workload
from tests.course_lib.peers.ways.runs import ENV, alone, needs_all
from tests.course_lib.peers.ways.test_ways import sizes

SMALL = Workload(steps=3)


def counted(workload: Workload, folder: str, first: bool) -> tuple[float, float]:
    """(what the Trainer divides by, tokens that have a prediction) of one micro-batch."""
    import transformers

    args = transformers.TrainingArguments(**arguments(alone(), workload, WaySetting(), folder))
    trainer = transformers.Trainer(model=workload.model(), args=args)
    batch = workload.batch_of(0, 0, 0)
    if first:
        batch["labels"][:, 0] = batch["input_ids"][:, 0]
    divisor = trainer._get_num_items_in_batch([batch], torch.device("cpu"))
    return float(divisor), float((batch["labels"][:, 1:] != -100).sum())


@needs_all
def test_the_trainer_counts_a_label_that_gpt2_does_not_predict(tmp_path):
    """Where labels are a copy of the ids, as tutorials have it, GPT-2's class name hides from the
    Trainer that its loss shifts: 16 are counted of 15, and loss and gradients are 1/16 too small.
    Llama's are right, and so is GPT-2's where the first label is -100, as in `Workload`."""
    gpt2, llama = SMALL, dataclasses.replace(SMALL, family="llama")
    divisor, predicted = counted(gpt2, str(tmp_path), first=True)
    assert (divisor, predicted) == (32, 30)
    assert counted(llama, str(tmp_path), first=True) == (30, 30)
    assert counted(gpt2, str(tmp_path), first=False) == (30, 30)


def believed(me, workload, setting):
    """First loss and norm of a T5 as it comes, and of one that says that its loss is a mean."""

    def as_it_comes():
        model = workload.model()
        del model.accepts_loss_kwargs
        return model

    runs = []
    for make in (as_it_comes, workload.model):
        with launched(me), quiet(), tempfile.TemporaryDirectory() as folder:
            given = arguments(me, workload, setting, folder)
            made = trainer_run.trainer(workload, setting, me.world, make, given)
            assert type(made).__mro__[1].__name__ == "Seq2SeqTrainer"
            run = trainer_run.run("ddp", made, trainer_run.recorder_class()(Before()))
            runs.append((run.losses[0], run.norms[0]))
    return runs


@pytest.mark.slow
@needs_all
def test_the_trainer_believes_that_t5_divides_by_all_tokens(pool):
    """T5's forward takes any keyword and drops the number of tokens: its mean is then multiplied by
    the ranks and never divided by the micro-batches. AdamW hides it, a clip does not."""
    workload, setting = dataclasses.replace(SMALL, family="t5", steps=1), WaySetting(accumulate=2)
    wrong, right = pool.run(2, believed, workload, setting, timeout=90, env=ENV, alone=True)[0]
    assert wrong == pytest.approx([4 * number for number in right], rel=1e-4)


@needs_all
def test_the_trainer_decays_neither_norms_nor_biases(tmp_path):
    """Its own optimizer leaves them out; a DeepSpeed config's optimizer has one group, and all."""
    import transformers

    args = transformers.TrainingArguments(**arguments(alone(), SMALL, WaySetting(), str(tmp_path)))
    trainer = transformers.Trainer(model=SMALL.model(), args=args)
    groups = trainer.create_optimizer().param_groups
    assert [group["weight_decay"] for group in groups] == [SMALL.weight_decay, 0.0]
    assert all(p.ndim == 1 for p in groups[1]["params"])
    assert len(groups[1]["params"]) == 18  # 5 norms of two and 8 biases
    parameters, _ = sizes(SMALL)
    assert sum(p.numel() for group in groups for p in group["params"]) == parameters


def groups_of_a_config(me, folder):
    """Weight decay of each parameter group, with the stock Trainer and an optimizer in the file."""
    import transformers

    workload, setting = dataclasses.replace(SMALL, steps=1), WaySetting()
    with launched(me), quiet():
        imported()  # which keeps DeepSpeed from compiling an all-reduce for this group
        config = for_trainer(workload, setting)
        given = arguments(me, workload, setting, folder, deepspeed=config)
        made = transformers.Trainer(
            model=workload.model(),
            args=transformers.TrainingArguments(**given),
            train_dataset=workload.rows(1, 1),
        )
        made.train()
        engine = made.model_wrapped
        decays = [group["weight_decay"] for group in engine.optimizer.param_groups]
        engine.destroy()
    return decays


@pytest.mark.slow
@needs_all
def test_the_optimizer_of_a_config_decays_all(pool, tmp_path):
    run = pool.run(1, groups_of_a_config, str(tmp_path), timeout=90, env=ENV, alone=True)
    assert run[0] == [SMALL.weight_decay]


def defaults(me):
    """{question: what DeepSpeed does where a config leaves it open}."""
    answers = {}
    with launched(me), quiet():
        deepspeed = imported()
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        for question, change in {
            "Adam": {},
            "Adam, adam_w_mode false": {"adam_w_mode": False},
        }.items():
            config = ds_config(SMALL, WaySetting())
            config["optimizer"]["type"] = "Adam"
            config["optimizer"]["params"] |= change
            del config["gradient_clipping"]
            model = SMALL.model().to(me.device)
            engine, *_ = deepspeed.initialize(
                model=model, model_parameters=model.parameters(), config=config
            )
            answers[question] = type(engine.optimizer).__name__
            answers["clips at"] = engine.gradient_clipping()
            engine.destroy()
    return answers


@needs_all
def test_what_deepspeed_takes_where_a_config_is_silent(pool):
    """ "Adam" is AdamW, and no clipping is clipping at 1.0."""
    answers = pool.run(1, defaults, timeout=90, env=ENV, alone=True)[0]
    assert answers == {"Adam": "AdamW", "Adam, adam_w_mode false": "Adam", "clips at": 1.0}
