"""The pages beside the lessons: their names, numbers, links and shown output are true."""

from __future__ import annotations

import importlib.util
import json
import re
from functools import cache
from pathlib import Path

import pytest

from course_lib.estimate.time.presets import preset
from tests.support.commands import python
from tools.accept_gpu import one_gpu
from tools.accept_gpu.sizes import BY_MEMORY, TINY
from tools.accept_gpu.training import LAYOUTS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = ("glossary.md", "which.md", "links.md")


def text_of(page: str) -> str:
    return (DOCS / page).read_text()


def tables(text: str) -> list[list[list[str]]]:
    """Every markdown table: its header and its rows, cell by cell."""
    found, rows = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if not all(set(cell) <= {"-", ":"} for cell in cells):
                rows.append(cells)
        elif rows:
            found.append(rows)
            rows = []
    return found


def table(page: str, heading: str) -> list[dict[str, str]]:
    (head, *rows) = next(rows for rows in tables(text_of(page)) if heading in rows[0])
    return [dict(zip(head, row, strict=True)) for row in rows]


def shown(value: float) -> float:
    """Two digits, as the pages have them."""
    return float(f"{value:.1e}")


# ---- all three ----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_every_link_in_the_course_leads_to_a_file_that_is_there(page):
    links = re.findall(r"\]\(([^)\s]*)\)", text_of(page))
    assert len(links) >= 10
    for link in (one for one in links if "://" not in one):
        path, _, anchor = link.partition("#")
        file = (DOCS / path).resolve()
        assert file.is_file(), link
        if anchor:
            assert anchor in anchors(file), f"{link}: no such heading"


def anchors(file: Path) -> set[str]:
    """A notebook's or a page's headings, as JupyterLab addresses them: a space becomes a dash."""
    text = file.read_text()
    if file.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return {m.replace(" ", "-") for m in re.findall(r"^#+ (.+?)\s*$", text, re.M)}


@pytest.mark.parametrize("page", [*PAGES, "gpu.md", "design.md"])
def test_a_table_has_rows_of_one_width_and_no_bar_inside_a_formula(page):
    for head, *rows in tables(text_of(page)):
        assert all(len(row) == len(head) for row in rows), head


@pytest.mark.parametrize("page", PAGES)
def test_each_page_names_the_other_two(page):
    assert {f"({other})" for other in PAGES if other != page} <= set(
        re.findall(r"\(\w+\.md\)", text_of(page))
    )


# ---- design -------------------------------------------------------------------------------------


def test_what_the_design_page_quotes_is_in_the_file_that_it_names():
    quoted = re.findall(
        r"`(course_lib/\S+\.py)`[^`]*?```python\n(.*?)```", text_of("design.md"), re.S
    )
    assert len(quoted) == 4
    for path, code in quoted:
        assert code in (ROOT / path).read_text(), path


def test_the_ten_files_have_as_many_lines_as_the_design_page_says():
    page = (ROOT / "course_lib" / "README.md").read_text()
    ten = re.findall(r"^\| `(\S+\.py)` \|", page.split("## The map")[0], re.M)
    lines = sum(len((ROOT / "course_lib" / path).read_text().splitlines()) for path in ten)
    assert len(ten) == 10 and lines <= 1700
    assert f"The ten files together have {lines:,} lines" in text_of("design.md")


# ---- glossary -----------------------------------------------------------------------------------

SOURCES = {
    "in this course": ("course_lib course_classroom course_lessons", ("",)),
    "DTensor, torch": ("torch", ("distributed", "utils/checkpoint.py", "nn/parallel", "amp",
                                 "_inductor/config.py", "_tensor.py", "_C/__init__.pyi.in")),
    "Megatron-LM": ("megatron", ("core",)),
    "DeepSpeed": ("deepspeed", ("",)),
    "FSDP2": ("torch", ("distributed",)),
}  # fmt: skip
# Of Python itself, of Transformers, or written out as a value or a shape.
ELSEWHERE = {"tensor", "per_device_train_batch_size", "pin_memory", "stage", "True", "False"}


