"""A tokenizer read from `tokenizer.json`, which contains only data; other files are refused.

Appendix E1 reads such a file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from course_lib.data.corpus import made_of_tokenizers

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NAME = "tokenizer.json"
SAVE = f"Load it where it was made and call save_pretrained(folder), which writes a {NAME}"


def read_tokenizer(path: str | os.PathLike) -> Tokenizer:
    """Read a tokenizer from a file, or from a folder's tokenizer.json, without running code."""
    file = Path(path)
    if file.is_dir():
        file /= NAME
    if not file.is_file():
        there = sorted(one.name for one in file.parent.glob("*")) if file.parent.is_dir() else []
        raise FileNotFoundError(f"there is no {file}; its folder has {there or 'no files at all'}")
    raw = file.read_bytes()
    if raw[:1] == b"\x80" or raw[:2] == b"PK":
        raise ValueError(
            f"{file} is a pickle or an archive, which may run code when it is read, so it is not "
            f"read. {SAVE}"
        )
    try:
        found = json.loads(raw)
    except ValueError:
        raise ValueError(
            f"{file} is not JSON. A list of tokens (vocab.txt) or merges (merges.txt) does not "
            f"state how a text is split, but a {NAME} does. {SAVE}"
        ) from None
    if not isinstance(found, dict) or not isinstance(found.get("model"), dict):
        keys = sorted(found)[:3] if isinstance(found, dict) else type(found).__name__
        raise ValueError(
            f"{file} is JSON but not a tokenizer: it has {keys}, while a tokenizer has 'model', "
            f"'pre_tokenizer' and 'decoder'. {SAVE}"
        )
    try:
        return made_of_tokenizers().Tokenizer.from_str(raw.decode())
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{file} cannot be read as a tokenizer: {error}") from error
