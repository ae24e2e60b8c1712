"""Hashes of packages that were downloaded once, for `make setup HASHES=FILE` on other machines.

`python -m tools.hashes FOLDER FILE` writes a line in pip's own format for each wheel or source
archive in FOLDER at its pin, and refuses others. Not in a lesson.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import defaultdict
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
HEAD = """\
# SHA-256 of packages as they were downloaded for one kind of machine (Python, system, processor).
# Written by `python -m tools.hashes`; used by `make setup HASHES=this file`.
"""


def lines(folder: Path, constraints: str) -> list[str]:
    """Build a line for each package in the folder; a ValueError names packages not at their pin."""
    found: dict[tuple[str, Version], list[str]] = defaultdict(list)
    for file in sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz"), *folder.glob("*.zip")]):
        name, version = _parsed(file)
        found[name, version].append(hashlib.sha256(file.read_bytes()).hexdigest())
    pins = _pins(constraints)
    odd = [f"{name} {version}" for name, version in found if not _pinned(name, version, pins)]
    if odd or not found:
        what = f"not at the pins of constraints.txt: {', '.join(odd)}" if odd else "no package"
        raise ValueError(f"{folder} holds {what}; `pip download -c constraints.txt` fills it")
    return [
        " ".join([f"{name}=={version}", *(f"--hash=sha256:{one}" for one in hashes)])
        for (name, version), hashes in sorted(found.items())
    ]


def _parsed(file: Path) -> tuple[str, Version]:
    parse = parse_wheel_filename if file.suffix == ".whl" else parse_sdist_filename
    name, version, *_ = parse(file.name)
    return name, version


def _pins(constraints: str) -> list[Requirement]:
    rows = [row.strip() for row in constraints.splitlines()]
    return [Requirement(row) for row in rows if row and not row.startswith("#")]


def _pinned(name: str, version: Version, pins: list[Requirement]) -> bool:
    """Return True if a pin allows this version; the pin leaves the build of torch (+cpu) open."""
    return any(
        canonicalize_name(pin.name) == name and pin.specifier.contains(version, prereleases=True)
        for pin in pins
    )


def main() -> None:
    """Read the folder and write the file."""
    parser = argparse.ArgumentParser(prog="python -m tools.hashes", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with the downloaded packages")
    parser.add_argument("file", type=Path, help="file to which the hashes are written")
    chosen = parser.parse_args()
    try:
        found = lines(chosen.folder, (ROOT / "constraints.txt").read_text(encoding="utf-8"))
    except ValueError as error:
        sys.exit(f"tools.hashes: {error}")
    chosen.file.write_text(HEAD + "".join(f"{line}\n" for line in found), encoding="utf-8")
    print(f"{len(found)} packages written to {chosen.file}")


if __name__ == "__main__":
    main()
