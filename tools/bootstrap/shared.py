"""A shared environment (COURSE_VENV) that is only checked and never changed.

A cluster's or workshop's environment may be read-only and need not contain course_lib. No lesson
derives it.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from .condition import python_of
from .environment import Environment
from .interpreters import SPAN, ask
from .say import Refusal, say

_CHECK = """
import importlib.metadata, json, sys
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
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
wanted = sum((project["optional-dependencies"].get(x, []) for x in sys.argv[1].split(",")), [])
wrong = []
for requirement in map(Requirement, project["dependencies"] + wanted):
    try:
        found = importlib.metadata.version(requirement.name)
        if not requirement.specifier.contains(found, prereleases=True):
            wrong.append("needs %s (it has %s)" % (requirement, found))
    except importlib.metadata.PackageNotFoundError:
        wrong.append("lacks %s" % requirement)
print(json.dumps(wrong))
"""


def check(root: Path, folder: Path, wanted: tuple[str, ...]) -> Environment:
    """Return the environment in `folder` if it satisfies the extras `wanted`; else a Refusal."""
    python = python_of(folder)
    found = ask(str(python))
    unset = "unset COURSE_VENV to create .venv here"
    if found is None or not found.fits:
        has = f"has Python {found.dotted}" if found else f"has no working Python ({python})"
        raise Refusal(
            f"COURSE_VENV={folder} {has}; the course needs {SPAN}.",
            f"name the folder of an environment (with bin/python in it) that you may read; {unset}",
        )
    answer = subprocess.run(
        [str(python), "-c", _CHECK, ",".join(wanted)],
        cwd=str(root), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Refusal(
            f"COURSE_VENV={folder} could not be checked: {last}",
            f"it must contain pip or packaging; or {unset}",
        )
    wrong = json.loads(answer.stdout)
    if wrong:
        raise Refusal(
            "\n  ".join([f"COURSE_VENV={folder} is not sufficient (it is never changed):", *wrong]),
            f"its owner can run {python} -m pip install -c constraints.txt "
            f"'.[{','.join(wanted)}]'; or {unset}",
        )
    say(f"COURSE_VENV={folder}: all requirements are met")
    return Environment(folder, python, False)
