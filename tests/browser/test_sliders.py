"""Pictures that a reader moves, in a real JupyterLab: a slider draws another picture."""

from __future__ import annotations

import nbformat
import pytest

from course_lib.classroom.notebooks import normalise

CELLS = ("from course_lib.classroom import sliders", "sliders.stages()", "sliders.ring(3)")


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
