"""What is held back is trained on by nobody, and its loss is one number for all ranks."""

from __future__ import annotations

import pytest
import torch

from course_lib import ranks
from course_lib.data import Corpus
from course_lib.gpt import GPT, Config
from course_lib.step.losses import loss_sum
from course_lib.tensor_parallel import parallelize
from course_lib.train.options import Options
from course_lib.train.text import Text, held_back

TINY = {"length": 8, "corpus_bytes": 60_000, "rows": 5, "vocabulary": 283, "held_back": 0.02}
CONFIG = Config.gpt2(
    vocabulary=283, length=8, hidden=12, layers=1, heads=2, dropout=0.4, attention_dropout=0.4
)


def corpus(*lengths):
    ends = torch.tensor(lengths).cumsum(0)
    starts = ends - torch.tensor(lengths)
    return Corpus(torch.arange(int(ends[-1]), dtype=torch.int32), starts, "{}")


@pytest.mark.parametrize(
    ("lengths", "part", "left", "starts"),
    [
        ((10,), 0.2, 8, ([0], [0])),  # one document is cut
        ((4, 4, 2), 0.2, 8, ([0, 4], [0])),  # between two
        ((4, 3, 3), 0.5, 5, ([0, 4], [0, 2])),
        ((10,), 0.0, 10, ([0], [])),
        ((10,), 0.04, 10, ([0], [])),
    ],
)
def test_the_last_tokens_are_held_back(lengths, part, left, starts):
    training, rest = held_back(corpus(*lengths), part)
    assert training.tokens.tolist() == list(range(left))
    assert rest.tokens.tolist() == list(range(left, sum(lengths)))
    assert (training.starts.tolist(), rest.starts.tolist()) == starts


def text_of(me, dp, folder, model, **options):
    mesh = ranks.mesh(me, dp=dp, tp=me.world // dp)
    parallelize(model, mesh)
    from pathlib import Path

    return Text(Options(**{**TINY, **options}), me, mesh, Path(folder), model), mesh


def whole_model():
    torch.manual_seed(3)
    return GPT(CONFIG)


def never_trained(me, folder):
    text, _ = text_of(me, me.world, folder, whole_model())
    held = text.rest.tokens.numel()
    return held, text.batches.tokens.numel(), len(text.batches.tokens.untyped_storage()) // 4


def test_no_training_row_is_held_back(pool, tmp_path):
    for held, trained, whole in pool.run(2, never_trained, str(tmp_path)):
        assert held + trained == whole and held == int(whole * 0.02) > 100


def validated(me, dp, folder):
    model = whole_model()
    text, _ = text_of(me, dp, folder, model)
    model.train()
    before = torch.get_rng_state()
    losses = [text.validation_loss(model) for _ in range(2)]
    return losses, model.training, bool(torch.equal(before, torch.get_rng_state()))


def alone(me, folder):
    """The mean over the same rows, by hand: four batches of five rows."""
    model = whole_model()
    text, _ = text_of(me, 1, folder, model)
    from course_lib.data import Batches

    batches, total, count = Batches(text.rest, rows=5, length=8, device=me.device), 0.0, 0
    with torch.no_grad():
        for _ in range(4):
            batch = next(batches)
            total += loss_sum(model.eval(), batch.ids, batch.targets).item()
            count += batch.count
    return total / count


def test_a_validation_is_the_mean_over_all_replicas(pool, tmp_path):
    (wanted,) = pool.run(1, alone, str(tmp_path))
    for dp in (1, 2):
        for losses, training, untouched in pool.run(2, validated, dp, str(tmp_path)):
            assert losses[0] == pytest.approx(wanted, rel=1e-6)
            assert losses[0] == losses[1] and training and untouched  # no dropout, and no trace
