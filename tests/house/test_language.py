"""The field's words in what a learner reads: no banned word, links that can be clicked, formulas
and pictures, cells of a screen, minutes that were counted and not guessed.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
LESSONS = [path for path in NOTEBOOKS if path.name[0].isdigit()]
SOLUTIONS = sorted(ROOT.glob("solutions/*/*.ipynb"))
MODULES = sorted(ROOT.glob("course_*/**/*.py"))
CHECKS = sorted((*ROOT.glob("course_classroom/judge/*.md"), *ROOT.glob("course_lessons/*/*.md")))
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]

BANNED = re.compile(
    r"\b(owe[sd]?|owing|debts?|bends?|bent|whoever|somebody|nobody|table of words|"
    r"thousand million)\b",
    re.IGNORECASE,
)
IN_HEADINGS = re.compile(r"\b(behind|the world|words|lies|numbers that)\b", re.IGNORECASE)
# Said to a learner, it says that who stumbles is slow.
SLIGHTING = re.compile(
    r"\b(easy|easily|simply|obvious(ly)?|trivial(ly)?|of course|clearly)\b", re.IGNORECASE
)
PAPERS = ("arxiv.org", "doi.org", "dl.acm.org", "openreview.net", "jmlr.org")
SOURCES = ("github.com", "docs.pytorch.org", "pytorch.org", "docs.nvidia.com", "huggingface.co",
           "deepspeed.readthedocs.io", "www.deepspeed.ai")  # fmt: skip
HOSTS = {
    *PAPERS, *SOURCES, "developer.nvidia.com", "www.nvidia.com", "nvidia.com", "images.nvidia.com",
    "jax-ml.github.io", "www.kernel.org", "docs.kernel.org", "slurm.schedmd.com",
    "resources.nvidia.com", "www.infinibandta.org", "pcisig.com", "nbgrader.readthedocs.io",
    "ipython.readthedocs.io", "jupyterlab.readthedocs.io", "nbval.readthedocs.io",
    "tljh.jupyter.org",
}  # fmt: skip
LONGEST = 30  # lines of a code cell


def cells(path: Path, kind: str) -> list[str]:
    return [c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == kind]


def prose(text: str) -> str:
    """Markdown without code, formulas and addresses."""
    text = re.sub(r"```.*?```", " ", text, flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", " ", text)
    text = re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$", " ", text, flags=re.DOTALL)
    return re.sub(r"\]\([^)\s]+\)", "]", text)


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)


def banned(text: str) -> list[str]:
    """What stands in a text that a learner should not have to decode."""
    found = [match.group() for match in BANNED.finditer(prose(text))]
    return found + [
        f"{match.group()} (heading)"
        for heading in headings(text)
        for match in IN_HEADINGS.finditer(prose(heading))
    ]


def links(text: str) -> list[str]:
    found = re.findall(r"https?://[^\s)>\]\"'`|\\]+", text)
    return [link for link in found if link not in ("https://…", "https://...")]  # one's own


def wrong_with(link: str) -> str:
    """Why a link cannot be right; empty where it may be."""
    parts = urlsplit(link)
    if parts.scheme != "https":
        return "not https"
    if parts.hostname not in HOSTS:
        return f"{parts.hostname} is no host that the course links to"
    if parts.hostname == "arxiv.org" and not re.fullmatch(r"/(abs|pdf)/\d{4}\.\d{4,5}", parts.path):
        return "arXiv papers are linked as https://arxiv.org/abs/NNNN.NNNNN"
    if parts.hostname == "github.com" and len(parts.path.strip("/").split("/")) < 2:
        return "a repository has an owner and a name"
    return ""


@pytest.mark.parametrize("path", [*NOTEBOOKS, *SOLUTIONS], ids=lambda path: path.stem)
def test_a_notebook_speaks_the_fields_language(path):
    found = {i: banned(text) for i, text in enumerate(cells(path, "markdown"))}
    assert not {i: words for i, words in found.items() if words}
    slighting = [SLIGHTING.findall(prose(text)) for text in cells(path, "markdown")]
    assert not [words for words in slighting if words]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_speaks_the_fields_language(path):
    assert not banned(path.read_text(encoding="utf-8"))


def messages(path: Path) -> list[str]:
    """The strings of a module that somebody reads: all but docstrings and names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    strings = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if id(node) not in documents
    ]
    return [text for text in strings if len(text.split()) > 6]


