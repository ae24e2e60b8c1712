"""Interactive pictures: the four stages of lesson 09 and the ring of lesson 01.

Each shows a picture and, in an open notebook with ipywidgets, sliders above it. A static page, a
terminal or a notebook without ipywidgets shows only the initial picture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from course_classroom.figures.colours import Picture
from course_classroom.figures.ring_steps import ring_frames, ring_steps
from course_classroom.figures.stage_bars import PRECISIONS, counted, stage_bars

if TYPE_CHECKING:
    from ipywidgets import Widget

WIDGET = "application/vnd.jupyter.widget-view+json"
MODELS = (1.2e8, 3.5e8, 1.3e9, 2.7e9, 6.7e9, 7.5e9, 1.3e10, 3e10, 7e10, 1.75e11, 5.3e11, 1e12)
RANKS = tuple(1 << power for power in range(11))  # 1 to 1,024
MISSING = "The picture has sliders if ipywidgets is installed: pip install ipywidgets"


@dataclass(frozen=True)
class Choice:
    """A slider: its name, its options, and a function that formats them."""

    name: str
    options: tuple
    first: object
    write: Callable[[object], str] = str
    slides: bool = True  # otherwise the choices are buttons


@dataclass(frozen=True)
class Sliders:
    """A picture with sliders; `paint(**chosen)` draws it, and static pages show `still`."""

    choices: Mapping[str, Choice]
    paint: Callable[..., Picture]
    still: Picture

    def first(self) -> dict[str, object]:
        return {key: choice.first for key, choice in self.choices.items()}

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if not _is_notebook():
            self.still._ipython_display_()
            return
        try:
            box = self.widget()
        except ImportError:
            self.still._ipython_display_()
            print(MISSING)
            return
        view = {"version_major": 2, "version_minor": 0, "model_id": box.model_id}
        data = {WIDGET: view, "image/png": self.still.png, "text/plain": self.still.alt}
        about = {"image/png": {"alt": self.still.alt, "width": self.still.width}}
        display(data, raw=True, metadata=about)
        words = _in_words(self.still, "The initial figure in words")
        display({"text/html": words, "text/plain": self.still.alt}, raw=True)

    def widget(self) -> Widget:
        """Return the sliders with the picture below them; requires ipywidgets."""
        import ipywidgets

        picture = self.paint(**self.first())
        image = ipywidgets.Image(value=picture.png, format="png", width=picture.width)
        words = ipywidgets.HTML(value=_in_words(picture))
        handles = {}
        for key, choice in self.choices.items():
            options = [(choice.write(option), option) for option in choice.options]
            kind = ipywidgets.SelectionSlider if choice.slides else ipywidgets.ToggleButtons
            style = {"description_width": "7em"}
            more = {"continuous_update": False} if choice.slides else {}
            if not choice.slides:
                style["button_width"] = "auto"  # otherwise a long name is cut off
            look = {"description": choice.name, "style": style, "layout": {"width": "38em"}}
            handles[key] = kind(options=options, value=choice.first, **look, **more)

        def again(_change) -> None:
            drawn = self.paint(**{key: handle.value for key, handle in handles.items()})
            image.value, image.width = drawn.png, str(drawn.width)
            words.value = _in_words(drawn)

        for handle in handles.values():
            handle.observe(again, names="value")
        return ipywidgets.VBox([*handles.values(), image, words])


def stages(
    parameters: float = 7.5e9, ranks: int = 64, precision: str = "bf16", optimizer: str = "adamw"
) -> Sliders:
    """Show a rank's memory at stages 0 to 3, with sliders for Ψ, N, precision and optimizer.

    The initial picture is figure 1 of the ZeRO paper.
    """
    models = tuple(sorted({*MODELS, parameters}))
    return Sliders(
        {
            "parameters": Choice("parameters Ψ", models, parameters, counted),
            "ranks": Choice("ranks N", tuple(sorted({*RANKS, ranks})), ranks),
            "precision": Choice("precision", tuple(PRECISIONS), precision, slides=False),
            "optimizer": Choice("optimizer", ("adamw", "momentum", "sgd"), optimizer, slides=False),
        },
        stage_bars,
        stage_bars(parameters, ranks, precision, optimizer),
    )


def ring(n: int = 3) -> Sliders:
    """Show the ring all-reduce of n ranks with a slider over its steps, or a still of all steps."""
    frames = ring_frames(n)

    def named(step: int) -> str:
        return frames[step].name if step == 0 else f"{step}: {frames[step].name}"

    steps = tuple(range(len(frames)))
    return Sliders(
        {"step": Choice("step", steps, 0, named)},
        lambda step: ring_steps(n, step=step),
        ring_steps(n),
    )


def _is_notebook() -> bool:
    """Return True if this process is a notebook kernel, because a terminal cannot show sliders."""
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def _in_words(picture: Picture, called: str = "The current figure in words") -> str:
    return f"<details><summary>{called}</summary>{escape(picture.alt)}</details>"
