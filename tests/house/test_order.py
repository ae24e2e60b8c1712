"""Reading order, import order and lesson order are one: no import runs upward, none in a circle.

Read from the source with ast, so that an import inside a function counts as well; each rule is
also held against a small house that breaks it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "course_lib"

# In the order of the lessons. The last three may import the rest; nothing before them does.
ORDER = [
    "ranks",
    "files",
    "prepared",
    "collectives",
    "dispatch",
    "ledger",
    "memory",
    "layout",
    "norms",
    "gpt",
    "data",
    "generate",
    "tensor_parallel",
    "pretrained",
    "step",
    "zero",
    "checkpoint",
    "estimate",
    "deepspeed_config",
    "train",
    "figures",
    "classroom",
    "cli",
]
LONGEST = 300
# What a person who only wants the library never meets.
HEAVY = ["matplotlib", "IPython", "ipykernel", "jupyter_client", "jupyter_core", "nbformat"]
HEAVY += ["nbgrader", "deepspeed", "transformers", "typer", "rich", "pandas", "zmq"]


def modules(house: Path) -> dict[str, Path]:
    """Dotted name to file, `course_lib.zero` for zero/__init__.py."""
    found = {}
    for file in sorted(house.rglob("*.py")):
        parts = [house.name, *file.relative_to(house).with_suffix("").parts]
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
    """The idea that a module belongs to: course_lib.zero.stage1 to zero."""
    return (name.split(".") + [""])[1]


def top(name: str) -> bool:
    """Whether this is what `python -m` runs: it may draw what its program has made, since nothing
    imports it, and so nobody meets matplotlib through it who did not ask for a picture."""
    return name.endswith(".__main__")


def upward(house: Path) -> list[str]:
    known = modules(house)
    wrong = []
    for name, file in known.items():
        here = place(name)
        for other in sorted(imports(name, file, known)):
            there = place(other)
            if top(other):
                wrong.append(f"{name} imports {other}, which is a program and not an idea")
            if not there or here == there or (top(name) and there == "figures"):
                continue
            if not here or here not in ORDER or there not in ORDER:
                wrong.append(f"{name} imports {other}, which has no place below it in the order")
            elif ORDER.index(there) > ORDER.index(here):
                wrong.append(f"{name} imports {other}, which is taught later")
    return wrong


def circles(house: Path) -> list[str]:
    """Modules that import each other. A package's __init__ gathers its own files; they must not
    come back to it."""
    known = modules(house)
    after = {name: imports(name, file, known) for name, file in known.items()}
    found: set[str] = set()

    def walk(name: str, path: list[str]) -> None:
        if name in path:
            ring = path[path.index(name) :]
            start = ring.index(min(ring))
            found.add(" -> ".join([*ring[start:], *ring[:start], ring[start]]))
            return
        for other in sorted(after[name]):
            walk(other, [*path, name])

    for name in known:
        walk(name, [])
    return sorted(found)


def unplaced(house: Path) -> list[str]:
    return sorted({place(name) for name in modules(house)} - {"", "__main__", *ORDER})


def too_long(house: Path) -> list[str]:
    counts = {file: len(file.read_text().splitlines()) for file in modules(house).values()}
    return [f"{file.name}: {count} lines" for file, count in counts.items() if count > LONGEST]


def unexplained(house: Path) -> list[str]:
    """Files without a docstring, without the future import, or with an essay for a docstring."""
    wrong = []
    for name, file in modules(house).items():
        text = file.read_text()
        told = ast.get_docstring(ast.parse(text))
        if not told:
            wrong.append(f"{name} does not say what idea it holds")
        elif "def " in text and "from __future__ import annotations" not in text:
            wrong.append(f"{name} lacks from __future__ import annotations")
    return wrong


RULES = [upward, circles, unplaced, too_long, unexplained]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps(rule) -> None:
    assert rule(LIBRARY) == []


HEAD = '"""An idea."""\nfrom __future__ import annotations\n'
BROKEN = {
    "an upward import": ("memory.py", "from course_lib.layout import cut\n", upward),
    "an upward import, inside a function": (
        "collectives.py", "def f():\n    from . import ledger\n", upward,
    ),
    "figures imported by an idea": ("ranks.py", "import course_lib.figures.time\n", upward),
    "a program imported by an idea": (
        "zero/stage1.py", "import course_lib.zero.__main__\n", upward,
    ),
    "a program that runs upward": ("zero/__main__.py", "import course_lib.cli\n", upward),
    "the package importing an idea": ("__init__.py", "from . import ranks\n", upward),
    "a circle between files of one idea": ("zero/stage1.py", "from .stage2 import x\n", circles),
    "a circle closed by a type alone": (
        "zero/stage1.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .stage2 import X\n",
        circles,
    ),
    "a file coming back to its package": (
        "zero/stage2.py", "from course_lib import zero\n", circles,
    ),
    "an idea without a place": ("misc.py", "", unplaced),
    "a file too long": ("gpt.py", "x = 1\n" * LONGEST, too_long),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_house_that_breaks_a_rule_is_found_out(name: str, tmp_path: Path) -> None:
    house = tmp_path / "course_lib"
    sound = {
        "__init__.py": "",
        "ranks.py": "",
        "ledger.py": "from course_lib.ranks import x\n",
        "layout.py": "",
        "figures/time.py": "from ..ledger import y\n",
        "zero/__init__.py": "from .stage2 import x\n",
        "zero/__main__.py": "import course_lib.figures.time\n",
        "cli.py": "",
        "zero/stage2.py": "from .stage1 import x\n",
        "zero/stage1.py": "import course_lib.ledger\n",
    }
    for file, text in sound.items():
        (house / file).parent.mkdir(parents=True, exist_ok=True)
        (house / file).write_text(HEAD + text)
    assert [rule(house) for rule in RULES] == [[]] * len(RULES)
    file, text, rule = BROKEN[name]
    (house / file).write_text(HEAD + text)
    assert rule(house) != []


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
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_the_package_imports_nothing() -> None:
    bare, ours = loaded("pass"), loaded("import course_lib")
    assert ours - bare <= {"course_lib", "__future__"}


def test_the_library_brings_torch_and_nothing_heavier() -> None:
    below = ORDER[: ORDER.index("figures")]
    ideas = [name for name in modules(LIBRARY) if place(name) in below]
    statement = "import torch\nbefore = set(sys.modules)\n"
    with_torch = loaded("import torch")
    ours = loaded(statement + "\n".join(f"import {name}" for name in ideas))
    assert "course_lib" in ours
    assert (ours - with_torch) & set(HEAVY) == set()