def said(page: Path) -> list[str]:
    """What a check says, without the names of misconceptions: those are for tests."""
    return [re.sub(r"^- \*\*.+?\*\*: ", "", line) for line in page.read_text().splitlines()]


def test_messages_speak_the_fields_language():
    """Errors of the library, hints and verdicts of the checks, whatever else a program prints."""
    found = [
        (path.relative_to(ROOT).as_posix(), words, " ".join(text.split())[:100])
        for path in [*MODULES, *CHECKS]
        for text in (said if path in CHECKS else messages)(path)
        if (words := banned(text))
    ]
    assert not found


@pytest.mark.parametrize("path", [*NOTEBOOKS, *SOLUTIONS, *PAGES], ids=lambda path: path.stem)
def test_links_can_be_right(path):
    text = (
        path.read_text(encoding="utf-8")
        if path.suffix == ".md"
        else "\n".join(cells(path, "markdown"))
    )
    found = [(link, wrong_with(link.rstrip(".,;:"))) for link in links(text)]
    assert not [pair for pair in found if pair[1]]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_names_its_papers_and_its_sources(path):
    hosts = [urlsplit(link).hostname for link in set(links("\n".join(cells(path, "markdown"))))]
    assert sum(host in PAPERS for host in hosts) >= 2
    assert sum(host in SOURCES for host in hosts) >= 3


@pytest.mark.parametrize("path", LESSONS[2:], ids=lambda path: path.stem)
def test_a_lesson_derives_in_formulas(path):
    text = "\n".join(cells(path, "markdown"))
    assert re.search(r"\$\$.+?\$\$", text, re.DOTALL), "a displayed formula"
    assert len(re.findall(r"(?<!\$)\$[^$\n]+\$(?!\$)", text)) >= 3


@pytest.mark.parametrize("path", LESSONS[2:12], ids=lambda path: path.stem)
def test_the_picture_comes_before_the_derivation(path):
    every = nbformat.read(path, as_version=4).cells
    formula = next(i for i, c in enumerate(every) if c.cell_type == "markdown" and "$$" in c.source)
    drawn = [
        i
        for i, c in enumerate(every)
        if c.cell_type == "code"
        and any("image/png" in o.get("data", {}) for o in c.outputs)
        and "course_map(" not in c.source
    ]
    assert drawn and drawn[0] < formula
    assert any("statement(" in c.source for c in every if c.cell_type == "code")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_begins_with_the_map_of_the_course(path):
    name = re.match(r"(\d\d)_|appendix_([a-z]\d?)_", path.name)
    here = name.group(1) or name.group(2).upper()
    first = [source for source in cells(path, "code") if f'course_map("{here}")' in source]
    assert first and cells(path, "code").index(first[0]) <= 1


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_cell_is_read_without_scrolling(path):
    lines = {i: len(source.splitlines()) for i, source in enumerate(cells(path, "code"))}
    assert not {i: count for i, count in lines.items() if count > LONGEST}


def minutes_to_read(path: Path) -> int:
    """A first reading: 160 words of prose and 10 lines of code a minute, to the next five."""
    words = sum(len(prose(text).split()) for text in cells(path, "markdown"))
    lines = sum(bool(line.strip()) for text in cells(path, "code") for line in text.splitlines())
    return max(5, 5 * round((words / 160 + lines / 10) / 5))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_minutes_are_counted(path):
    said = re.search(r"\b(\d+) minutes to read\b", "\n".join(cells(path, "markdown")[:1]))
    assert said and int(said.group(1)) == minutes_to_read(path)


def glossary() -> list[tuple[str, str]]:
    """Each term of the glossary and the notebook that introduces it."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| *([^|]+?) *\|.*\]\(\.\./notebooks/(\S+?\.ipynb)[^)]*\)", text, re.MULTILINE
    )
    return [(term, notebook) for term, notebook in rows]


def test_a_term_of_the_glossary_stands_in_the_lesson_that_introduces_it():
    missing, terms = [], glossary()
    assert len(terms) >= 40
    for term, notebook in terms:
        text = " ".join("\n".join(cells(ROOT / "notebooks" / notebook, "markdown")).lower().split())
        plain = re.sub(r"[`*$]", "", re.sub(r"\(.*?\)", "", term)).lower()
        if not any(part.strip() in text for part in re.split(r"[,/;]| or ", plain) if part.strip()):
            missing.append((term, notebook))
    assert not missing
