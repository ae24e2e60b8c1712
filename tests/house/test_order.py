"""Reading order, import order and lesson order are one: no import runs upward, none in a circle.

Read from the source with ast, so that an import inside a function counts as well; each rule is
also held against a small house that breaks it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests import conftest
from tests.support.commands import ROOT, python

LIBRARY = ROOT / "course_lib"

# The three packages, each on top of the one before, and the floors of each. Those of course_lib are
# in the order of the lessons; within a lesson, in that in which they are read.
ORDER = {
    "course_lib": [
        *("ranks", "files", "meta", "processes", "collectives", "ledger", "memory", "layout"),
        *("gpt", "tensor_parallel", "data", "norms", "generate", "pretrained", "step", "zero"),
        *("estimate", "checkpoint", "train", "peers", "inference", "dry", "plan", "extras"),
    ],
    "course_classroom": [
        *("figures", "leases", "ranks", "progress", "judge", "notebook", "workspace", "grading"),
        *("doctor", "cli"),
    ],
    "course_lessons": [*(f"lesson_{number:02}" for number in range(16)), "appendix_e4"],
}
PACKAGES = [ROOT / name for name in ORDER]
FLOORS = [f"{package}.{name}" for package, names in ORDER.items() for name in names]
# What `%load_ext course_classroom` finds; it imports the notebook's side only when it is called.
MAGICS = "course_classroom"
LONGEST = 300
# What a person who only wants the library never meets.
HEAVY = ["matplotlib", "IPython", "ipykernel", "jupyter_client", "jupyter_core", "nbformat"]
HEAVY += ["nbgrader", "deepspeed", "transformers", "typer", "rich", "pandas", "zmq"]
# Imported where logits are on a GPU, and only there: it needs triton.
KERNELS = "course_lib.tensor_parallel.loss_kernels"


def modules(*packages: Path) -> dict[str, Path]:
    """Dotted name to file, `course_lib.zero` for zero/__init__.py."""
    found = {}
    for package in packages:
        for file in sorted(package.rglob("*.py")):
            parts = file.relative_to(package.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports(name: str, file: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the house that this one imports, wherever in the file it does so, and for
    whatever purpose: what only a type checker reads is read by a person as well."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                names.add(inner if inner in known else base)
    return {other for other in names if other in known and other != name}


def place(name: str) -> str:
    """The idea that a module belongs to: course_lib.zero.stage1 to course_lib.zero."""
    return ".".join(name.split(".")[:2])


def top(name: str) -> bool:
    """Whether this is what `python -m` runs: it may draw what its program has made, since nothing
    imports it, and so nobody meets matplotlib through it who did not ask for a picture."""
    return name.endswith(".__main__")


def upward(*packages: Path) -> list[str]:
    known = modules(*packages)
    wrong = []
    for name, file in known.items():
        here = place(name)
        for other in sorted(imports(name, file, known)):
            there = place(other)
            if top(other):
                wrong.append(f"{name} imports {other}, which is a program and not an idea")
            if here == there or there in ORDER or name == MAGICS:
                continue
            if here not in FLOORS or there not in FLOORS:
                wrong.append(f"{name} imports {other}, which has no place below it in the order")
            elif FLOORS.index(there) > FLOORS.index(here):
                wrong.append(f"{name} imports {other}, which stands above it")
    return wrong


def circles(*packages: Path) -> list[str]:
    """Modules that import each other. A package's __init__ gathers its own files; they must not
    come back to it."""
    known = modules(*packages)
    after = {name: imports(name, file, known) for name, file in known.items()}
    rings: set[str] = set()
    walked: set[str] = set()  # all that can be reached from these has been seen

    def walk(name: str, path: list[str]) -> None:
        if name in path:
            ring = path[path.index(name) :]
            start = ring.index(min(ring))
            rings.add(" -> ".join([*ring[start:], *ring[:start], ring[start]]))
        elif name not in walked:
            for other in sorted(after[name]):
                walk(other, [*path, name])
            walked.add(name)

    for name in known:
        walk(name, [])
    return sorted(rings)


def lesson_of(file: Path) -> int | None:
    """The lesson after which all of a package can be read: the last words of its docstring."""
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    stated = re.findall(r"\bLesson (\d\d)\.", text)
    return int(stated[0]) if len(stated) == 1 and text.endswith(f"Lesson {stated[0]}.") else None


def lessons(library: Path) -> dict[str, int | None]:
    """The lesson of every package and module directly below the library, in ORDER's order."""
    known = modules(library)
    names = [name for name in ORDER["course_lib"] if f"course_lib.{name}" in known]
    return {name: lesson_of(known[f"course_lib.{name}"]) for name in names}


