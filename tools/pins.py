"""A writer for constraints.txt and environment.yml, so that the two never differ.

`python -m tools.pins` keeps the pins that still fit, and `--upgrade` uses the newest of everything.
It needs uv (pip install uv), which resolves for all Pythons at once. Not in a lesson.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.markers import Marker

ROOT = Path(__file__).resolve().parents[1]
OLDEST_PYTHON = "3.10"
CONDA_PYTHON = "3.11"

CONSTRAINTS_HEAD = """\
# Exact pins of everything the course installs, for Python 3.10 to 3.13 on Linux and macOS.
# Ranges are in pyproject.toml. Written by `python -m tools.pins`, together with environment.yml.
# torch carries no build tag: the CPU build and the CUDA build of this release both satisfy it;
# the nvidia-*, cuda-* and triton pins matter to the CUDA build alone.
"""

ENVIRONMENT_HEAD = f"""\
# The set of constraints.txt as a conda environment, GPU-ready: on Linux pip brings the CUDA build
# of torch with its libraries. Written by `python -m tools.pins`; not to be edited by hand.
#   conda env create -f environment.yml && conda activate course
#   COURSE_VENV=$CONDA_PREFIX make lab
name: course
channels:
  - conda-forge
dependencies:
  - python={CONDA_PYTHON}
  - pip
  - make
  # for the operators that DeepSpeed compiles on first use (NVMe offload also wants libaio)
  - cxx-compiler
  - pip:
"""


def resolve(upgrade: bool) -> list[str]:
    """Resolve the pins, one per line, each with the marker for its platforms."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "pins.txt"
        if (ROOT / "constraints.txt").exists():
            out.write_text((ROOT / "constraints.txt").read_text(encoding="utf-8"), encoding="utf-8")
        command = [
            *("uv", "pip", "compile", "--universal", "--python-version", OLDEST_PYTHON),
            *("--all-extras", "--no-header", "--no-annotate", "--output-file", str(out)),
            *(["--upgrade"] if upgrade else []),
            "pyproject.toml",
        ]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
        if done.returncode != 0:
            sys.exit(done.stderr)
        lines = out.read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line.strip() and not line.startswith("#")]
    return [pin for pin in map(tidy, pins) if pin]


def tidy(pin: str) -> str:
    """Remove a marker that is always true here; return an empty text if it is never true."""
    name, _, marker = (part.strip() for part in pin.partition(" ; "))
    if not marker:
        return name
    holds = [Marker(marker).evaluate(machine) for machine in machines()]
    return name if all(holds) else pin if any(holds) else ""


def machines() -> list[dict[str, str]]:
    """List every supported Python, system and processor, as markers see them."""
    pythons = ("3.10.0", "3.11.0", "3.11.9", "3.12.0", "3.13.0")
    systems = (("linux", "Linux", "x86_64"), ("linux", "Linux", "aarch64"))
    systems += (("darwin", "Darwin", "x86_64"), ("darwin", "Darwin", "arm64"))
    return [
        {
            "python_full_version": python,
            "python_version": ".".join(python.split(".")[:2]),
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "os_name": "posix",
            "sys_platform": platform,
            "platform_system": system,
            "platform_machine": machine,
        }
        for python in pythons
        for platform, system, machine in systems
    ]


def write(pins: list[str]) -> None:
    """Write both files from the same list."""
    constraints = CONSTRAINTS_HEAD + "".join(f"{pin}\n" for pin in pins)
    environment = ENVIRONMENT_HEAD + "".join(f"      - {pin}\n" for pin in pins)
    (ROOT / "constraints.txt").write_text(constraints, encoding="utf-8")
    (ROOT / "environment.yml").write_text(environment, encoding="utf-8")


def main() -> None:
    """Resolve the pins and write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--upgrade",
        action="store_true",
        help="use the newest version of every package instead of the present pins",
    )
    pins = resolve(parser.parse_args().upgrade)
    write(pins)
    print(f"{len(pins)} pins written to constraints.txt and environment.yml")


if __name__ == "__main__":
    main()
