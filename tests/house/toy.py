"""A toy course to bootstrap: the real Makefile and tools, tiny packages, no network, no torch.

What takes minutes with the real packages takes seconds here, through the same code.
Used by the tests of the bootstrap alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

PROJECT = """\
[build-system]
requires = []
build-backend = "toy_backend"
backend-path = ["."]

[project]
name = "course_lib"
version = "0.1.0"
dependencies = ["torch>=2.11"]

[project.optional-dependencies]
bench = []
classroom = ["alpha>=1.0"]
deepspeed = []
dev = ["beta>=2.0"]
huggingface = []
"""

BACKEND = '''\
"""Enough of a build backend for `pip install -e`, so that the toy needs nothing from an index."""
import zipfile
from pathlib import Path

META = """Metadata-Version: 2.1
Name: course_lib
Version: 0.1.0
Requires-Dist: torch>=2.11
Provides-Extra: bench
Provides-Extra: classroom
Provides-Extra: deepspeed
Provides-Extra: dev
Provides-Extra: huggingface
Requires-Dist: alpha>=1.0; extra == "classroom"
Requires-Dist: beta>=2.0; extra == "dev"
"""

WHEEL = """Wheel-Version: 1.0
Root-Is-Purelib: true
Tag: py3-none-any
"""

def build_editable(folder, settings=None, metadata=None):
    name = "course_lib-0.1.0-py3-none-any.whl"
    info = "course_lib-0.1.0.dist-info/"
    with zipfile.ZipFile(Path(folder) / name, "w") as wheel:
        wheel.writestr("course_lib.pth", str(Path.cwd()))
        wheel.writestr(info + "METADATA", META)
        wheel.writestr(info + "WHEEL", WHEEL)
        wheel.writestr(info + "RECORD", "")
    return name

def build_wheel(folder, settings=None, metadata=None):
    return build_editable(folder)
'''  # fmt: skip

CLI = """\
import os, sys
def main():
    print("course", *sys.argv[1:], "torch" in sys.modules, os.environ.get("VIRTUAL_ENV"))
"""


def wheel(folder: Path, name: str, version: str) -> None:
    """An empty package of that name and version."""
    info = f"{name}-{version}.dist-info/"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}/__init__.py", f"__version__ = {version!r}\n")
        file.writestr(info + "METADATA", metadata)
        file.writestr(info + "WHEEL", tags)
        file.writestr(info + "RECORD", "")


class Toy:
    """A toy clone of the course in a folder of its own."""

    def __init__(self, root: Path, wheels: Path) -> None:
        self.root = root
        self.venv = root / ".venv"
        self.wheels = wheels
        # A killed pip leaves its folders behind; here they go with the test.
        self.temporary = root.parent / "temporary"
        self.temporary.mkdir(exist_ok=True, parents=True)
        self.temporary.chmod(0o777)

    def variables(self, **changed: str | None) -> dict[str, str]:
        """The variables of a make: this machine's, less every trace of its own pip settings."""
        told: dict[str, str | None] = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PIP_", "COURSE_", "TORCH_", "MAKE", "MFLAGS", "PYTEST_"))
            and name not in ("PYTHON", "PYTHONPATH", "VIRTUAL_ENV", "LAB_ARGS")
        }
        told |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PYTHON": sys.executable}
        told |= {"PIP_FIND_LINKS": str(self.wheels), "TMPDIR": str(self.temporary), **changed}
        return {name: value for name, value in told.items() if value is not None}

    def call(self, target: str, *before: str, **changed: str | None) -> dict[str, Any]:
        """`make TARGET` as subprocess takes it; stdout and stderr in one text."""
        args = [*before, "make", "--no-print-directory", target]
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        where = {"cwd": self.root, "env": self.variables(**changed), "stdin": subprocess.DEVNULL}
        return {"args": args, **both, **where}

    def make(self, target: str, **changed: str | None) -> subprocess.CompletedProcess[str]:
        """`make TARGET`, to its end."""
        return subprocess.run(**self.call(target, **changed), timeout=120, check=False)

    def said(self, target: str, fails: bool = False, **changed: str | None) -> str:
        """What a `make` prints that has to succeed, or to fail without a traceback."""
        done = self.make(target, **changed)
        assert bool(done.returncode) == fails and "Traceback" not in done.stdout, done.stdout
        return done.stdout

    def version(self, package: str) -> str:
        """What the environment has of that package."""
        done = subprocess.run(
            [self.venv / "bin" / "python", "-c", f"import {package}; print({package}.__version__)"],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        return done.stdout.strip() or "none"


def lay_out(root: Path, wheels: Path) -> Toy:
    """The files of a fresh toy clone in `root`."""
    root.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "Makefile", root)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tools", root / "tools", ignore=ignored)
    (root / "pyproject.toml").write_text(PROJECT)
    (root / "toy_backend.py").write_text(BACKEND)
    (root / "constraints.txt").write_text("# pins\ntorch==2.13.0\nalpha==1.0\nbeta==2.0\n")
    (root / "course_classroom").mkdir()
    (root / "course_classroom" / "__init__.py").write_text("")
    (root / "course_classroom" / "cli.py").write_text(CLI)
    return Toy(root, wheels)