@cache
def words_in(package: str, parts: tuple[str, ...]) -> frozenset[str]:
    """Every identifier in the sources of an installed package."""
    found = importlib.util.find_spec(package)
    if found is None:
        pytest.skip(f"{package} is not installed here")
    home = Path(next(iter(found.submodule_search_locations)))
    words: set[str] = set()
    for part in parts:
        place = home / part
        for file in [place] if place.is_file() else place.rglob("*.py"):
            words.update(re.findall(r"\w+", file.read_text(errors="replace")))
    return frozenset(words)


def names_in(cell: str) -> set[str]:
    """The identifiers of three letters and more in a cell's code, without what is in quotes."""
    code = " ".join(re.findall(r"`([^`]*)`", cell))
    if "@" in code or "{" in code or "[b" in code:  # the notation
        return set()
    return set(re.findall(r"[A-Za-z_]\w{2,}", re.sub(r'"[^"]*"', "", code)))


def test_the_glossary_has_its_rows():
    rows = [row for rows in tables(text_of("glossary.md")) if len(rows[0]) == 8 for row in rows[1:]]
    assert 40 <= len(rows) <= 60
    assert all("../notebooks/" in row[-1] for row in rows)
    text = text_of("glossary.md")
    for terms in (
        "replicated; sharded; partial sum; sequence parallelism; prefetch; live parameters",
        "gradient accumulation; micro-batch; master weights; loss scaling; vocabulary padding",
        "latency; bandwidth; bus bandwidth; world size; process group; HSDP; ZeRO++; async-TP",
        "Ulysses; ring attention; activation checkpointing; jax-ml.github.io/scaling-book",
    ):
        assert [one for one in terms.split("; ") if one not in text] == []


@pytest.mark.parametrize("column", SOURCES)
def test_every_name_of_the_glossary_is_one_of_the_library(column):
    packages, parts = SOURCES[column]
    known = ELSEWHERE.union(*(words_in(package, parts) for package in packages.split()))
    missing = {}
    for head, *rows in tables(text_of("glossary.md")):
        if column in head:
            for row in rows:
                unknown = {w for w in names_in(row[head.index(column)]) if not is_known(w, known)}
                if unknown:
                    missing[row[0]] = unknown
    assert not missing


def is_known(word: str, known: frozenset[str]) -> bool:
    """Itself, or, where the glossary has a gap (`get_*_rank`), its ends."""
    return word in known or word.endswith("_") or word.startswith("_")


# ---- links --------------------------------------------------------------------------------------


def test_the_time_of_each_link_follows_from_its_rate():
    sent = 4 * (8 * 1024) * (8 * 1024) * 7 / 8 * 2  # 4Φ(t−1)/t elements of 2 bytes
    assert "470\\ \\text{MB}" in text_of("links.md") and round(sent / 1e6) == 470
    rows = table("links.md", "4Φ takes, ms")
    assert len(rows) >= 12
    for row in rows:
        assert float(row["4Φ takes, ms"]) == shown(sent / float(row["GB/s, each way"]) / 1e6), row
        bits = re.search(r"(\d+) Gb/s", row["link"] + row["where"])
        if bits:
            assert float(row["GB/s, each way"]) == float(bits[1]) / 8, row
        both = re.search(r"([\d,]+) GB/s both ways", row["source"])
        if both and row["link"].startswith("NVLink"):
            assert float(row["GB/s, each way"]) == float(both[1].replace(",", "")) / 2, row
    named = {row["link"]: float(row["GB/s, each way"]) for row in rows}
    assert named["NVLink 2"] * 1e9 == preset("dgx-2h").inside.bandwidth
    assert named["NVLink 3"] * 1e9 == preset("dgx-a100").inside.bandwidth
    assert named["NVLink 4"] * 1e9 == preset("hgx-h100").inside.bandwidth
    assert 8 * named["InfiniBand NDR"] * 1e9 == preset("hgx-h100").across.bandwidth


