"""What DeepSpeed's own parser makes of a file, in a process of its own with one rank.

`python -m tests.course_lib.peers.deepspeed_config.oracle` reads a JSON list of texts, and prints
for each what came of it as a text, or what was raised.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.course_lib.peers.deepspeed_config.parts import answered


def parses(texts: Sequence[str]) -> list[tuple[str, str]]:
    """(what was parsed, "") or ("", the error) of every text."""
    return [tuple(pair) for pair in answered(__name__, list(texts))]


def _plain(value: object) -> object:
    """Whatever the parser has made, as something that can be compared."""
    if hasattr(value, "model_dump"):
        return _plain(value.model_dump())
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "__dict__") and not isinstance(value, type):
        return _plain(vars(value))
    return value


def main() -> None:
    logging.disable(logging.CRITICAL)
    sys.stdout, out = sys.stderr, sys.stdout
    from deepspeed.runtime.config import DeepSpeedConfig

    answers = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        for text in json.load(sys.stdin):
            file.write_text(text, encoding="utf-8")
            try:
                config = vars(DeepSpeedConfig(os.fspath(file)))
            except Exception as error:
                answers.append(("", f"{type(error).__name__}: {error}"))
                continue
            read = {name: _plain(item) for name, item in config.items() if name != "_param_dict"}
            answers.append((repr(sorted(read.items())), ""))
    json.dump(answers, out)


if __name__ == "__main__":
    main()