def without_lesson(*packages: Path) -> list[str]:
    return [name for name, lesson in lessons(packages[0]).items() if lesson is None]


def out_of_order(*packages: Path) -> list[str]:
    """What stands in ORDER after something that a later lesson teaches."""
    taught = [(lesson, name) for name, lesson in lessons(packages[0]).items() if lesson is not None]
    in_lessons_order = sorted(taught, key=lambda entry: entry[0])  # stable
    return [
        f"{name} of lesson {lesson:02} stands where {other} should"
        for (lesson, name), (_, other) in zip(taught, in_lessons_order, strict=True)
        if name != other
    ]


def too_long(*packages: Path) -> list[str]:
    counts = {file: len(file.read_text().splitlines()) for file in modules(*packages).values()}
    return [f"{file.name}: {count} lines" for file, count in counts.items() if count > LONGEST]


def unexplained(*packages: Path) -> list[str]:
    """Files without a docstring, without the future import, or with an essay for a docstring."""
    wrong = []
    for name, file in modules(*packages).items():
        text = file.read_text()
        told = ast.get_docstring(ast.parse(text))
        if not told:
            wrong.append(f"{name} does not say what idea it holds")
        elif "def " in text and "from __future__ import annotations" not in text:
            wrong.append(f"{name} lacks from __future__ import annotations")
    return wrong


RULES = [upward, circles, without_lesson, out_of_order, too_long, unexplained]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps(rule) -> None:
    assert rule(*PACKAGES) == []


def test_every_place_in_the_order_is_taken() -> None:
    assert set(FLOORS) == {place(name) for name in modules(*PACKAGES)} - set(ORDER)


@pytest.mark.parametrize("package", ORDER)
def test_the_map_of_a_package_names_each_floor_in_this_order(package: str) -> None:
    page = (ROOT / package / "README.md").read_text()
    assert len(page.splitlines()) <= 60
    drawn = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", page, re.MULTILINE)
    assert drawn == ORDER[package] or package == "course_lessons"


HEAD = '"""An idea.{}"""\nfrom __future__ import annotations\n'
BROKEN = {
    "an upward import, inside a function": (
        "course_lib/collectives.py", "def f():\n    from . import ledger\n", upward,
    ),
    "a library that knows the classroom": (
        "course_lib/zero/__main__.py", "import course_classroom.figures.time\n", upward,
    ),
    "a classroom that knows a lesson": (
        "course_classroom/cli.py", "def f():\n    import course_lessons.lesson_09\n", upward,
    ),
    "a lesson that knows a later one": (
        "course_lessons/lesson_03.py", "import course_lessons.lesson_09\n", upward,
    ),
    "a program imported by an idea": (
        "course_lib/zero/stage1.py", "import course_lib.zero.__main__\n", upward,
    ),
    "the package importing an idea": ("course_lib/__init__.py", "from . import ranks\n", upward),
    "a circle closed by a type alone": (
        "course_lib/zero/stage1.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .stage2 import X\n",
        circles,
    ),
    "a file coming back to its package": (
        "course_lib/zero/stage2.py", "from course_lib import zero\n", circles,
    ),
    "an idea without a lesson": ("course_lib/memory.py", "", without_lesson),
    "an idea whose lesson is mentioned": (
        "course_lib/memory.py", " Lesson 01. And more", without_lesson,
    ),
    "an idea behind its lesson": ("course_lib/gpt/__init__.py", " Lesson 00.", out_of_order),
    "a file too long": ("course_lib/gpt.py", "x = 1\n" * LONGEST, too_long),
}  # fmt: skip


