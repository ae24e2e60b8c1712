"""From text to tokens: Python's own sources, a tokenizer of the right size, made once for all."""

from __future__ import annotations

import json
import os
import pickle
import sys
import sysconfig
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_lib.data import Corpus, corpus, encode, prepare, read_tokenizer, train_tokenizer
from course_lib.data.corpus import VOCABULARY
from tests.course_lib.tensor_parallel.parts import said
from tests.support.commands import python

pytest.importorskip("tokenizers", reason="tokenizers is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

END = "<|end|>"
MODULE = sys.modules["course_lib.data.prepare"]  # the name `prepare` in the package is a function
TEXTS = [
    "def cut(total, n):\n    return total // n\n" * 3,
    "größer, 数, 🙂 and\ttabs\r\n\x00 too",
    f"a document that says {END} does not end there {END}",
    "cut(total, n) cut(total, n) return total",
    "",
]
SMALL = 262  # words: 256 bytes, one end, five merges


def files(root, **content):
    for name, text in content.items():
        file = root / name.replace("__", "/").replace("_py", ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())


def test_the_text_is_the_librarys_own_and_the_same_each_time():
    documents = corpus(300_000)
    assert documents == corpus(300_000)
    size = sum(len(one.encode()) for one in documents)
    assert 299_000 < size <= 300_000  # but for a part of a line
    assert sum(len(one.encode()) for one in corpus()) > 1_900_000
    more = corpus(301_000)
    assert more[: len(documents) - 1] == documents[:-1]
    assert more[len(documents) - 1].startswith(documents[-1]) and documents[-1].endswith("\n")
    root = Path(sysconfig.get_path("stdlib"))
    assert (root / "__future__.py").read_text() in documents


def test_only_sources_of_the_library_itself_are_taken_in_the_order_of_their_names(tmp_path):
    files(
        tmp_path, b_py="second = 2\r\n", a__inner_py="first = 1\n", c_py=" \n",  # nothing to read
        test__d_py="no\n", tests__e_py="no\n", a__idle_test__f_py="no\n", z_py="last\n",
        **{"site-packages__g_py": "no\n", "readme.txt": "no\n"}, latin_py="é".encode("latin-1"),
    )  # fmt: skip
    (tmp_path / "_sysconfigdata_here.py").write_text("no\n")
    assert corpus(folder=tmp_path) == ["first = 1\n", "second = 2\n", "last\n"]
    assert corpus(24, folder=tmp_path) == ["first = 1\n", "second = 2\n"]
    assert corpus(15, folder=tmp_path) == corpus(10, folder=tmp_path) == ["first = 1\n"]
    assert "in most_bytes=9" in said(ValueError, corpus, 9, tmp_path)
    assert str(tmp_path) in said(ValueError, corpus, folder=tmp_path / "readme.txt")


@pytest.fixture(scope="module")
def sources():
    return corpus(400_000)


def test_the_vocabulary_has_exactly_so_many_words_and_divides_badly(sources):
    tokenizer = train_tokenizer(sources)
    size = tokenizer.get_vocab_size()
    assert size == VOCABULARY == 2039
    assert all(size % n for n in (2, 3, 4))
    assert sorted(tokenizer.get_vocab().values()) == list(range(size))
    assert train_tokenizer(sources, 512).get_vocab_size() == 512
    made = encode(sources[:3], tokenizer)
    assert made.vocabulary == 2039 and tokenizer.token_to_id(END) == 0
    letters = sum(len(one) for one in sources[:3])
    assert made.tokens.numel() < letters / 2  # it has learnt something of Python


def test_a_vocabulary_out_of_reach_is_refused():
    told = said(ValueError, train_tokenizer, TEXTS, 2039)
    assert "instead of vocabulary=2039" in told and "5 documents" in told
    assert "above 257" in said(ValueError, train_tokenizer, TEXTS, 257)
    assert train_tokenizer(TEXTS, 258).get_vocab_size() == 258


def test_every_text_comes_back_letter_by_letter():
    made = encode(TEXTS, train_tokenizer(TEXTS, SMALL))
    assert made.tokens.dtype == torch.int32
    documents = made.tokens.tensor_split(made.starts[1:])
    for ids, text in zip(documents, TEXTS, strict=True):
        assert ids[-1] == 0 and not (ids[:-1] == 0).any()
        assert made.text(ids) == text + END
    prompt = made.ids("return total")
    assert prompt.shape[0] == 1 and made.text(prompt) == "return total"
    assert made.ids(END).tolist() == [[0]]  # a prompt may begin with it
    assert "no document" in said(ValueError, encode, [], made.tokenizer)


def test_the_fingerprint_is_of_all_that_matters():
    tokenizer = train_tokenizer(TEXTS, SMALL)
    made = encode(TEXTS, tokenizer)
    others = [
        encode(TEXTS[:-1], tokenizer),
        encode(["".join(TEXTS)], tokenizer),
        encode(TEXTS, train_tokenizer(TEXTS, SMALL + 1)),
        Corpus(made.tokens, made.starts.flip(0), made.tokenizer_json),
        Corpus(made.tokens.roll(1), made.starts, made.tokenizer_json),
        Corpus(made.tokens, made.starts, made.tokenizer_json + " "),
    ]
    assert encode(TEXTS, tokenizer).fingerprint == made.fingerprint
    assert len({made.fingerprint, *(one.fingerprint for one in others)}) == 1 + len(others)


def test_another_process_makes_the_same_corpus():
    fresh = "prepare(None, most_bytes=200_000, vocabulary=601).fingerprint"
    program = f"from course_lib.data import prepare; print({fresh})"
    done = python("-c", program, env={"PYTHONHASHSEED": "1", "RAYON_NUM_THREADS": "1"})
    assert done.stdout.strip() == prepare(None, most_bytes=200_000, vocabulary=601).fingerprint


@pytest.mark.parametrize(("missing", "folder"), [("tokenizers", False), ("safetensors", True)])
def test_a_missing_package_is_named_with_the_extra(monkeypatch, tmp_path, missing, folder):
    monkeypatch.setitem(sys.modules, missing, None)
    call = {"documents": TEXTS, "vocabulary": SMALL}
    told = said(ImportError, prepare, None, tmp_path if folder else None, **call)
    assert missing in told and "course_lib[huggingface]" in told


def kept(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def prepared(folder, documents=TEXTS, vocabulary=SMALL):
    """The corpus, and what was said about the folder."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        made = prepare(None, folder, documents=documents, vocabulary=vocabulary)
    return made, [str(one.message) for one in heard]


def test_what_is_kept_is_used_again_and_is_no_pickle(tmp_path, monkeypatch):
    folder = tmp_path / "new" / "corpus"
    made, said_ = prepared(folder)
    assert said_ == [] and sorted(kept(folder)) == ["tokenizer.json", "tokens.safetensors"]
    json.loads(kept(folder)["tokenizer.json"])
    before = kept(folder)
    monkeypatch.setattr(MODULE, "train_tokenizer", None)  # nothing is trained
    again, said_ = prepared(folder)
    assert said_ == [] and again.fingerprint == made.fingerprint and kept(folder) == before


DAMAGES = {
    "cut short": ("tokens.safetensors", lambda raw: raw[:-5]),
    "empty": ("tokens.safetensors", lambda raw: b""),
    "a bit": ("tokens.safetensors", lambda raw: raw[:-20] + bytes([raw[-20] ^ 1]) + raw[-19:]),
    "gone": ("tokens.safetensors", None),
    "no tokenizer": ("tokenizer.json", None),
    "another tokenizer": ("tokenizer.json", lambda raw: raw.replace(b"true", b"false", 1)),
    "no text": ("tokenizer.json", lambda raw: b"\xff" + raw),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_made_anew_with_a_word(tmp_path, damage):
    made, _ = prepared(tmp_path)
    before = kept(tmp_path)
    name, change = DAMAGES[damage]
    if change is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(change(before[name]))
    again, said_ = prepared(tmp_path)
    assert len(said_) == 1 and "damaged" in said_[0] and str(tmp_path) in said_[0]
    assert again.fingerprint == made.fingerprint and kept(tmp_path) == before


def test_a_folder_of_another_text_or_size_is_made_anew_with_a_word(tmp_path):
    for options in ({"vocabulary": SMALL + 1}, {"documents": TEXTS[:3]}):
        prepared(tmp_path)
        want = prepare(None, **{"documents": TEXTS, "vocabulary": SMALL, **options})
        got, said_ = prepared(tmp_path, **options)
        assert got.fingerprint == want.fingerprint
        assert len(said_) == 1 and "different text or settings" in said_[0]
        assert prepared(tmp_path, **options)[1] == []


def test_a_failure_while_keeping_leaves_what_was_there(tmp_path, monkeypatch):
    prepared(tmp_path)
    before = kept(tmp_path)
    calls = []

    def full(handle):
        calls.append(handle)
        os.truncate(handle, os.fstat(handle).st_size // 2)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(UserWarning, match="text or settings"):
        said(OSError, prepare, None, tmp_path, documents=TEXTS, vocabulary=SMALL + 1)
    assert calls and kept(tmp_path) == before


def heard_by_all(me, folder):
    """Rank 0 alone has texts and a folder; what it makes is what everyone holds."""
    own = TEXTS if me.rank == 0 else None
    made = prepare(dist.group.WORLD, folder, documents=own, vocabulary=SMALL)
    assert {made.tokens.device.type, made.starts.device.type} == {"cpu"}
    tokenizer = json.loads(made.tokenizer_json)
    return made.fingerprint, made.text(made.tokens), len(tokenizer["model"]["vocab"])


@pytest.mark.parametrize("world", [1, 3])
def test_one_rank_prepares_and_all_hold_the_same(pool, world, tmp_path):
    alone = prepare(None, documents=TEXTS, vocabulary=SMALL)
    want = (alone.fingerprint, "".join(text + END for text in TEXTS), SMALL)
    for _ in range(2):  # made, then found in the folder
        assert pool.run(world, heard_by_all, tmp_path / "kept") == [want] * world


def refused(me):
    group = dist.group.WORLD
    texts = TEXTS if me.rank == 0 else None
    sizes = {"documents": texts, "vocabulary": SMALL}
    uneven = ({"vocabulary": SMALL + (me.rank == 2)}, {"most_bytes": 5 + me.rank})
    found = [said((ValueError, RuntimeError), prepare, group, **{**sizes, "vocabulary": 9999})]
    found += [said(RuntimeError, prepare, group, **{**sizes, **options}) for options in uneven]
    return found, prepare(group, **sizes).fingerprint


def test_what_fails_on_one_rank_is_raised_on_all(pool):
    answers = pool.run(3, refused)
    assert len({fingerprint for _, fingerprint in answers}) == 1  # nobody is left behind
    for rank, (found, _) in enumerate(answers):
        assert "instead of vocabulary=9999" in found[0]
        assert ("rank 0 could not prepare the corpus (ValueError" in found[0]) == (rank > 0)
        assert "the corpus of rank 2 is not that of rank 0" in found[1]
        assert "the corpus of rank 1 and 2 is not" in found[2]


# ---- a tokenizer's file, and what people have in place of one


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
    ("name", "content", "words"),
    [
        ("tokenizer.pkl", pickle.dumps(Runs()), "is a pickle .* which may run code"),
        ("tokenizer.pt", b"PK\x03\x04", "is a pickle or an archive"),
        ("vocab.txt", b"[PAD]\nthe\na\n", r"is not JSON. A list of tokens \(vocab.txt\)"),
        ("vocab.json", b'{"the": 0, "a": 1}', r"not a tokenizer: it has \['a', 'the'\]"),
        ("list.json", b"[1, 2]", "not a tokenizer: it has list"),
        ("config.json", json.dumps({"model": {"type": "None"}}).encode(), "cannot be read"),
    ],
)
def test_what_is_no_tokenizer_is_refused_by_its_kind(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=words) as error:
        read_tokenizer(tmp_path / name)
    assert name in str(error.value)


def test_a_file_that_is_not_there_is_said_with_what_is(tmp_path):
    (tmp_path / "merges.txt").touch()
    with pytest.raises(FileNotFoundError, match=r"no .*tokenizer.json; .* \['merges.txt'\]"):
        read_tokenizer(tmp_path)
    with pytest.raises(FileNotFoundError, match="no files at all"):
        read_tokenizer(tmp_path / "nowhere" / "tokenizer.json")
