"""A YAML file in the place of a config: told from broken JSON, and which file to give instead.

Accelerate's and axolotl's files name a DeepSpeed config by a key of theirs. Lesson 13.
"""

from __future__ import annotations

import re

_TOP = re.compile(r"[A-Za-z_][\w.-]*:(\s.*)?|- .*|---.*|\.\.\.|[#\s].*")
_NAMED = re.compile(r"^\s*(deepspeed_config_file|deepspeed):[ \t]+[\"']?([^\s\"'#]+)", re.MULTILINE)
_ACCELERATES = re.compile(r"^(deepspeed_config|distributed_type):", re.MULTILINE)
NOTHING = ("null", "none", "~", "{}")


def is_yaml(text: str) -> bool:
    """Tell `key: value` lines without braces from every form of JSON."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    keys = [line for line in lines if re.match(r"[A-Za-z_][\w.-]*:(\s|$)", line)]
    return bool(keys) and all(_TOP.fullmatch(line) for line in lines)


def to_give(text: str) -> str:
    """The remedy: the file that a key of this one names, if one does."""
    for key, file in _NAMED.findall(text):
        if file.lower() not in NOTHING:
            return f'give the file that its key "{key}" names: {file}'
    if _ACCELERATES.search(text):
        return (
            "this is Accelerate's own file: write the config as JSON, name it there by "
            '"deepspeed_config_file", and give it here'
        )
    return "give the DeepSpeed config itself, or write it as JSON"
