"""Move modules and files by a table, and update everything that names them.

`python -m tools.rename TABLE` shows the changes, and `--write` applies them in a clean clone.
A row of the table has an old and a new path. A folder ends in `/`, and the longest old path wins.
Imports, dotted names, paths in text and notebooks, and `parents[n]` to the root are updated.
Afterwards run `ruff check --fix`, `ruff format`, `make exercises`, and renew the cells' ids.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

TOPS = ("course_lib", "course_classroom", "course_lessons", "tests")
DOTTED = re.compile(rf"(?<![\w./-])((?:{'|'.join(TOPS)})(?:\.[A-Za-z_]\w*)+)")
SLASHED = re.compile(rf"(?<![\w/.-])((?:{'|'.join(TOPS)})(?:/[\w.-]+)+/?)")
HISTORY = "CHANGELOG.md"  # it keeps the old names


class Moves:
    """The new place of each path, folder and module."""

    def __init__(self, table: Path, tracked: list[str]):
        rows = [line.split() for line in table.read_text().splitlines() if line.strip()]
        self.rows = sorted(rows, key=lambda row: -len(row[0]))
        self.paths = {path: self.path(path) for path in tracked}
        if len(set(self.paths.values())) < len(self.paths):
            raise SystemExit("two files would have one path")
        python = {old: new for old, new in self.paths.items() if old.endswith(".py")}
        self.modules = {dotted(old): dotted(new) for old, new in python.items()}

    def path(self, path: str) -> str:
        for old, new in self.rows:
            if path == old or (old.endswith("/") and path.startswith(old)):
                return new + path[len(old) :]
        return path

    def name(self, name: str) -> str:
        """Translate the name of a module or of its content; otherwise that of a folder."""
        parts = name.split(".")
        for k in range(len(parts), 0, -1):
            module = self.modules.get(".".join(parts[:k]))
            if module:
                return ".".join([module, *parts[k:]])
        return self.path(f"{'/'.join(parts)}/").rstrip("/").replace("/", ".")

    def text(self, text: str) -> str:
        def slashed(found: re.Match) -> str:
            path = found[1].rstrip("./")
            end = found[1][len(path) :]
            if path in self.paths:
                return self.paths[path] + end
            if f"{path}.py" in self.paths:
                return self.paths[f"{path}.py"][:-3] + end
            return self.path(f"{path}/").rstrip("/") + end

        def named(found: re.Match) -> str:
            file = found[1].endswith((".py", ".md", ".json"))
            return found[1] if file else self.name(found[1])

        return SLASHED.sub(slashed, DOTTED.sub(named, text))

    def code(self, code: str) -> str:
        """Translate imports of modules first, since their names may go to several packages."""
        try:
            tree = ast.parse(code)
        except SyntaxError:  # a cell with magics
            return self.text(code)
        lines = code.split("\n")
        froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        written = set()
        for node in sorted(froms, key=lambda node: -node.lineno):
            modules = {
                alias.name: f"{node.module}.{alias.name}"
                for alias in node.names
                if not exports(node.module or "", alias.name)
            }
            if node.level or not any(module in self.modules for module in modules.values()):
                continue
            first, last = lines[node.lineno - 1], lines[node.end_lineno - 1]
            comment = re.search(r"\s+#.*$", first) or re.search(r"\s+#.*$", last)
            new = [first[: node.col_offset] + one for one in self._imports(node, modules)]
            new[0] += comment[0] if comment else ""
            lines[node.lineno - 1 : node.end_lineno] = new
            written.update(new)
        return "\n".join(line if line in written else self.text(line) for line in lines)

    def _imports(self, node: ast.ImportFrom, modules: dict[str, str]) -> Iterator[str]:
        groups: dict[str, list[str]] = {}
        for alias in node.names:
            new = self.modules.get(modules.get(alias.name))
            package, _, name = (
                new.rpartition(".") if new else (self.name(node.module), "", alias.name)
            )
            known_as = alias.asname or alias.name
            groups.setdefault(package, []).append(
                name if name == known_as else f"{name} as {known_as}"
            )
        for package, names in groups.items():
            yield f"from {package} import {', '.join(names)}" if package else f"import {names[0]}"


def exports(package: str, name: str) -> bool:
    """Return True if a package's __init__ imports this name from a module, possibly of the same
    name; then an import from the package means that object."""
    file = Path(*package.split("."), "__init__.py")
    body = ast.parse(file.read_text()).body if file.is_file() else []
    taken = (node for node in body if isinstance(node, ast.ImportFrom) and node.module != package)
    return any(name == (alias.asname or alias.name) for node in taken for alias in node.names)


def dotted(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def notebook(moves: Moves, text: str) -> str:
    page = json.loads(text)
    for cell in page["cells"]:
        follow = moves.code if cell["cell_type"] == "code" else moves.text
        cell["source"] = follow("".join(cell["source"])).splitlines(keepends=True)
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = moves.text("".join(output["text"])).splitlines(keepends=True)
            for kind, shown in output.get("data", {}).items():
                if kind.startswith("text/"):
                    output["data"][kind] = moves.text("".join(shown)).splitlines(keepends=True)
    return (
        text if page == json.loads(text) else json.dumps(page, indent=1, ensure_ascii=False) + "\n"
    )


def rooted(code: str, path: str, new: str) -> str:
    """Adjust `Path(__file__)….parents[n]` so that it leads to the repository's root again."""
    depth, now = path.count("/"), new.count("/")
    here = r"(__file__\)(?:\.resolve\(\))?)"
    code = re.sub(rf"{here}\.parents\[{depth}\]", rf"\1.parents[{now}]", code)
    up = r"\.parent" * (depth + 1)
    return (
        re.sub(rf"{here}{up}(?!\w|\.parent)", rf"\1.parents[{now}]", code) if now != depth else code
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.rename", description=__doc__)
    parser.add_argument("table", type=Path, help="file with an old and a new path in each row")
    parser.add_argument("--write", action="store_true", help="apply the changes (default: show)")
    options = parser.parse_args()
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout
    moves = Moves(options.table, listed.splitlines())
    changed = 0
    for old, new in moves.paths.items():
        file = Path(old)
        if old == HISTORY or file.is_symlink() or file == options.table:
            continue
        try:
            text = file.read_text()
        except UnicodeDecodeError:  # a picture
            continue
        follow = {".py": moves.code, ".ipynb": lambda text: notebook(moves, text)}
        after = follow.get(file.suffix, moves.text)(text)
        after = rooted(after, old, new) if file.suffix == ".py" else after
        changed += after != text
        if options.write and after != text:
            file.write_text(after)
    moved = {old: new for old, new in moves.paths.items() if old != new}
    print(f"{changed} files name what moves; {len(moved)} files move")
    for old, new in moved.items() if options.write else ():
        Path(new).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "mv", old, new], check=True)


if __name__ == "__main__":
    main()
