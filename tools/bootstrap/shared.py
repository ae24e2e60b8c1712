"""An environment that somebody else keeps (COURSE_VENV): looked over, never changed.

A cluster's or a workshop's environment may be read-only and need not hold course_lib itself.
No lesson derives it.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from .closed import closed_part
from .closed import refusal as closed
from .condition import python_of
from .environment import Environment
from .interpreters import ask, span
from .say import Refusal, say

_CHECK = """
import importlib.metadata as metadata, json, sys
try:
    from packaging.requirements import Requirement
except ImportError:
    from pip._vendor.packaging.requirements import Requirement
try:
    import tomllib
except ImportError:
    try:
        import tomli as tomllib
    except ImportError:
        from pip._vendor import tomli as tomllib
root, extras = sys.argv[1], sys.argv[2].split(",")
with open(root + "/pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
wanted = list(project["dependencies"])
for extra in extras:
    wanted += project["optional-dependencies"].get(extra, [])
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
told = {"missing": [], "outside": [], "other": [], "count": len(wanted)}
for requirement in map(Requirement, wanted):
    found = version(requirement.name)
    if found is None:
        told["missing"].append(str(requirement))
    elif not requirement.specifier.contains(found, prereleases=True):
        told["outside"].append("%s (it has %s)" % (requirement, found))
with open(root + "/constraints.txt") as file:
    for line in file:
        line = line.strip()
        if line and not line.startswith("#"):
            pin = Requirement(line)
            found = version(pin.name)
            here = pin.marker is None or pin.marker.evaluate()
            if found and here and not pin.specifier.contains(found, prereleases=True):
                told["other"].append("%s %s" % (pin.name, found))
print(json.dumps(told))
"""


def check(root: Path, folder: Path, wanted: tuple[str, ...]) -> Environment:
    """The environment in `folder`, if it has what the extras `wanted` ask for; else a Refusal."""
    python = python_of(folder)
    found = ask(str(python))
    if found is None:
        _refuse_closed(folder)
        raise Refusal(
            f"COURSE_VENV={folder} holds no Python that runs ({python}).",
            "name the folder of an environment (the one that has bin/python in it), or unset "
            "COURSE_VENV to have .venv made here",
        )
    if not found.fits:
        raise Refusal(
            f"COURSE_VENV={folder} has Python {found.dotted}; the course needs {span()}.",
            "name another environment, or unset COURSE_VENV to have .venv made here",
        )
    answer = subprocess.run(
        [str(python), "-c", _CHECK, str(root), ",".join(wanted)],
        cwd=str(root), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if answer.returncode != 0:
        _refuse_closed(folder)
        last = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Refusal(
            f"COURSE_VENV={folder} could not be looked over: {last}",
            "pip and packaging have to be in it; or unset COURSE_VENV to have .venv made here",
        )
    told = json.loads(answer.stdout)
    wrong = [f"lacks {one}" for one in told["missing"]]
    wrong += [f"needs {one}" for one in told["outside"]]
    if wrong:
        _refuse_closed(folder)  # what may not be read looks missing
        raise Refusal(
            f"COURSE_VENV={folder} is not enough (it is never changed from here):\n  "
            + "\n  ".join(wrong),
            f"its keeper runs: {python} -m pip install -c constraints.txt "
            f"'.[{','.join(wanted)}]'; or unset COURSE_VENV to have .venv made here",
        )
    more = ""
    if told["other"]:
        few = ", ".join(told["other"][:3]) + (", ..." if len(told["other"]) > 3 else "")
        more = f"; {len(told['other'])} differ from constraints.txt, within the ranges: {few}"
    say(f"COURSE_VENV={folder}: all {told['count']} requirements are met{more}")
    return Environment(folder, python, False)


def _refuse_closed(folder: Path) -> None:
    """The true cause, where the environment is closed to this user."""
    place = closed_part(python_of(folder))
    if place is not None:
        raise closed(f"COURSE_VENV={folder}", place)
