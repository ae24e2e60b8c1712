"""`course weights` of a folder of the Trainer under DeepSpeed: the master copies, bit for bit."""

from __future__ import annotations

import pytest
import torch

from course_lib.checkpoint.weights import convert
from tests.course_lib.peers.then_and_now import parts
from tests.course_lib.peers.then_and_now.parts import meet, needs_deepspeed
from tests.course_lib.pretrained.parts import bits

pytestmark = [needs_deepspeed, pytest.mark.slow]


def by_the_trainer(me, folder):
    """What the Trainer saves: its scheduler's state and arguments beside DeepSpeed's own."""
    meet(me)
    from tests.course_lib.peers.then_and_now.test_trainer_zero import trainer_of, whole

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
