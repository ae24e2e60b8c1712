"""One rank reads, trains and encodes; the others hear the result, so no disk has to be shared.

What is kept in a folder is used again only if it was made of the same text by the same settings,
and is whole. Nothing is pickled. Lesson 08.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from course_lib.collectives import broadcast
from course_lib.collectives.agreement import same_everywhere
from course_lib.collectives.call import Group, device_of, size_and_rank
from course_lib.data.corpus import (
    MOST_BYTES,
    VOCABULARY,
    Corpus,
    bytes_of,
    corpus,
    encode,
    fingerprint_of,
    train_tokenizer,
)
from course_lib.files import write_whole

TOKENIZER, TOKENS = "tokenizer.json", "tokens.safetensors"
FORM = 1  # of the files in a folder; a new form makes them anew


def prepare(
    group: Group | None,
    folder: str | os.PathLike | None = None,
    *,
    vocabulary: int = VOCABULARY,
    most_bytes: int = MOST_BYTES,
    documents: Sequence[str] | None = None,
) -> Corpus:
    """The same corpus on every rank of the group (None: this process alone), made by its rank 0.

    `documents` are texts of your own, in place of Python's sources; only rank 0 needs them.
    `folder`, which only rank 0 looks at, keeps the tokenizer and the tokens for the next time.
    Every rank has to call this; what fails on rank 0 is raised on all.
    """
    if group is None:
        return _made(folder, vocabulary, most_bytes, documents)
    _, rank = size_and_rank(group)
    made, problem = None, None
    if rank == 0:
        try:
            made = _made(folder, vocabulary, most_bytes, documents)
        except Exception as error:
            problem = error
    heard = _told(made, problem, group)
    same_everywhere(
        (vocabulary, most_bytes, heard.fingerprint),
        [group],
        "the corpus of {ranks} is not that of {first}, or was asked for by other settings",
        f"here vocabulary={vocabulary}, most_bytes={most_bytes}: pass the same on every rank",
    )
    return heard


def _told(made: Corpus | None, problem: Exception | None, group: Group) -> Corpus:
    """Rank 0's corpus, or its trouble, on every rank: lengths first, then what they are of."""
    rank, device, lengths = group.rank(), device_of(group), [0, 0, 0, 0]

    def heard(x: Tensor | None, length: int, dtype: torch.dtype) -> Tensor:
        x = torch.empty(length, dtype=dtype, device=device) if x is None else x
        return broadcast(x.to(device), group).cpu()

    text = None
    if problem is not None:
        text = _bytes(f"{type(problem).__name__}: {problem}")
        lengths = [0, 0, 0, len(text)]
    elif made is not None:
        text = _bytes(made.tokenizer_json)
        lengths = [len(text), made.tokens.numel(), len(made), 0]
    sizes = heard(torch.tensor(lengths, device=device), 4, torch.int64).tolist()
    words = bytes_of(heard(text, sizes[0] + sizes[3], torch.uint8)).decode()
    if sizes[3]:
        if problem is not None:
            raise problem
        raise RuntimeError(f"rank {rank}: rank 0 could not prepare the corpus: {words}")
    tokens, starts = (None, None) if made is None else (made.tokens, made.starts)
    return Corpus(heard(tokens, sizes[1], torch.int32), heard(starts, sizes[2], torch.int64), words)


def _bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def _made(
    folder: str | os.PathLike | None,
    vocabulary: int,
    most_bytes: int,
    documents: Sequence[str] | None,
) -> Corpus:
    """From the folder, if what is there will do; made anew and put there if not."""
    documents = corpus(most_bytes) if documents is None else list(documents)
    if folder is None:
        return encode(documents, train_tokenizer(documents, vocabulary))
    folder = Path(folder).expanduser()
    settings = {"form": FORM, "vocabulary": vocabulary, "text": fingerprint_of(documents)}
    if any((folder / name).exists() for name in (TOKENIZER, TOKENS)):
        try:
            return _kept(folder, settings)
        except _Unfit as why:
            warnings.warn(f"{folder}: {why}; it is made anew", stacklevel=3)
    made = encode(documents, train_tokenizer(documents, vocabulary))
    _keep(made, folder, settings)
    return made


class _Unfit(Exception):
    """Why what is in the folder cannot be used."""


def _kept(folder: Path, settings: dict) -> Corpus:
    safetensors, _ = _safetensors()
    try:
        text = (folder / TOKENIZER).read_text(encoding="utf-8")
        with safetensors.safe_open(folder / TOKENS, framework="pt") as file:
            told = json.loads((file.metadata() or {}).get("made", "{}"))
            made = Corpus(file.get_tensor("tokens"), file.get_tensor("starts"), text)
    except (OSError, ValueError, KeyError, safetensors.SafetensorError) as error:
        raise _Unfit(f"the corpus kept there is damaged ({error})") from error
    if {key: told.get(key) for key in settings} != settings:
        raise _Unfit("the corpus kept there was made of another text, or by other settings")
    if told.get("fingerprint") != made.fingerprint:
        raise _Unfit("the corpus kept there is damaged (its numbers are not those written)")
    return made


def _keep(made: Corpus, folder: Path, settings: dict) -> None:
    """Each file gets its name when it is whole; the tokens come last, and vouch for both."""
    _, save = _safetensors()
    folder.mkdir(parents=True, exist_ok=True)
    told = json.dumps({**settings, "fingerprint": made.fingerprint})
    tensors = {"tokens": made.tokens, "starts": made.starts}
    for name, raw in (
        (TOKENIZER, made.tokenizer_json.encode()),
        (TOKENS, save(tensors, metadata={"made": told})),
    ):
        write_whole(folder / name, raw)


def _safetensors():
    try:
        import safetensors
        from safetensors.torch import save
    except ImportError as error:
        raise ImportError(
            "keeping a corpus in a folder takes safetensors: pip install 'course_lib[huggingface]'"
        ) from error
    return safetensors, save
