"""Counts habits that make clear sentences sound foreign.

`python -m tools.plain_english PATH...` reads Markdown, notebooks and Python: prose,
docstrings, comments, messages and help texts.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

BANNED = {
    "owe, debt, pay": r"owe[sd]?|owing|debts?|pays?|paid|paying",
    "bend": r"bends?|bent",
    "whoever, somebody": r"whoever|somebody|nobody",
    "beside": r"beside",
    "alone": r"(?<!let )alone",
    "stand, lie": r"stands?(?! for\b)|stood|lies|lie|lay",
    "another": r"another one|(?:is|are|was|were|be|been|gives?|gave|has|have|had|of) another",
    "of its own": r"of (?:its|their|his|her|my|your|our|one's) own",
    "whole": r"(?:is|are|be|stays?|stayed|kept|keeps?|held|holds?|left|remains?) whole"
    r"|whole on (?:each|every|all)",
    "held against": r"(?:held|hold|holds|holding)(?: \w+){0,4} against",
    "is said": r"(?:is|are|was|were) (?:said|told)",
    "table of words": r"table of words|thousand million",
}  # fmt: skip
PATTERNS = {name: re.compile(rf"\b(?:{p})\b", re.IGNORECASE) for name, p in BANNED.items()}
FIRST = ("What", "Whether", "How", "Which", "Where")
FIRST_OF_HELP = (*FIRST, "Its", "Those", "Of", "Their", "Them", "One")
CONNECTIVES = re.compile(
    r"\b(because|since|so that|but|however|for example|which means)\b", re.IGNORECASE
)
WHAT = re.compile(r"\bwhat\b", re.IGNORECASE)


class Text(NamedTuple):
    """A piece of prose: `kind` is prose, docstring, comment, message or help."""

    kind: str
    line: int
    text: str


def markdown(text: str) -> str:
    """Without code, formulas, addresses, tables' rules and the names of findings."""
    text = re.sub(r"```.*?```", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"^\*\*Core path\*\*.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"<[^>\n]+>", " ", text)
    text = re.sub(r"\$\$.*?\$\$", " ", text, flags=re.DOTALL)
    text = re.sub(r"\$[^$\n]+\$|`[^`\n]*`|\{[^{}\n]*\}", "x", text)
    text = re.sub(r"\]\([^)\s]+\)", "]", text)
    text = re.sub(r"^\s*[-*] \*\*.+?\*\*:", "\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"^#+ .*$", "", text, flags=re.MULTILINE)
    return re.sub(r"^(\s*)(?:[-*+]|\d+\.) ", r"\n\n\1", text, flags=re.MULTILINE)


def sentences(text: str) -> list[str]:
    """Of prose without marks: paragraphs, table cells and list items end one too."""
    found = []
    for part in re.split(r"\n\s*\n|\s\|\s|^\||\|$", markdown(text), flags=re.MULTILINE):
        words = " ".join(part.split())
        found += re.split(r"(?<=[.?!…])[\")’*_]*\s+(?=[\"(*_]*[A-Z0-9x])", words)
    return [one for one in found if re.search(r"[A-Za-z]{2}", one)]


def texts(path: Path) -> list[Text]:
    """Return the texts that a person reads in a file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return [Text("prose", 1, source)]
    if path.suffix == ".ipynb":
        cells = json.loads(source)["cells"]
        return [
            Text("prose", number, "".join(cell["source"]))
            for number, cell in enumerate(cells)
            if cell["cell_type"] == "markdown"
        ]
    return [*of_python(source)]


def of_python(source: str) -> Iterator[Text]:
    tree = ast.parse(source)
    documents, helps = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            document = ast.get_docstring(node)
            if document:
                documents.add(id(node.body[0].value))
                yield Text("docstring", getattr(node, "lineno", 1), document)
        if isinstance(node, ast.keyword) and node.arg == "help":
            for part in ast.walk(node.value):
                helps.add(id(part))
            yield Text("help", node.value.lineno, _text(node.value))
    inside = {id(p) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for p in n.values}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and id(node) not in documents | helps:
            text = _text(node)
            if id(node) not in inside and len(text.split()) > 6 and "\n    " not in text:
                yield Text("message", node.lineno, text)
    lines: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(
            r"# (fmt|noqa|type|ruff)|#!|# ----", token.string
        ):
            text = token.string.lstrip("# ")
            if lines and token.start[0] == lines[-1][0] + 1 and token.line.lstrip().startswith("#"):
                lines[-1] = (token.start[0], f"{lines[-1][1]} {text}")
            else:
                lines.append((token.start[0], text))
    yield from (Text("comment", number, text) for number, text in lines)


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            _text(part) if isinstance(part, ast.Constant) else "x" for part in node.values
        )
    return ""


def habits(text: Text) -> Iterator[tuple[str, str]]:
    """Each habit that a text has, and the sentence that has it."""
    said = sentences(text.text)
    for sentence in said:
        for name, pattern in PATTERNS.items():
            for match in pattern.finditer(sentence):
                yield name, f"…{sentence[max(0, match.start() - 30) : match.end() + 30]}…"
        marks = re.findall(r"[:;](?=\s|$)", sentence)
        if len(marks) > 1:
            yield "two colons", sentence
    if text.kind == "docstring" and text.text.split()[0] in FIRST:
        yield "first word", text.text.splitlines()[0]
    if text.kind == "help" and text.text and text.text.split()[0] in FIRST_OF_HELP:
        yield "first word", text.text


def rates(found: list[Text]) -> tuple[int, int, int]:
    """(words, what-clauses that are no question, connectives)."""
    said = [s for text in found for s in sentences(text.text)]
    whats = sum(len(WHAT.findall(s)) for s in said if not s.rstrip('")*_').endswith("?"))
    return sum(len(s.split()) for s in said), whats, sum(len(CONNECTIVES.findall(s)) for s in said)


def main(names: list[str]) -> int:
    paths = [
        path
        for name in names
        for path in (sorted(Path(name).rglob("*")) if Path(name).is_dir() else [Path(name)])
        if path.suffix in (".md", ".py", ".ipynb") and ".ipynb_checkpoints" not in path.parts
    ]
    counts: Counter = Counter()
    words = whats = connectives = 0
    for path in paths:
        found = texts(path)
        for text in found:
            for name, where in habits(text):
                counts[name] += 1
                print(f"{path}:{text.line} {text.kind}: {name}: {where}")
        for_prose = [text for text in found if text.kind == "prose"] or found
        more = rates(for_prose)
        words, whats, connectives = words + more[0], whats + more[1], connectives + more[2]
    each = 1000 / max(1, words)
    print(f"{len(paths)} files, {words:,} words; {dict(counts.most_common())}")
    print(
        f"per 1,000 words: what-clauses {whats * each:.2f} (at most 1.5), "
        f"connectives {connectives * each:.2f} (at least 3)"
    )
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
