"""A tokenizer trained here, on the standard library's own source: what the page shows of them."""

from __future__ import annotations

import importlib.util
import itertools
import textwrap
from pathlib import Path

import pytest
import torch

from tests.then_and_now.parts import gpt2

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("tokenizers", "transformers")),
    reason="transformers or tokenizers is not installed (pip install 'course_lib[huggingface]')",
)
TEXT = "def wrap(text, width=70): return a list"


@pytest.fixture(scope="module")
def tokenizer():
    """Byte-level BPE, as GPT-2's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<pad>", "<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(Path(textwrap.__file__).read_text().splitlines(True), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<end>")


def test_a_text_comes_back_whole_and_in_fewer_tokens_than_bytes(tokenizer):
    for text in (TEXT, "Grüße, 世界\n"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer(TEXT)["input_ids"]) < 0.7 * len(TEXT)
    assert tokenizer.is_fast and len(tokenizer) == 500


def test_a_batch_is_padded_to_its_longest_and_cut_where_it_is_asked(tokenizer):
    texts = [TEXT, "def f(): pass"]
    lengths = [len(tokenizer(text)["input_ids"]) for text in texts]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    assert batch["input_ids"].shape == (2, max(lengths))
    assert batch["attention_mask"].sum(1).tolist() == lengths
    assert set(batch["input_ids"][1, lengths[1] :].tolist()) == {tokenizer.pad_token_id}
    multiple = tokenizer(texts, padding=True, pad_to_multiple_of=16)["input_ids"]
    assert {len(row) % 16 for row in multiple} == {0}
    cut = tokenizer(texts, truncation=True, max_length=4)["input_ids"]
    assert cut == [tokenizer(text)["input_ids"][:4] for text in texts]


def test_what_is_cut_off_comes_as_further_rows(tokenizer):
    ids = tokenizer(TEXT)["input_ids"]
    rows = tokenizer(TEXT, truncation=True, max_length=6, stride=2, return_overflowing_tokens=True)[
        "input_ids"
    ]
    assert rows[0] == ids[:6] and len(rows) > 2
    assert all(a[-2:] == b[:2] for a, b in itertools.pairwise(rows))
    assert rows[0] + [i for row in rows[1:] for i in row[2:]] == ids


def test_added_tokens_are_never_cut_and_need_rows_of_the_embedding(tokenizer, tmp_path):
    more = type(tokenizer).from_pretrained(_saved(tokenizer, tmp_path))
    assert more.add_tokens(["textwrap.fill"]) == 1
    assert more.add_special_tokens({"extra_special_tokens": ["<sep>"]}) == 1
    ids = more("<sep>textwrap.fill")["input_ids"]
    assert ids == [501, 500]
    assert more.decode(ids, skip_special_tokens=True) == "textwrap.fill"
    model = gpt2(vocab_size=500)
    before = model.transformer.wte.weight.detach().clone()
    with pytest.raises(IndexError):
        model(torch.tensor([ids]))
    model.resize_token_embeddings(len(more), pad_to_multiple_of=8)
    table = model.transformer.wte.weight
    assert table.shape == (504, 16) and torch.equal(table[:500], before)
    assert model.lm_head.weight is table and model.config.vocab_size == 504
    assert model(torch.tensor([ids])).logits.shape == (1, 2, 504)


def test_tokens_words_and_characters_find_each_other(tokenizer):
    batch = tokenizer(TEXT)
    start = TEXT.index("width")
    token = batch.char_to_token(start)
    span = batch.token_to_chars(token)
    assert span.start <= start < span.end
    word = batch.token_to_word(token)
    tokens = batch.word_to_tokens(word)
    assert tokens.start <= token < tokens.end
    chars = batch.word_to_chars(word)
    assert TEXT[chars.start : chars.end].strip() == "width"
    assert batch.word_ids()[token] == word


def test_a_saved_tokenizer_is_the_same(tokenizer, tmp_path):
    from transformers import AutoTokenizer

    again = AutoTokenizer.from_pretrained(_saved(tokenizer, tmp_path))
    assert again(TEXT)["input_ids"] == tokenizer(TEXT)["input_ids"]
    assert again.pad_token_id == tokenizer.pad_token_id
    assert {path.name for path in tmp_path.iterdir()} == {
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_the_same_algorithm_learns_another_vocabulary(tokenizer):
    other = tokenizer.train_new_from_iterator(["aaaa bbbb " * 20], vocab_size=262)
    assert len(other) <= 262
    assert len(other("aaaa bbbb")["input_ids"]) < len(tokenizer("aaaa bbbb")["input_ids"])


def _saved(tokenizer, folder):
    tokenizer.save_pretrained(folder)
    return str(folder)
