"""Where a checkpoint is: a file, a folder, or a name on the Hugging Face hub that is fetched first.

Only safetensors and JSON are fetched, never a pickle. Lesson 08.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from course_lib.pretrained.header import CheckpointError

NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def locate(source: str | os.PathLike) -> Path:
    """The path of a checkpoint; a name such as 'openai-community/gpt2' becomes a local folder."""
    path = Path(source).expanduser()
    if path.exists():
        return path
    if not (isinstance(source, str) and NAME.fullmatch(source)) or path.suffix == ".safetensors":
        raise FileNotFoundError(f"there is no checkpoint at {path}")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise CheckpointError(
            f"there is no folder {source!r} here, and to fetch that name from the hub takes "
            "huggingface_hub: pip install 'course_lib[huggingface]'"
        ) from error
    try:  # ranks that ask at once wait for each other: the hub's own files are locked
        return Path(snapshot_download(source, allow_patterns=["*.safetensors", "*.json"]))
    except Exception as error:  # the hub's errors have many classes, and no network has more
        raise CheckpointError(
            f"there is no folder {source!r} here, and the hub did not give a model of that name: "
            f"{type(error).__name__}: {str(error).strip().splitlines()[0]} — without a network, "
            "fetch it elsewhere (hf download) and pass the folder"
        ) from error
