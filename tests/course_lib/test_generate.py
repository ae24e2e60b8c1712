"""Text from a whole model: against a loop without a cache, transformers, and the probabilities."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from course_lib.generate import generate
from course_lib.gpt import GPT, Config
from tests.course_lib.tensor_parallel.parts import made, randomized, said

SIZES = {"vocabulary": 37, "length": 17, "layers": 2}
GPT2 = Config.gpt2(**SIZES, hidden=20, heads=5, inner=13)
LLAMA = Config.llama(**SIZES, hidden=24, heads=6, kv_heads=3, inner=10)
CONFIGS = [GPT2, LLAMA]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Models this small wait for their threads many times longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def model_of(config, label="generate"):
    return randomized(GPT(config), label)


def prompt(config, b=3, s=4, label="prompt"):
    return (made(label, b, s) * 999).long().abs() % config.vocabulary


@torch.no_grad()
def plainly(model, ids, count, choose=lambda logits: logits.argmax(-1)):
    """The whole text through the model for each new word."""
    for _ in range(count):
        ids = torch.cat((ids, choose(model(ids)[:, -1])[:, None]), 1)
    return ids


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_likeliest_words_are_those_of_a_plain_loop(config, dtype):
    model = model_of(config).to(dtype)
    for b, s, count in ((3, 4, 13), (1, 1, 5), (2, 16, 1), (2, 17, 0)):
        ids = prompt(config, b, s)
        got = generate(model, ids, count)
        if dtype == torch.bfloat16:  # too coarse for two ways to one sum: what is chosen is near it
            at = torch.arange(s - 1, s + count - 1)
            logits = model(got)[:, at].float()
            chosen = logits.gather(2, got[:, s:, None])[..., 0]
            most = logits.amax(-1)  # (b, count)
            assert (chosen >= most - 0.05 * most.abs()).all()
        else:
            assert torch.equal(got, plainly(model, ids, count))
        assert torch.equal(got[:, :s], ids) and got.shape == (b, s + count)
        assert torch.equal(generate(model, ids.int(), count), got.int())


@pytest.mark.parametrize("config", CONFIGS)
def test_a_word_is_drawn_from_the_softmax(config):
    """5 standard deviations of a count: one word in two million would be off by more."""
    model, n = model_of(config), 4000
    ids = prompt(config, 1).expand(n, -1)
    logits = model(ids[:1])[0, -1].detach()
    for temperature, top in ((1.0, None), (0.5, None), (3.0, 6), (1.0, 1), (2.0, 37), (2.0, 99)):
        weights = (logits / temperature).exp()
        if top is not None:
            weights[logits.argsort(descending=True)[top:]] = 0.0
        p = weights / weights.sum()
        got = generate(model, ids, 1, temperature=temperature, top=top, seed=5)[:, -1]
        counts = torch.bincount(got, minlength=config.vocabulary)
        off = (counts - n * p).abs()
        assert (off <= 5 * (n * p * (1 - p)).sqrt() + 1e-9).all(), (temperature, top, off.max())
    assert counts.count_nonzero() > 15  # at temperature 2 it was a draw


def test_a_seed_draws_one_text_and_another_seed_another():
    model, ids = model_of(LLAMA), prompt(LLAMA)
    one = generate(model, ids, 12, temperature=1.0, seed=1)
    torch.manual_seed(99)  # nobody else's numbers are drawn
    before = torch.get_rng_state()
    assert torch.equal(generate(model, ids, 12, temperature=1.0, seed=1), one)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(generate(model, ids, 12, temperature=1.0, seed=2), one)
    alike = generate(model, ids[:1].expand(5, -1), 12, temperature=3.0)
    assert len({tuple(row) for row in alike.tolist()}) == 5  # each row draws for itself
    again = torch.stack([alike[:, 4 + i] for i in range(12)])
    assert len({tuple(row) for row in again.tolist()}) == 12  # and each word
    of_all = generate(model, ids, 12, temperature=1.0, seed=1, top=37)
    assert torch.equal(of_all, one)  # it is the same draw
    assert torch.equal(generate(model, ids, 12, top=5), generate(model, ids, 12))


def test_noise_is_for_a_word_whatever_its_place_among_the_likeliest():
    """With the k likeliest alone, the word is the one whose logit and noise are most together."""
    model, ids = model_of(GPT2), prompt(GPT2, 50, 3)
    wide = generate(model, ids, 1, temperature=2.0, seed=3)[:, -1]
    logits = model(ids)[:, -1]
    for top in (2, 5, 20):
        among = (logits.topk(top).indices == wide[:, None]).any(1)
        got = generate(model, ids, 1, temperature=2.0, seed=3, top=top)[:, -1]
        assert torch.equal(got[among], wide[among]) and 0 < among.sum() < 50


class Ties(nn.Module):
    """A head whose logits are given, so that words can be equally likely."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def forward(self, x):
        return self.rows.to(x.dtype).expand(*x.shape[:2], -1)


