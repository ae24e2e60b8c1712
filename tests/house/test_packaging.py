"""pyproject.toml, constraints.txt and environment.yml say one thing, for every Python and system.

Ranges stand in the first, exact pins in the second, the same pins as a conda environment in the
third; the bootstrap's own numbers agree with them.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tools.bootstrap import __main__ as bootstrap
from tools.bootstrap import interpreters
from tools.bootstrap.condition import fingerprint, torch_pin
from tools.pins import machines

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def lines(name: str) -> list[str]:
    """The pins of constraints.txt, or those under `pip:` in environment.yml."""
    text = (ROOT / name).read_text()
    if name.endswith(".yml"):
        text = re.sub(r"^ +- ", "", text.partition("  - pip:\n")[2], flags=re.MULTILINE)
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def pins() -> list[Requirement]:
    return [Requirement(line) for line in lines("constraints.txt")]


def wanted() -> list[Requirement]:
    """Every direct requirement, of the library and of all its extras."""
    told = project()
    texts = [*told["dependencies"]]
    for extra in told["optional-dependencies"].values():
        texts += extra
    return [Requirement(text) for text in texts]


def test_the_conda_environment_is_the_constraints() -> None:
    assert lines("environment.yml") == lines("constraints.txt")
    head = (ROOT / "environment.yml").read_text().partition("  - pip:\n")[0]
    python = re.search(r"^  - python=(3\.\d+)$", head, re.MULTILINE)
    assert python is not None
    assert SpecifierSet(project()["requires-python"]).contains(python[1])


def test_every_pin_is_exact_and_torch_carries_no_build_tag() -> None:
    for pin in pins():
        assert re.fullmatch(r"==[^,*]+", str(pin.specifier)), f"{pin} is not an exact pin"
        assert "+" not in str(pin.specifier), f"{pin} names one build"
    release = torch_pin(ROOT / "constraints.txt")
    assert [str(pin) for pin in pins() if pin.name == "torch"] == [f"torch=={release}"]
    for build in (release, release + "+cpu", release + "+cu130"):
        assert SpecifierSet(f"=={release}").contains(build)


@pytest.mark.parametrize("machine", machines(), ids=lambda m: "-".join(list(m.values())[::7]))
def test_on_every_machine_each_requirement_has_one_pin_inside_its_range(
    machine: dict[str, str],
) -> None:
    here: dict[str, Version] = {}
    for pin in pins():
        if pin.marker is None or pin.marker.evaluate(machine):
            name = canonicalize_name(pin.name)
            assert name not in here, f"{name} is pinned twice for {machine}"
            here[name] = Version(str(pin.specifier).lstrip("="))
    for requirement in wanted():
        if requirement.marker is not None and not requirement.marker.evaluate(machine):
            continue  # not wanted there
        name = canonicalize_name(requirement.name)
        assert name in here, f"{requirement} has no pin"
        assert requirement.specifier.contains(here[name]), f"{requirement}, pinned {here[name]}"


def test_contributors_read_which_releases_of_torch_are_allowed_pinned_and_tried() -> None:
    text = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())
    said = re.search(
        r"oldest torch allowed is (\S+), the pinned one is (\S+) and the newest tried is (\S+)\. ",
        text,
    )
    assert said is not None
    oldest, pinned, newest = said.groups()
    assert project()["dependencies"] == [f"torch>={oldest}"]
    assert pinned == torch_pin(ROOT / "constraints.txt")
    assert Version(oldest) < Version(pinned) < Version(newest)


def test_the_bootstrap_and_the_project_agree() -> None:
    told = project()
    oldest, newest = interpreters.OLDEST, interpreters.NEWEST
    fits = SpecifierSet(told["requires-python"])
    for minor in range(oldest[1] - 2, newest[1] + 3):
        inside = oldest[1] <= minor <= newest[1]
        assert fits.contains(f"3.{minor}.1") == inside, f"Python 3.{minor}"
        assert (f"Programming Language :: Python :: 3.{minor}" in told["classifiers"]) == inside
    asked = {extra for extras, _ in bootstrap.TARGETS.values() for extra in extras}
    assert asked <= set(told["optional-dependencies"])
    assert {"classroom", "deepspeed", "huggingface", "bench", "dev"} <= set(
        told["optional-dependencies"]
    )


def test_one_version() -> None:
    tree = ast.parse((ROOT / "course_lib" / "__init__.py").read_text())
    versions = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__"
    ]
    assert len(versions) == 1
    assert "version" in project()["dynamic"], "pyproject reads it from the package"
    assert f"## [{versions[0]}]" in (ROOT / "CHANGELOG.md").read_text()


def clone(folder: Path) -> None:
    for name in ("pyproject.toml", "constraints.txt"):
        (folder / name).write_text((ROOT / name).read_text())


def test_the_fingerprint_follows_what_is_installed(tmp_path: Path) -> None:
    clone(tmp_path)
    before = fingerprint(tmp_path)
    changes = [
        ("pyproject.toml", "line-length = 100", "line-length = 99", False),
        ("pyproject.toml", ">=2.11", ">=2.12", True),
        ("constraints.txt", "# Exact", "# The exact", False),
        ("constraints.txt", "torch==2", "torch==3", True),
    ]
    for name, old, new, counts in changes:
        clone(tmp_path)
        text = (tmp_path / name).read_text()
        assert old in text
        (tmp_path / name).write_text(text.replace(old, new))
        assert (fingerprint(tmp_path) != before) == counts, f"{name}: {old} to {new}"
