"""The keys of a DeepSpeed release: read from the installed one once, kept, and shipped for one.

A process of its own reads what is installed; what it found is kept as JSON, by release, in the
user's cache. Without DeepSpeed, or where reading fails, the shipped release counts. Lesson 13.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from course_lib import files

FORMAT = 1  # that of read_schema
SHIPPED = Path(__file__).with_name("keys_of_0_19_8.json")
PATIENCE = 120.0  # seconds for the process that imports DeepSpeed


@dataclass(frozen=True)
class Schema:
    """What a release knows; `note` says so where it is not the installed one."""

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
        """Every section, with its path; the top first."""
        todo: list[tuple[tuple[str, ...], dict]] = [((), self.root)]
        while todo:
            path, section = todo.pop(0)
            yield path, section
            for name, key in section["keys"].items():
                if "section" in key and "same_as" not in key:
                    todo.append(((*path, name), key["section"]))

    def optimizer(self, name: str) -> dict | None:
        """DeepSpeed compares the names of its own optimizers in lower case, torch's as they are."""
        known = self.data["optimizers"]
        lower = known.get(name.lower())
        return lower if lower and lower["deepspeed"] else known.get(name)

    def find(self, path: tuple) -> dict | None:
        """The key at a path, "*" standing for the names that a user chooses."""
        section, key = self.root, None
        for name in path:
            keys = (section or {}).get("keys", {})
            key = keys.get(name) or keys.get("*")
            if key is None:
                return None
            section = key.get("section")
        return key


def load() -> Schema:
    """The installed release's keys, or the shipped ones with a note that says why."""
    shipped = json.loads(SHIPPED.read_text(encoding="utf-8"))
    instead = f"the keys of DeepSpeed {shipped['release']} are used, which come with the course"
    release = installed()
    if release is None:
        return Schema(shipped, f"DeepSpeed is not installed: {instead}")
    if release == shipped["release"]:
        return Schema(shipped)
    place = kept_at(release)
    kept = _kept(place, release)
    if kept is None:
        kept, trouble = _read(release)
        if kept is None:
            return Schema(shipped, f"the installed DeepSpeed {release} {trouble}: {instead}")
        _keep(place, kept)
    return Schema(kept)


def installed() -> str | None:
    """The release of the installed DeepSpeed, without importing it."""
    try:
        return metadata.version("deepspeed").split("+")[0]
    except metadata.PackageNotFoundError:
        return None


def kept_at(release: str) -> Path:
    """Where a release's keys are kept: $XDG_CACHE_HOME, or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    plain = "".join(x if x.isalnum() or x in ".-" else "_" for x in release)
    return folder / "course_lib" / f"deepspeed-{plain}.json"


def _kept(place: Path, release: str) -> dict | None:
    """What was kept there, unless it is of another making, or damaged."""
    try:
        return _checked(place.read_text(encoding="utf-8"), release)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _checked(text: str, release: str) -> dict:
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("release") != release:
        raise ValueError("of another making")
    for name in ("optimizers", "schedulers", "removed", "dropped", "elsewhere", "suited"):
        if name not in data:
            raise ValueError(f"without {name}")
    for _, section in Schema(data).walk():
        if not all(isinstance(key, dict) for key in section["keys"].values()):
            raise ValueError("a key without a kind")
    return data


def _read(release: str) -> tuple[dict | None, str]:
    """The keys of what is installed, by a process that imports it; or what was in the way."""
    command = [sys.executable, "-m", "course_lib.deepspeed_config.read_schema"]
    above = str(Path(__file__).resolve().parents[2])
    paths = [above, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, env=environment,
            stdin=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        return _checked(done.stdout, release), ""
    except subprocess.TimeoutExpired:
        return None, f"did not tell its keys within {PATIENCE:.0f} s"
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines()
        return None, f"could not be read ({lines[-1] if lines else 'no word why'})"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return None, f"told its keys in a way that is not understood ({error})"


def _keep(place: Path, data: dict) -> None:
    """Write them down for the next time; where that cannot be done, they are read again then."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(place, json.dumps(data, indent=1, sort_keys=True) + "\n")
    except OSError:
        return