def test_the_time_of_each_memory_follows_from_its_rate():
    rows = table("links.md", "bytes per parameter")
    for row in rows:
        took = float(row["bytes per parameter"]) * 1e9 / (float(row["GB/s"]) * 1e9)
        assert float(row["10⁹ parameters, ms"]) == shown(took * 1e3), row
    named = {row["memory or link"]: float(row["GB/s"]) for row in rows}
    for name, machine in (("HBM3, H100 SXM", "hgx-h100"), ("HBM3e, H200", "hgx-h200")):
        assert named[name] * 1e9 == preset(machine).rates[0].moved


def test_what_the_messages_are_compared_with():
    text, rate = text_of("links.md"), preset("hgx-h100").rates[0].products(8192)
    flops = 48 * 8192 * 8192**2 / 8
    assert f"{flops:.1e}" == "3.3e+12" and "3.3 · 10¹² on each rank" in text
    assert f"{rate / 1e12:.0f} TFLOP/s" in text and f"{flops / rate * 1e3:.1f} ms" in text
    sent = 4 * 8192 * 8192 * 7 / 8 * 2
    for link, words in ((450e9, "add {} %. Over one"), (50e9, "add {} %. This")):
        assert words.format(round(100 * (sent / link) / (flops / rate))) in text


# ---- gpu ----------------------------------------------------------------------------------------


def test_the_stages_on_one_gpu_are_those_of_the_command():
    rows = [tuple(row.values())[:3] for row in table("gpu.md", "seconds at most")]
    every = one_gpu.stages(TINY, True, 2)
    limits = [f"{one.limit:g}" if one.limit < one_gpu.REST else "the rest" for one in every]
    assert rows == [(one.name, one.group, limit) for one, limit in zip(every, limits, strict=True)]
    text = text_of("gpu.md")
    *lessons, last = one_gpu.LESSONS
    assert f"lessons {', '.join(lessons)} and {last} on" in text
    assert f"at most {one_gpu.SECONDS:g} seconds" in text
    assert f"{len(LAYOUTS)} combinations" in text and f"{len(LAYOUTS)} layouts" in text
    memory = [f"{sizes.free >> 30}" for sizes in BY_MEMORY]
    assert f"({', '.join(memory[:-1])} or {memory[-1]} GiB" in text


# ---- which --------------------------------------------------------------------------------------


def test_the_numbers_that_decide():
    text, rate = text_of("which.md"), preset("hgx-h100").rates[0].products(8192)
    for link, name in ((450e9, "NVLink 4"), (50e9, "InfiniBand NDR")):
        share = 2 * 7 / (9 * 8192) * rate / link
        assert (
            f"{share:.0%}".replace("%", " %")
            + (f" to its products' time on {name}" if link > 1e11 else f" on {name}")
            in text
        )
    assert f"needs {round(rate / 50e9, -2):,.0f} tokens" in text
    assert f"with 450 GB/s, {rate / 450e9:.0f}" in text


# ---- for contributors ---------------------------------------------------------------------------


def test_the_example_of_a_test_runs(tmp_path):
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "test_example.py").write_text(code)
    done = python("-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", tmp_path)
    assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("package", ["course_lib", "course_classroom", "course_lessons"])
def test_each_file_that_the_readme_of_a_package_names_is_there(package):
    page = (ROOT / package / "README.md").read_text()
    names = [name for name in re.findall(r"`([\w/]+(?:/|\.py|\.md))`", page) if "NAME" not in name]
    assert len(names) >= 3
    for name in names:
        places = (ROOT / name, ROOT / package / name)
        assert any(p.exists() for p in places) or any((ROOT / package).rglob(name)), name
