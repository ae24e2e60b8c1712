"""The corpus on all ranks: rank 0 reads text, trains a tokenizer, encodes, and sends the result.

The ranks therefore need no shared disk. A folder's files are used again only if they are complete
and were made from the same text with the same settings. They contain no pickle. Lesson 08.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

from course_lib.collectives.agreement import same_everywhere
from course_lib.collectives.call import Group, size_and_rank
from course_lib.data.corpus import (
    MOST_BYTES,
    VOCABULARY,
    Corpus,
    corpus,
    encode,
    fingerprint_of,
    train_tokenizer,
)
from course_lib.files import write_whole

TOKENIZER, TOKENS = "tokenizer.json", "tokens.safetensors"
FORM = 1  # format of the files in a folder; a new number has them rebuilt


def prepare(
    group: Group | None,
    folder: str | os.PathLike | None = None,
    *,
    vocabulary: int = VOCABULARY,
    most_bytes: int = MOST_BYTES,
    documents: Sequence[str] | None = None,
) -> Corpus:
    """Build the corpus on rank 0 and return it on every rank of the group (None means one process).

    `documents` are your own texts instead of Python's sources, and only rank 0 needs them. Only
    rank 0 uses `folder`, which keeps the tokenizer and the tokens for the next run. Every rank must
    call this. A failure on rank 0 raises on all ranks.
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
    reply = [made, None if problem is None else f"{type(problem).__name__}: {problem}"]
    dist.broadcast_object_list(reply, group=group, group_src=0)
    if problem is not None:
        raise problem
    if reply[1] is not None:
        raise RuntimeError(f"rank {rank}: rank 0 could not prepare the corpus ({reply[1]})")
    heard = reply[0]
    same_everywhere(
        (vocabulary, most_bytes, heard.fingerprint),
        [group],
        "the corpus of {ranks} is not that of {first}, or was requested with different settings",
        f"here vocabulary={vocabulary}, most_bytes={most_bytes}: pass the same on every rank",
    )
    return heard


def _made(
    folder: str | os.PathLike | None,
    vocabulary: int,
    most_bytes: int,
    documents: Sequence[str] | None,
) -> Corpus:
    """Load the corpus from the folder if it matches the settings; otherwise build and store it."""
    documents = corpus(most_bytes) if documents is None else list(documents)
    if folder is None:
        return encode(documents, train_tokenizer(documents, vocabulary))
    folder = Path(folder).expanduser()
    settings = {"form": FORM, "vocabulary": vocabulary, "text": fingerprint_of(documents)}
    if any((folder / name).exists() for name in (TOKENIZER, TOKENS)):
        try:
            return _kept(folder, settings)
        except _Unfit as why:
            warnings.warn(f"{folder}: {why}; it is built again", stacklevel=3)
    made = encode(documents, train_tokenizer(documents, vocabulary))
    _keep(made, folder, settings)
    return made


class _Unfit(Exception):
    """The reason why the corpus in the folder cannot be used."""


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
        raise _Unfit("the corpus kept there was built from different text or settings")
    if told.get("fingerprint") != made.fingerprint:
        raise _Unfit("the corpus kept there is damaged (its tokens differ from those written)")
    return made


def _keep(made: Corpus, folder: Path, settings: dict) -> None:
    """Write each file fully before it gets its name; the tokens are last and confirm both files."""
    _, save = _safetensors()
    folder.mkdir(parents=True, exist_ok=True)
    told = json.dumps({**settings, "fingerprint": made.fingerprint})
    tensors = {"tokens": made.tokens, "starts": made.starts}
    write_whole(folder / TOKENIZER, made.tokenizer_json)
    write_whole(folder / TOKENS, save(tensors, metadata={"made": told}))


def _safetensors():
    try:
        import safetensors
        from safetensors.torch import save
    except ImportError as error:
        raise ImportError(
            "keeping a corpus in a folder needs safetensors: pip install 'course_lib[huggingface]'"
        ) from error
    return safetensors, save
