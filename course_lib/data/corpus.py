"""Text and tokens: the sources of Python's standard library, and a tokenizer trained on them.

Every machine that runs Python has this text, so nothing is downloaded. The vocabulary size is not
divisible by 2, 3 or 4, so it is sharded unevenly on 2, 3 and 4 ranks. Lesson 08.
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

END = "<|end|>"  # follows every document, and is entry 0
VOCABULARY = 2039  # a prime
MOST_BYTES = 2_000_000
BYTES = 256  # every byte is a vocabulary entry, so no text is unknown


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents as tokens, one after another, each followed by the token `END`."""

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
        """Encode a prompt as (1, s) token ids."""
        return torch.tensor([self.tokenizer.encode(text).ids], dtype=torch.int64, device="cpu")

    def text(self, ids: Tensor) -> str:
        """Decode the token ids of one row to text, in which each `END` token appears as text."""
        return self.tokenizer.decode(ids.reshape(-1).tolist(), skip_special_tokens=False)

    @cached_property
    def fingerprint(self) -> str:
        """A digest that changes with any token, any document's start, or the tokenizer."""
        digest = hashlib.sha256(self.tokenizer_json.encode())
        for numbers in (self.tokens, self.starts):
            digest.update(f" {numbers.dtype} {numbers.numel()} ".encode())
            digest.update(bytes_of(numbers))
        return digest.hexdigest()


def corpus(most_bytes: int = MOST_BYTES, folder: str | os.PathLike | None = None) -> list[str]:
    """Return Python's own sources as documents, sorted by path; the last document ends with a full
    line. The list is the same on every machine with the same Python. `folder` replaces Python's
    own."""
    root = Path(sysconfig.get_path("stdlib") if folder is None else folder)
    documents, room = [], most_bytes
    for file in _sources(root):
        raw = file.read_bytes()
        try:
            text = raw[: raw.rfind(b"\n", 0, room) + 1 if len(raw) > room else None].decode()
        except UnicodeDecodeError:  # a source may declare a different encoding
            continue
        if text.strip():
            documents.append(text.replace("\r\n", "\n"))
        room -= len(raw)
        if room <= 0:
            break
    if not documents:
        raise ValueError(
            f"there is no Python source under {root}, or no line within most_bytes={most_bytes}. "
            "This Python may have come without sources. Raise most_bytes, or pass documents"
        )
    return documents


def _sources(root: Path) -> Iterator[Path]:
    """Yield the standard library's own modules, without its tests and installed packages."""
    found = []
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if not _left_out(name)]
        # _sysconfigdata describes how this Python was built, which differs from machine to machine.
        names = [f for f in files if f.endswith(".py") and not f.startswith("_sysconfigdata")]
        found += [Path(folder, name) for name in names]
    return iter(sorted(found, key=lambda file: file.relative_to(root).as_posix()))


def _left_out(folder: str) -> bool:
    others = ("site-packages", "dist-packages", "__pycache__")
    return folder in others or folder.startswith("test") or folder.endswith("_test")


def fingerprint_of(documents: Sequence[str]) -> str:
    """Compute a digest that changes with any character and with any document boundary."""
    digest = hashlib.sha256()
    for document in documents:
        raw = document.encode()
        digest.update(f"{len(raw)} ".encode())
        digest.update(raw)
    return digest.hexdigest()


def train_tokenizer(documents: Sequence[str], vocabulary: int = VOCABULARY) -> Tokenizer:
    """Train a tokenizer that merges frequent byte-level pairs until it has `vocabulary` entries."""
    if vocabulary <= BYTES + 1:
        raise ValueError(
            f"vocabulary={vocabulary} must be above {BYTES + 1}, because {BYTES} bytes and {END} "
            "are entries before the first merge"
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
            f"{tokenizer.get_vocab_size()} entries instead of vocabulary={vocabulary}, because no "
            "pair is left to merge. Take more text (most_bytes=…), or a smaller vocabulary"
        )
    return tokenizer


def encode(documents: Sequence[str], tokenizer: Tokenizer) -> Corpus:
    """Encode all documents. The characters of `END` inside a document are ordinary text."""
    if not documents:
        raise ValueError("there is no document to encode")
    tokenizer.encode_special_tokens = True  # letters stay letters
    try:
        encoded = tokenizer.encode_batch_fast(list(documents))
    finally:
        tokenizer.encode_special_tokens = False
    end = tokenizer.token_to_id(END)
    if end is None:
        raise ValueError(f"this tokenizer has no entry {END!r} to separate documents")
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
            "a tokenizer needs the package tokenizers: pip install 'course_lib[huggingface]'"
        ) from error
    return tokenizers
