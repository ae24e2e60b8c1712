"""Python and its packages, held against pyproject.toml's ranges and constraints.txt's pins.

A package out of its range is bad, one that is merely another than pinned is a note. No lesson
derives it.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_lib.classroom.doctor.finding import Finding

if TYPE_CHECKING:
    from packaging.requirements import Requirement

Installed = Callable[[str], "str | None"]
NEEDED = "classroom"  # the extra without which no lesson runs


def installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def python(root: Path, version: str | None = None) -> list[Finding]:
    """This Python against the range in pyproject.toml."""
    from packaging.specifiers import SpecifierSet

    version = platform.python_version() if version is None else version
    wanted = _project(root)["requires-python"]
    told = f"{version} ({platform.python_implementation()}); the course runs on {wanted}"
    if SpecifierSet(wanted).contains(version, prereleases=True):
        return [Finding("Python", "ok", told)]
    remedy = "install a Python of that range, then PYTHON=/path/to/it make setup"
    return [Finding("Python", "bad", told, remedy)]


def packages(root: Path, installed: Installed = installed_version) -> list[Finding]:
    """A line for each package that is not as it should be, and one that counts the rest."""
    project, pins = _project(root), _pins(root)
    extras = project["optional-dependencies"]
    asked = {"": project["dependencies"], **extras}
    found: list[Finding] = []
    good = 0
    seen: set[str] = set()
    for extra, texts in asked.items():
        lacking = []
        for wanted in _requirements(texts):
            version = installed(wanted.name)
            if version is None and extra not in ("", NEEDED):
                lacking.append(wanted.name)
            elif wanted.name not in seen:
                finding = _judge(wanted, version, pins.get(_plain(wanted.name)))
                good += finding is None
                found += [finding] if finding else []
            seen.add(wanted.name)
        if lacking:
            told = f"not installed: {', '.join(lacking)}; what needs them is left out or skipped"
            more = f"python -m pip install -c constraints.txt '.[{extra}]', or make setup"
            found.append(Finding(f"packages [{extra}]", "note", told, more))
    found += _others(pins, {_plain(name) for name in seen}, installed)
    told = f"{good} of {len(seen)} that the course names are at their pins"
    return [Finding("packages", "ok", told), *found]


def _judge(wanted: Requirement, version: str | None, pin: Requirement | None) -> Finding | None:
    name = f"package {wanted.name}"
    remedy = f"make setup, or python -m pip install -c constraints.txt '{wanted}'"
    if version is None:
        return Finding(name, "bad", f"not installed; the course needs {wanted}", remedy)
    if not wanted.specifier.contains(version, prereleases=True):
        return Finding(name, "bad", f"{version} is installed; the course needs {wanted}", remedy)
    if pin is not None and not pin.specifier.contains(version, prereleases=True):
        told = f"{version} is installed, within the range {wanted.specifier}; tested with"
        return Finding(name, "note", f"{told} {str(pin.specifier).lstrip('=')}", remedy)
    return None


def _others(pins: dict[str, Requirement], named: set[str], installed: Installed) -> list[Finding]:
    """Packages that only come along with others, where they differ from their pins."""
    differ = []
    for name, pin in sorted(pins.items()):
        version = None if name in named else installed(name)
        if version is not None and not pin.specifier.contains(version, prereleases=True):
            differ.append(f"{name} {version} (tested with {str(pin.specifier).lstrip('=')})")
    if not differ:
        return []
    few = ", ".join(differ[:3]) + (f" and {len(differ) - 3} more" if len(differ) > 3 else "")
    remedy = "make setup, or python -m pip install -c constraints.txt -e '.[classroom]'"
    return [Finding("packages that come along", "note", f"not at their pins: {few}", remedy)]


def _project(root: Path) -> dict[str, Any]:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        import tomli as tomllib
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _requirements(texts: list[str]) -> list[Requirement]:
    from packaging.requirements import Requirement

    wanted = [Requirement(text) for text in texts]
    return [one for one in wanted if one.marker is None or one.marker.evaluate()]


def _pins(root: Path) -> dict[str, Requirement]:
    """The pins that hold on this machine, by plain name."""
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    texts = [line for line in lines if line.strip() and not line.startswith("#")]
    return {_plain(one.name): one for one in _requirements(texts)}


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
