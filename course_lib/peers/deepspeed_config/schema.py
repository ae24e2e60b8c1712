"""The keys of the DeepSpeed release that the course pins: sections, types, bounds, defaults.

They are shipped as JSON, so that a config can be checked without DeepSpeed. tools/deepspeed_keys.py
compares the file with an installed release. Lesson 13.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

SHIPPED = Path(__file__).with_name("keys_of_0_19_8.json")


@dataclass(frozen=True)
class Schema:
    """The keys of a release; `note` warns if it is not the installed release."""

    data: dict
    note: str = ""

    @property
    def release(self) -> str:
        return self.data["release"]

    @property
    def root(self) -> dict:
        return self.data["root"]

    def source(self, file: str) -> str:
        """deepspeed/runtime/config.py → deepspeed 0.19.8, runtime/config.py."""
        package, _, rest = file.partition("/")
        return f"deepspeed {self.release}, {rest}" if package == "deepspeed" else file

    def walk(self) -> Iterator[tuple[tuple[str, ...], dict]]:
        """Yield every section with its path, top level first."""
        todo: list[tuple[tuple[str, ...], dict]] = [((), self.root)]
        while todo:
            path, section = todo.pop(0)
            yield path, section
            for name, key in section["keys"].items():
                if "section" in key and "same_as" not in key:
                    todo.append(((*path, name), key["section"]))

    def optimizer(self, name: str) -> dict | None:
        """Find an optimizer. DeepSpeed compares its own names in lower case, torch's unchanged."""
        known = self.data["optimizers"]
        lower = known.get(name.lower())
        return lower if lower and lower["deepspeed"] else known.get(name)

    def find(self, path: tuple | str) -> dict | None:
        """Find the key at a path; "*" represents names that a user chooses."""
        section, key = self.root, None
        for name in path.split(".") if isinstance(path, str) else path:
            keys = (section or {}).get("keys", {})
            key = keys.get(name) or keys.get("*")
            if key is None:
                return None
            section = key.get("section")
        return key

    def twin(self, path: tuple) -> str | None:
        """Return the other spelling of a key that has two, or None."""
        section = (self.find(path[:-1]) or {}).get("section") if path[:-1] else self.root
        keys = (section or {}).get("keys", {})
        if "same_as" in keys.get(path[-1], {}):
            return keys[path[-1]]["same_as"]
        return next((name for name, key in keys.items() if key.get("same_as") == path[-1]), None)


def load() -> Schema:
    """Load the shipped keys, with a note unless the same release is installed."""
    shipped = json.loads(SHIPPED.read_text(encoding="utf-8"))
    release = installed()
    if release == shipped["release"]:
        return Schema(shipped)
    why = "DeepSpeed is not installed" if release is None else f"DeepSpeed {release} is installed"
    keys = f"the course's keys of DeepSpeed {shipped['release']} are used"
    return Schema(shipped, f"{why}: {keys}")


def installed() -> str | None:
    """Return the installed DeepSpeed release without importing it."""
    try:
        return metadata.version("deepspeed").split("+")[0]
    except metadata.PackageNotFoundError:
        return None
