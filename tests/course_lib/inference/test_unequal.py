"""Prompts of unequal lengths in one batch: the words of each prompt alone, whole or cut over tp."""

from __future__ import annotations

import copy

import pytest
import torch

from course_lib import ranks
from course_lib.generate import generate
from course_lib.gpt import Cache
from course_lib.gpt.padding import left_padded, without_padding
from course_lib.tensor_parallel import parallelize
from tests.course_lib.inference.parts import CONFIGS, alone, lists, model_of, prompts_of, said

PROMPTS = [[3, 1, 4, 1, 5, 9], [2], [7, 18, 28], [36, 0, 0, 0, 0]]


@pytest.mark.parametrize("family", CONFIGS)
def test_each_row_has_the_words_of_its_prompt_alone(family):
    model = model_of(family)
    texts = generate(model, PROMPTS, 11)
    assert lists(texts) == alone(model, PROMPTS, 11)
    assert len({tuple(text[-11:]) for text in lists(texts)}) == 4
    as_tensors = [torch.tensor(p, dtype=torch.int32) for p in PROMPTS]
    assert lists(generate(model, as_tensors, 11)) == lists(texts)
    even = generate(model, [p[:1] for p in PROMPTS], 4)
    assert lists(even) == generate(model, torch.tensor([p[:1] for p in PROMPTS]), 4).tolist()


@pytest.mark.parametrize("family", CONFIGS)
def test_no_token_looks_at_padding_and_positions_count_from_the_first_token(family):
    """Whatever stands in the padding, the logits are those of the prompt alone."""
    model = model_of(family)
    ids, padding = left_padded(PROMPTS, torch.device("cpu"))
    assert padding.tolist() == [0, 5, 3, 1]
    found = []
    for filler in (0, 21):
        places = torch.arange(6) < padding[:, None]
        past = [Cache(padding) for _ in model.blocks]
        logits = [model(ids.masked_fill(places, filler)[:, :4], past)]
        logits.append(model(ids[:, 4:], past))  # in two pieces, the second after the padding
        found.append(torch.cat(logits, 1))
    for row, (prompt, empty) in enumerate(zip(PROMPTS, padding.tolist(), strict=True)):
        want = model(torch.tensor([prompt]))[0]
        for logits in found:
            assert torch.allclose(logits[row, empty:], want, rtol=0, atol=1e-12)
        assert logits[row].isfinite().all()


def test_a_row_ends_at_its_stop_and_is_given_back_without_padding():
    model = model_of("llama")
    free = generate(model, PROMPTS, 9)
    stop = int(free[1][4])
    texts = generate(model, PROMPTS, 9, stop=stop)
    assert lists(texts) == alone(model, PROMPTS, 9, stop=stop) != lists(free)
    assert [len(text) for text in texts] == [len(p) + 9 for p in PROMPTS]


def cut(me, family, sequence):
    dense = model_of(family)
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    found = parallelize(copy.deepcopy(dense), mesh, sequence=sequence)
    prompts = prompts_of(1) + PROMPTS
    how = {"temperature": 1.5, "top": 5, "seed": 3}
    assert lists(generate(found, prompts, 6)) == alone(dense, prompts, 6)
    assert lists(generate(found, prompts, 6, **how)) == lists(generate(dense, prompts, 6, **how))
    other = prompts if me.rank else [prompts[0][::-1], *prompts[1:]]
    return said(ValueError, generate, found, other, 6)


@pytest.mark.parametrize(
    ("world", "family", "sequence"), [(2, "llama", False), (3, "gpt2", True), (2, "gpt2", False)]
)
def test_a_cut_model_takes_the_words_of_the_whole_one(pool, world, family, sequence):
    for rank, words in enumerate(pool.run(world, cut, family, sequence)):
        assert f"rank {rank}: rank 1" in words and "got prompts or settings" in words


THEIRS = {
    "gpt2": {"n_positions": 17, "n_embd": 20, "n_layer": 2, "n_head": 5, "n_inner": 13},
    "llama": {
        "max_position_embeddings": 17, "hidden_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 10,
    },
}  # fmt: skip


def test_unequal_prompts_go_on_as_transformers_goes_on_with_them(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from course_lib.inference.with_deepspeed import write
    from course_lib.pretrained import from_pretrained
    from tests.course_lib.tensor_parallel.parts import randomized

    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    for family, sizes in THEIRS.items():
        config = transformers.AutoConfig.for_model(family, vocab_size=37, **sizes, **ends)
        theirs = randomized(transformers.AutoModelForCausalLM.from_config(config), family).eval()
        theirs.save_pretrained(tmp_path / family)
        ours = from_pretrained(tmp_path / family, dtype=torch.float64)
        texts = lists(generate(ours, PROMPTS, 11))
        assert write(theirs, PROMPTS, 11) == texts == alone(ours, PROMPTS, 11)
        stop = texts[1][4]
        ended = write(theirs, PROMPTS, 11, stop=stop)
        assert len(ended[1]) <= 5
        assert [t[: len(e)] for t, e in zip(texts, ended, strict=True)] == ended


def test_what_is_no_prompt_is_refused():
    model = model_of("gpt2")

    def refused(prompts, **options):
        return said(ValueError, generate, model, prompts, 2, **options)

    assert "prompt 1 of 2 is without a token" in refused([[1], []])
    assert "prompt 0 of 1 is without a token" in refused([torch.zeros(0, dtype=torch.long)])
    assert "prompt 0 of 1 is torch.float32 (2,)" in refused([[0.5, 1.0]])
    assert "prompt 0 of 2 is torch.int64 (1, 2)" in refused([torch.zeros(1, 2).long(), [1]])
    assert "prompt 1 of 2 is torch.bool" in refused([[1], torch.ones(2, dtype=torch.bool)])
    assert "ids from 1 to 37" in refused([[1], [37]])
    assert "a prompt of 16 tokens and count=2" in refused([[1], [2] * 16])
    for none in ([], torch.zeros((0, 3), dtype=torch.long)):
        words = refused(none)
        assert "this rank has no row" in words and "synced=" in words
    assert without_padding(torch.ones(2, 3), None)[1].shape == (3,)
