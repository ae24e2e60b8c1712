"""Text to tokens: the standard library's own sources, and a tokenizer trained on them.

The text lies on every machine that runs Python, so nothing has to be fetched. The vocabulary is
divisible by neither 2, 3 nor 4, so that a cut of it is uneven wherever it can be. Lesson 08.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = "<|end|>"  # stands after every document, and is word 0
VOCABULARY = 2039  # a prime
MOST_BYTES = 2_000_000
BYTES = 256  # every byte is a word, so that no text is unknown


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents as tokens, one after another, each with the word `END` behind it."""

    tokens: Tensor  # (all tokens,), int32, on the CPU
    starts: Tensor  # (documents,), int64: where each document begins
    tokenizer_json: str

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return made_of_tokenizers().Tokenizer.from_str(self.tokenizer_json)

    @property
    def vocabulary(self) -> int:
        return self.tokenizer.get_vocab_size()

    def ids(self, text: str) -> Tensor:
        """A prompt as (1, s) token ids."""
        return torch.tensor([self.tokenizer.encode(text).ids], dtype=torch.int64, device="cpu")

    def text(self, ids: Tensor) -> str:
        """Token ids of one row as text; `END` shows as itself."""
        return self.tokenizer.decode(ids.reshape(-1).tolist(), skip_special_tokens=False)

    @cached_property
    def fingerprint(self) -> str:
        """Changes with any token, with where a document begins, and with the tokenizer."""
        digest = hashlib.sha256(self.tokenizer_json.encode())
        for numbers in (self.tokens, self.starts):
            digest.update(f" {numbers.dtype} {numbers.numel()} ".encode())
            digest.update(bytes_of(numbers))
        return digest.hexdigest()


def corpus(most_bytes: int = MOST_BYTES, folder: str | os.PathLike | None = None) -> list[str]:
    """Python's own sources as documents, in the order of their names, the last of them cut after a
    line. The same list on every machine with the same Python; `folder` reads another place.
    """
    root = Path(sysconfig.get_path("stdlib") if folder is None else folder)
    documents, room = [], most_bytes
    for file in _sources(root):
        raw = file.read_bytes()
        try:
            text = raw[: raw.rfind(b"\n", 0, room) + 1 if len(raw) > room else None].decode()
        except UnicodeDecodeError:  # a source may say that it is written in something else
            continue
        if text.strip():
            documents.append(text.replace("\r\n", "\n"))
        room -= len(raw)
        if room <= 0:
            break
    if not documents:
        raise ValueError(
            f"no Python source lies under {root}, or no line of one in most_bytes={most_bytes}: "
            "this Python may have come without its sources. Raise most_bytes, or pass documents"
        )
    return documents


def _sources(root: Path) -> Iterator[Path]:
    """The library's own modules; not its tests, not what was installed beside it."""
    found = []
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if not _left_out(name)]
        # _sysconfigdata says how this Python was built, which differs from machine to machine.
        names = [f for f in files if f.endswith(".py") and not f.startswith("_sysconfigdata")]
        found += [Path(folder, name) for name in names]
    return iter(sorted(found, key=lambda file: file.relative_to(root).as_posix()))


def _left_out(folder: str) -> bool:
    others = ("site-packages", "dist-packages", "__pycache__")
    return folder in others or folder.startswith("test") or folder.endswith("_test")


def fingerprint_of(documents: Sequence[str]) -> str:
    """Changes with any letter, and with where one document ends and the next begins."""
    digest = hashlib.sha256()
    for document in documents:
        raw = document.encode()
        digest.update(f"{len(raw)} ".encode())
        digest.update(raw)
    return digest.hexdigest()


def train_tokenizer(documents: Sequence[str], vocabulary: int = VOCABULARY) -> Tokenizer:
    """Byte-level pairs merged, the most frequent first, until there are exactly so many words."""
    if vocabulary <= BYTES + 1:
        raise ValueError(
            f"vocabulary={vocabulary} has to be above {BYTES + 1}: {BYTES} bytes and {END} are "
            "words before any is merged"
        )
    made_of = made_of_tokenizers()
    tokenizer = made_of.Tokenizer(made_of.models.BPE())
    tokenizer.pre_tokenizer = made_of.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = made_of.decoders.ByteLevel()
    trainer = made_of.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=sorted(made_of.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    if tokenizer.get_vocab_size() != vocabulary:
        raise ValueError(
            f"{len(documents)} documents of {sum(map(len, documents))} letters together give "
            f"{tokenizer.get_vocab_size()} words and not vocabulary={vocabulary}: no pair is left "
            "to merge. Take more text (most_bytes=…), or a smaller vocabulary"
        )
    return tokenizer


def encode(documents: Sequence[str], tokenizer: Tokenizer) -> Corpus:
    """All documents as tokens. A document that holds the letters of `END` does not end there."""
    if not documents:
        raise ValueError("there is no document to encode")
    tokenizer.encode_special_tokens = True  # letters stay letters
    try:
        encoded = tokenizer.encode_batch_fast(list(documents))
    finally:
        tokenizer.encode_special_tokens = False
    end = tokenizer.token_to_id(END)
    if end is None:
        raise ValueError(f"this tokenizer has no word {END!r} to stand between documents")
    parts = [torch.tensor([*one.ids, end], dtype=torch.int32, device="cpu") for one in encoded]
    lengths = torch.tensor([part.numel() for part in parts], device="cpu")
    return Corpus(torch.cat(parts), lengths.cumsum(0) - lengths, tokenizer.to_str())


def bytes_of(x: Tensor) -> bytes:
    return bytes(x.contiguous().view(torch.uint8).numpy())


def made_of_tokenizers():
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            "a tokenizer takes the package tokenizers: pip install 'course_lib[huggingface]'"
        ) from error
    return tokenizers