def test_of_equally_likely_words_the_first_is_taken():
    model = model_of(GPT2)
    rows = torch.zeros(37)
    rows[[9, 20, 36]] = 1.0
    model.head = Ties(rows)
    assert generate(model, prompt(GPT2), 2)[:, 4:].tolist() == [[9, 9]] * 3
    drawn = generate(model, prompt(GPT2), 13, temperature=1.0, top=2)[:, 4:]
    assert set(drawn.flatten().tolist()) == {9, 20}
    drawn = generate(model, prompt(GPT2, 30), 13, temperature=1.0, top=5)[:, 4:]
    assert set(drawn.flatten().tolist()) == {9, 20, 36, 0, 1}
    rows[:] = -torch.inf
    rows[30] = -50.0
    assert generate(model, prompt(GPT2), 1, temperature=1.0, top=37)[:, 4].tolist() == [30] * 3
    rows[11] = torch.nan
    for options in ({}, {"temperature": 1.0}, {"temperature": 1.0, "top": 3}):
        assert "NaN" in said(ValueError, generate, model, prompt(GPT2), 1, **options)


def test_a_row_that_met_the_last_word_is_filled_up_with_it():
    model, ids = model_of(LLAMA), prompt(LLAMA, 6)
    free = generate(model, ids, 13, temperature=1.5, seed=4)
    forwards = []
    model.norm.register_forward_hook(lambda *_: forwards.append(1))
    ends = set()
    for stop in range(37):
        forwards.clear()
        got = generate(model, ids, 13, temperature=1.5, seed=4, stop=stop)
        met = [(free[i, 4:] == stop).nonzero().flatten().tolist() for i in range(6)]
        first = [at[0] if at else None for at in met]
        for i, at in enumerate(first):
            end = 17 if at is None else 4 + at
            assert torch.equal(got[i, :end], free[i, :end]) and (got[i, end:] == stop).all()
        last = 13 if None in first else max(first) + 1
        assert len(forwards) == last
        ends.add(None if None in first else last)
    assert len({int(w) for w in free[:, 4:].flatten()}) > 15
    one = generate(model, ids[:1], 13, temperature=1.5, seed=4)[0, 4:].tolist()
    forwards.clear()
    got = generate(model, ids[:1], 13, temperature=1.5, seed=4, stop=one[3])
    early = one.index(one[3])
    assert len(forwards) == early + 1 < 13
    assert got[0, 4:].tolist() == one[:early] + [one[3]] * (13 - early)


def test_it_evaluates_without_gradients_and_leaves_the_model_as_it_was():
    model = model_of(GPT2.changed(dropout=0.5, attention_dropout=0.5, recompute=True))
    ids = prompt(GPT2)
    want = plainly(model.eval(), ids, 13)
    model.train()
    model.blocks[1].eval()
    modes = [module.training for module in model.modules()]
    wants = []
    model.norm.register_forward_hook(lambda _, __, y: wants.append(y.requires_grad))
    assert torch.equal(generate(model, ids, 13), want)
    assert wants == [False] * 13
    assert [module.training for module in model.modules()] == modes
    nn.init.constant_(model.norm.weight, torch.nan)
    assert "NaN" in said(ValueError, generate, model, ids, 2)
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()


def test_what_cannot_be_made_is_refused():
    model, ids = model_of(GPT2), prompt(GPT2)

    def refused(ids=ids, count=2, **options):
        return said(ValueError, generate, model, ids, count, **options)

    told = refused(count=14)
    assert "4 tokens and count=14" in told and "are 18, above length=17" in told
    assert "count=13 at most" in told
    numbers = {"count": [-1], "temperature": [-0.1, math.nan, math.inf], "top": [0]}
    for name, values in {**numbers, "stop": [37, -1]}.items():
        for value in values:
            assert f"{name}={value}" in refused(**{name: value})
    assert "(4,)" in refused(ids[0]) and "(3, 0)" in refused(ids[:, :0])
    assert "float64" in refused(ids.double())
    assert "from 0 to 37" in refused(torch.tensor([[0, 37]]))
    assert "from -1 to 3" in refused(torch.tensor([[-1, 3]]))