def write(house: Path, files: dict[str, tuple[str, str]]) -> None:
    """Files by name, each with the end of its docstring and what follows."""
    for file, (end, text) in files.items():
        (house / file).parent.mkdir(parents=True, exist_ok=True)
        (house / file).write_text(HEAD.format(end) + text)


@pytest.mark.parametrize("name", BROKEN)
def test_a_house_that_breaks_a_rule_is_found_out(name: str, tmp_path: Path) -> None:
    packages = [tmp_path / package for package in ORDER]
    sound = {
        "course_lib/__init__.py": ("", ""),
        "course_lib/ranks.py": (" Lesson 00.", ""),
        "course_lib/ledger.py": (" Lesson 01.", "from course_lib.ranks import x\n"),
        "course_lib/layout.py": (" Lesson 02.", ""),
        "course_lib/zero/__init__.py": (" Lesson 12.", "from .stage2 import x\n"),
        "course_lib/zero/__main__.py": ("", "import course_lib.zero.stage2\n"),
        "course_lib/zero/stage2.py": ("", "from .stage1 import x\n"),
        "course_lib/zero/stage1.py": (" Derived in lesson 09.", "import course_lib.ledger\n"),
        "course_classroom/figures/time.py": ("", "from course_lib.ledger import y\n"),
        "course_classroom/cli.py": ("", "import course_classroom.figures.time\n"),
        "course_lessons/lesson_03.py": ("", ""),
        "course_lessons/lesson_09.py": ("", "import course_classroom.cli\n"),
    }
    write(tmp_path, sound)
    assert [rule(*packages) for rule in RULES] == [[]] * len(RULES)
    file, text, rule = BROKEN[name]
    write(tmp_path, {file: (text, "") if rule in (without_lesson, out_of_order) else ("", text)})
    assert rule(*packages) != []


def test_a_file_that_does_not_explain_itself_is_found_out(tmp_path: Path) -> None:
    house = tmp_path / "course_lib"
    house.mkdir()
    (house / "ranks.py").write_text("from __future__ import annotations\n")
    (house / "layout.py").write_text('"""An idea."""\ndef f(): ...\n')
    assert len(unexplained(house)) == 2


def loaded(statement: str) -> set[str]:
    """The top-level modules that a fresh Python holds after `statement`."""
    script = (
        f"import sys\n{statement}\nprint(*sorted({{one.split('.')[0] for one in sys.modules}}))"
    )
    done = python("-c", script)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_the_package_imports_nothing() -> None:
    bare, ours = loaded("pass"), loaded("import course_lib")
    assert ours - bare <= {"course_lib", "__future__"}


def test_the_library_brings_torch_and_nothing_heavier() -> None:
    ideas = [name for name in modules(LIBRARY) if name != KERNELS and not top(name)]
    statement = "import torch\nbefore = set(sys.modules)\n"
    with_torch = loaded("import torch")
    ours = loaded(statement + "\n".join(f"import {name}" for name in ideas))
    assert "course_lib" in ours
    assert (ours - with_torch) & set(HEAVY) == set()


def test_the_tests_that_are_begun_first_are_there():
    assert [name for name in conftest.LONGEST if not (ROOT / "tests" / f"{name}.py").exists()] == []


def classes_of(folder: Path) -> dict[str, list[str]]:
    """The files that define each public class."""
    files: dict[str, list[str]] = {}
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files.setdefault(node.name, []).append(file.name)
    return files


def test_a_public_class_of_the_library_has_its_name_alone(tmp_path):
    assert {name: files for name, files in classes_of(LIBRARY).items() if len(files) > 1} == {}
    (tmp_path / "one.py").write_text("class Part: ...\nclass _Own: ...\n")
    (tmp_path / "two.py").write_text("class Part: ...\nclass _Own: ...\n")
    assert classes_of(tmp_path) == {"Part": ["one.py", "two.py"]}
