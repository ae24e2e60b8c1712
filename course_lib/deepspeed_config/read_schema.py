"""Keys, types and defaults of the installed DeepSpeed, as JSON: `python -m …read_schema`.

A process of its own, since importing DeepSpeed takes seconds. Its parser is given dicts that note
what they are asked, section after section; what a model declares is read from the model.
Lesson 13.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import sys
from collections import Counter
from pathlib import Path

from course_lib.deepspeed_config import beside, read_callables, read_models
from course_lib.deepspeed_config.recording import ABSENT, Asking, Notes

FORMAT = 1  # of the JSON that is written
MARK = "__a_key_that_no_release_has__"
KINDS = {bool: "boolean", int: "integer", float: "number", str: "text", dict: "object"}
KINDS |= {list: "list", tuple: "list"}


class Parser:
    """DeepSpeed's own parser, and what it does with a key that is put before it."""

    def __init__(self) -> None:
        from deepspeed.runtime import config, config_utils

        logging.disable(logging.CRITICAL)
        config.dist.get_rank, config.dist.get_world_size = (lambda: 0), (lambda: 1)
        self.make, self.base = config.DeepSpeedConfig, config_utils.DeepSpeedConfigModel
        self.notes = Notes()

    def look(self, path: tuple[str, ...], content: object) -> tuple[type | None, object]:
        """(the model that is built from `content` at `path`, what the parser made of it all)."""
        models, config = [], None
        build = self.base.__init__

        def noting(model, *arguments, **data) -> None:
            if MARK in data:
                models.append(type(model))
            build(model, *arguments, **data)

        self.base.__init__ = noting
        try:
            # Whatever it raises at a value that is none: what it had asked for stands noted.
            with contextlib.suppress(Exception):
                config = self.make(self._nested(path, content))
        finally:
            self.base.__init__ = build
        return (models[-1] if models else None), config

    def _nested(self, path: tuple[str, ...], content: object) -> dict:
        for depth in range(len(path) - 1, -1, -1):
            inside = {path[depth]: content}
            if depth:
                inside["enabled"] = True
            else:
                inside.setdefault("train_batch_size", 1)
            content = Asking(inside, path[:depth], self.notes)
        return content if path else Asking(dict(content), (), self.notes)

    def section(self, path: tuple[str, ...]) -> dict | None:
        """What is read under `path`: a section, or None where the value is taken as it is."""
        inside = {MARK: 1} if path else {"train_batch_size": 1}
        model, config = self.look(path, Asking(inside, path, self.notes))
        if model is not None:
            return read_models.section_of(model)
        self.look(path, Asking({**inside, "enabled": True}, path, self.notes))
        keys = {}
        for name in list(self.notes.under(path)):
            self.look((*path, name), True)  # some keys are asked for where another is true
        for name in sorted(set(self.notes.under(path)) - {MARK}):
            where = (path, name)
            default = self.notes.asked[where]
            key = {"type": KINDS.get(type(default), "any"), "source": self.notes.asker[where]}
            if default is not ABSENT:
                key["default"] = read_models.plain(default)
            if len(path) < 6:
                inner = self.section((*path, name))
                if inner is not None:
                    key |= {"type": "object", "section": inner}
                    key.pop("default", None)
            keys[name] = key
        for name, default in self._merged(config):
            keys.setdefault(name, {"type": KINDS.get(type(default), "any"), "default": default})
        if not keys:
            return None
        return {"strict": False, "source": self._source(path, keys), "keys": keys}

    def _merged(self, config: object) -> list[tuple[str, object]]:
        """The defaults that a section was merged into, where the parser asks it for no key."""
        for value in vars(config).values() if config is not None else ():
            if isinstance(value, dict) and not isinstance(value, Asking) and MARK in value:
                return [(name, default) for name, default in value.items() if name != MARK]
        return []

    def _source(self, path: tuple[str, ...], keys: dict) -> str:
        """The file that asks for most of them; the parser's own, at the top."""
        if not path:
            return "deepspeed/runtime/config.py"
        files = Counter(key["source"] for key in keys.values() if "source" in key)
        return files.most_common(1)[0][0] if files else self.notes.asker.get(
            (path[:-1], path[-1]), "")  # fmt: skip


def read() -> dict:
    """All of it, as it is kept."""
    import deepspeed
    from deepspeed.runtime import config

    parser = Parser()
    root = parser.section(())
    folder = Path(deepspeed.__file__).parent
    for path, file, kind in beside.entries():
        _put(root, path.split("."), kind, file, folder)
    for old, (file, new) in beside.OLD.items():
        if old in root["keys"] and _has(folder / file, old):
            root["keys"][old]["deprecated"] = {"new": new, "alone": True}
    removed = sorted(getattr(config, "_REMOVED_TOP_LEVEL_CONFIG_KEYS", ()))
    inner = sorted(getattr(config, "_REMOVED_ZERO_CONFIG_KEYS", ()))
    dropped = {old: new for old, new in beside.DROPPED.items() if not _find(root, old.split("."))}
    for name in removed:
        root["keys"].pop(name, None)
    return {
        "format": FORMAT,
        "release": deepspeed.__version__.split("+")[0],
        "root": root,
        "optimizers": read_callables.optimizers(),
        "schedulers": read_callables.schedulers(),
        "removed": [*removed, *(f"zero_optimization.{name}" for name in inner)],
        "dropped": dropped,
        "elsewhere": beside.ELSEWHERE,
        "suited": _suited(),
    }


def _suited() -> list[str]:
    """Names of the optimizer classes that ZeRO has been tested with."""
    from deepspeed.runtime.zero import utils

    return sorted(item.__name__ for item in utils.ZERO_SUPPORTED_OPTIMIZERS) + ["MuonWithAuxAdam"]


def _put(root: dict, path: list[str], kind: dict, file: str, folder: Path) -> None:
    """Add what is known beside the models, if this release's file still has the key."""
    if path[-1] != "*" and not _has(folder / file, path[-1]):
        return
    section = root
    for name in path[:-1]:
        key = section["keys"].get(name)
        if key is None:
            return
        section = key.setdefault("section", {"strict": False, "source": f"deepspeed/{file}",
                                             "keys": {}})  # fmt: skip
    key = section["keys"].setdefault(path[-1], {})
    for name, value in copy.deepcopy(kind).items():
        if name != "section" or "section" not in key:
            key[name] = value
    key.setdefault("source", f"deepspeed/{file}")
    if "section" in key:
        key["section"].setdefault("source", f"deepspeed/{file}")
    if kind["type"] != "object" and not (kind["type"] == "any" and "section" in kind):
        key.pop("section", None)


def _has(file: Path, key: str) -> bool:
    """Whether a file of DeepSpeed's holds the key as a text."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:
        return False
    return f'"{key}"' in text or f"'{key}'" in text or f"\n    {key}:" in text


def _find(section: dict, path: list[str]) -> dict | None:
    key = section["keys"].get(path[0])
    if key is None or len(path) == 1:
        return key
    return _find(key["section"], path[1:]) if "section" in key else None


def main() -> None:
    """Print the keys; what DeepSpeed itself prints while it is imported goes elsewhere."""
    out = sys.stdout
    with contextlib.redirect_stdout(io.StringIO()):
        keys = read()
    json.dump(keys, out, indent=1, sort_keys=True)
    out.write("\n")


if __name__ == "__main__":
    main()
