"""A tokenizer's file, and what people have in place of one."""

from __future__ import annotations

import importlib.util
import json
import pickle

import pytest

from course_lib.data import corpus, read_tokenizer, train_tokenizer

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tokenizers") is None, reason="tokenizers is not installed"
)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(corpus(most_bytes=20_000), 300)


def test_a_saved_one_is_the_same_by_its_file_and_by_its_folder(tokenizer, tmp_path):
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert read_tokenizer(path).to_str() == tokenizer.to_str()


class Runs:
    def __reduce__(self):
        return exec, ("raise SystemExit('it was run')",)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer.pkl", pickle.dumps(Runs()), "is a pickle .* which may run code"),
        ("tokenizer.pt", b"PK\x03\x04", "is a pickle or an archive"),
        ("vocab.txt", b"[PAD]\nthe\na\n", r"is no JSON. A list of words \(vocab.txt\)"),
        ("vocab.json", b'{"the": 0, "a": 1}', r"no tokenizer: it has \['a', 'the'\]"),
        ("list.json", b"[1, 2]", "no tokenizer: it has list"),
        ("config.json", json.dumps({"model": {"type": "None"}}).encode(), "cannot be read"),
    ],
)
def test_what_is_no_tokenizer_is_refused_by_its_kind(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=said) as refused:
        read_tokenizer(tmp_path / name)
    assert name in str(refused.value)


def test_a_file_that_is_not_there_is_said_with_what_is(tmp_path):
    (tmp_path / "merges.txt").touch()
    with pytest.raises(FileNotFoundError, match=r"no .*tokenizer.json; .* \['merges.txt'\]"):
        read_tokenizer(tmp_path)
    with pytest.raises(FileNotFoundError, match="no files at all"):
        read_tokenizer(tmp_path / "nowhere" / "tokenizer.json")
