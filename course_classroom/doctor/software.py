"""Python, its packages, JupyterLab and its kernel, and the requirements of grading.

Packages are compared with the ranges in pyproject.toml and the pins in constraints.txt. A version
outside its range is `bad`; a version other than the pin is a `note`.
"""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_classroom.doctor.finding import INSTALL, Finding
from course_classroom.grading.walls import Walls, built
from course_classroom.leases.smi import ask

if TYPE_CHECKING:
    from packaging.requirements import Requirement

Installed = Callable[[str], "str | None"]
NEEDED = "classroom"  # the extra that every lesson needs


def installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def python(root: Path, version: str | None = None) -> list[Finding]:
    """Compare this Python with the range in pyproject.toml."""
    from packaging.specifiers import SpecifierSet

    version = platform.python_version() if version is None else version
    wanted = _project(root)["requires-python"]
    told = f"{version} ({platform.python_implementation()}); the course needs {wanted}"
    if SpecifierSet(wanted).contains(version, prereleases=True):
        return [Finding("Python", "ok", told)]
    remedy = "install a Python in that range, then run PYTHON=/path/to/it make setup"
    return [Finding("Python", "bad", told, remedy)]


def packages(root: Path, installed: Installed = installed_version) -> list[Finding]:
    """Return a finding for each package with a problem, and one that counts the other packages."""
    from packaging.utils import canonicalize_name

    project = _project(root)
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = _requirements([line for line in lines if line.strip() and not line.startswith("#")])
    pins = {canonicalize_name(one.name): one for one in pinned}
    found: list[Finding] = []
    seen: set[str] = set()
    for extra, texts in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        lacking = []
        for wanted in _requirements(texts):
            version = installed(wanted.name)
            if version is None and extra not in ("", NEEDED):
                lacking.append(wanted.name)
            elif wanted.name not in seen:
                found += _judge(wanted, version, pins.get(canonicalize_name(wanted.name)))
            seen.add(wanted.name)
        if lacking:
            told = f"not installed: {', '.join(lacking)}, so the parts that need them are skipped"
            more = f"python -m pip install -c constraints.txt '.[{extra}]', or make setup"
            found.append(Finding(f"packages [{extra}]", "note", told, more))
    told = f"checked {len(seen)} packages that the course lists: {len(found)} remark(s)"
    return [Finding("packages", "ok", told), *found]


def _judge(wanted: Requirement, version: str | None, pin: Requirement | None) -> list[Finding]:
    name = f"package {wanted.name}"
    remedy = f"make setup, or python -m pip install -c constraints.txt '{wanted}'"
    if version is None or not wanted.specifier.contains(version, prereleases=True):
        has = "not installed" if version is None else f"{version} is installed"
        return [Finding(name, "bad", f"{has}; the course needs {wanted}", remedy)]
    if pin is not None and not pin.specifier.contains(version, prereleases=True):
        told = f"{version} is installed, within the range {wanted.specifier}, but tested with"
        return [Finding(name, "note", f"{told} {str(pin.specifier).lstrip('=')}", remedy)]
    return []


def _project(root: Path) -> dict[str, Any]:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        import tomli as tomllib
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _requirements(texts: list[str]) -> list[Requirement]:
    """Return the requirements that apply to this machine."""
    from packaging.requirements import Requirement

    wanted = [Requirement(text) for text in texts]
    return [one for one in wanted if one.marker is None or one.marker.evaluate()]


def jupyterlab(python: str = sys.executable) -> list[Finding]:
    answer = ask([python, "-m", "jupyterlab", "--version"], 60.0)
    if not answer.good:
        why = next(iter(answer.said.splitlines()[-1:]), "no reason given")
        return [Finding("JupyterLab", "bad", f"it does not start: {why}", INSTALL)]
    return [Finding("JupyterLab", "ok", f"{answer.out.strip()} starts")]


def kernel(name: str = "python3") -> list[Finding]:
    """Check that the kernel named in the notebooks exists and runs this Python."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    remedy = "python -m ipykernel install --sys-prefix"
    try:
        program = KernelSpecManager().get_kernel_spec(name).argv[0]
    except NoSuchKernel:
        told = f"the notebooks use the kernel {name!r}, which is not installed"
        return [Finding("kernel", "bad", told, remedy)]
    # Jupyter itself replaces these with the running Python.
    if program in ("python", "python3", f"python{sys.version_info[0]}.{sys.version_info[1]}"):
        program = sys.executable
    if shutil.which(program) is None:
        told = f"the kernel {name!r} names {program}, which does not exist"
        return [Finding("kernel", "bad", told, remedy)]
    if Path(program).parent != Path(sys.executable).parent:
        told = f"the kernel {name!r} runs {program}; this environment's Python is {sys.executable}"
        return [Finding("kernel", "note", told, remedy)]
    return [Finding("kernel", "ok", f"{name!r} runs the Python of this environment")]


def grading(standing: Walls | None = None) -> list[Finding]:
    """Report the sandbox layers that `course grade` can put around answers on this machine."""
    standing = built() if standing is None else standing
    told = str(standing).rstrip(".")
    if standing.confined and standing.numbers and standing.network:
        return [Finding("grading", "ok", told)]
    remedy = "learners do not need it; for grading, use Linux 5.13 or later with Landlock, or "
    return [Finding("grading", "note", told, remedy + "a sandbox (docs/instructors.md)")]
