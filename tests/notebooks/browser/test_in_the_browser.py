"""A lesson in a real browser, as somebody meets it who has never been here, links, sliders."""

from __future__ import annotations

import re

import nbformat
import pytest

from course_classroom.cli.base import ROOT
from course_classroom.notebook.notebooks import normalise
from course_classroom.progress.log import Progress
from tests.notebooks.browser.page import NotebookPage

LESSON = "notebooks/00_start_here.ipynb"


def test_the_first_lesson_runs_and_shows_its_figures(open_notebook, lab):
    with open_notebook(LESSON) as page:
        page.run_all()
        code = page.code()
        meant_to_fail = [cell for cell in code if "raises-exception" in cell.tags]
        assert meant_to_fail and all(cell.errors for cell in meant_to_fail)
        assert [cell.source for cell in code if cell.errors and cell not in meant_to_fail] == []
        figures = [cell for cell in code if cell.shows("image/png")]
        assert len(figures) >= 3
        for cell in figures:
            look_at_figure(page, cell)
        printed = page.below(page.find("latency")).locator(".jp-RenderedText pre")
        assert printed.evaluate("one => getComputedStyle(one).wordBreak") == "normal"
        name = page.tab.locator(".jp-DirListing-item", has_text="appendix_b_honest_measuring")
        wide = "[...one.querySelectorAll('*')].some(each => each.scrollWidth > each.clientWidth)"
        assert not name.evaluate(f"one => {wide}"), "the list of files is too narrow for the name"
        assert "Lesson 00" in page.below(page.find("my_progress()")).inner_text()
    log = Progress(lab.work).read()
    assert [event["outcome"] for event in log.of("check")] == ["not attempted", "wrong"]
    assert len(log.of("hint")) == 1


def look_at_figure(page: NotebookPage, cell) -> None:
    """It is drawn, and its words can be opened by those who do not see it."""
    below = page.below(cell)
    image = below.locator(".jp-RenderedImage img")  # as the style of dark themes names it
    image.wait_for()
    assert image.evaluate("one => one.complete && one.naturalWidth") > 100
    words = below.locator("details")
    words.locator("summary").click()
    assert ("rank 0" in words.inner_text()) or ("course_map(" in cell.source)


def test_the_library_is_there_to_be_read_whatever_is_typed(visit):
    library = ROOT / "course_lib"
    before = (library / "ranks.py").read_text()
    with visit("course_lib/ranks.py") as tab:
        editor = tab.locator(".jp-FileEditor .cm-content")
        editor.get_by_text("from __future__ import annotations").click()
        tab.get_by_text("file is read-only").wait_for()
        tab.keyboard.type("a key pressed by accident")
        tab.keyboard.press("Control+S")
        tab.click(".jp-Notification-Status")  # where what was said stays to be read
        center = tab.locator(".jp-Notification-Center")
        center.get_by_text("course_lib/ranks.py is read-only").wait_for()
    assert (library / "ranks.py").read_text() == before
    assert not (library / ".ipynb_checkpoints").exists()


def test_a_dark_theme_dims_figures_and_a_light_one_shows_them_as_they_are(visit):
    change = "theme => { jupyterapp.commands.execute('apputils:change-theme', {theme}); }"
    look = """() => {
        const card = document.createElement('div');
        card.className = 'jp-RenderedImage';
        card.append(document.createElement('img'));
        document.body.append(card);
        return getComputedStyle(card.firstChild).filter;
    }"""
    with visit("notebooks") as tab:
        tab.wait_for_selector("#jp-MainMenu")
        for theme, light, style in (
            ("Dark", "false", "brightness(0.8)"),
            ("Light", "true", "none"),
        ):
            tab.evaluate(change, f"JupyterLab {theme}")
            tab.wait_for_function(f"() => document.body.dataset.jpThemeLight === '{light}'")
            assert tab.evaluate(look) == style


IN_SIGHT = """([path, id]) => {
    const panel = [...jupyterapp.shell.widgets('main')].find(
        one => one.context && one.context.path === path && one.content.model);
    const cell = panel && panel.content.widgets.find(one => one.model.id === id);
    if (!cell || !cell.node.isConnected) return false;
    const {top, bottom} = cell.node.getBoundingClientRect();
    return top < window.innerHeight && bottom > 0;
}"""


@pytest.mark.slow
def test_an_exercise_leads_to_the_section_that_it_rests_on(open_notebook):
    with open_notebook("exercises/02_one_product/cut_gradients.ipynb") as page:
        source = page.cells()[0].source
        link = re.search(r"rests on \[(.+?)\]\(\.\./\.\./(\S+)#cell-id=([\w-]+)\)", source)
        page.tab.locator("a", has_text=link[1]).first.click()
        page.tab.wait_for_function(IN_SIGHT, arg=[link[2], link[3]])


CELLS = ("from course_classroom import sliders", "sliders.stages()", "sliders.ring(3)")


@pytest.mark.slow
def test_the_sliders_of_stages_and_ring_draw_other_pictures(open_notebook, lab, tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, CELLS)])
    nbformat.write(normalise(notebook), lab.work / "sliders.ipynb")
    with open_notebook("sliders.ipynb") as page:
        page.run_all()
        for call, key, said in (
            ("stages", "ArrowRight", "13 billion parameters"),
            ("ring", "ArrowRight", "reduce-scatter 1: 0 sends chunk 0 to 1"),
        ):
            below = page.below(page.find(f"sliders.{call}("))
            image = below.locator("img").first
            image.wait_for()
            assert below.locator("img").count() == 1  # the widget in the still picture's place
            before = image.get_attribute("src")
            handle = below.locator(".noUi-handle, .slider input, [role=slider]").first
            handle.focus()
            page.tab.keyboard.press(key)
            words = below.locator("details").first
            page.tab.wait_for_function("([a, b]) => a.src !== b",
                                       arg=[image.element_handle(), before])  # fmt: skip
            assert image.evaluate("one => one.complete && one.naturalWidth") > 100
            words.locator("summary").click()
            assert said in words.inner_text()
            page.tab.screenshot(path=tmp_path / f"{call}.png")
