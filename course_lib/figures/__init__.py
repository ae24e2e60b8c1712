"""Figures: one function per kind of picture, drawn from what was executed, one colour per rank.

`course_map.py` draws where a lesson is, `statement.py` a statement of the notation and the
collective that it needs, `f_and_g.py` the two conjugate operations, `parameter_life.py` a stage-3
parameter in one step, `ranks_map.py` where ranks are, `who_holds.py` whose numbers a chunk sums,
`blocks.py` which rank holds which block, `head_map.py` which heads, `schedule.py` a block's parts
and their messages, `wirings.py` several wirings of the same layers, `timeline.py` a ledger's
spans, `bandwidth.py` times by size, `word_rows.py` who finds which word, `bars.py` bytes beside
bytes, `by_bits.py` errors against bits, `mesh_rows.py` who has seen which rows, `activations.py`
what a block keeps, `run_summary.py` a training run, `pipeline_steps.py` the steps of pipeline
stages, `ring_steps.py` a ring step by step, `stage_bars.py` the stages of ZeRO. matplotlib is
loaded at the first picture. From lesson 00 on.
"""

from course_lib.figures.activations import activations, keeping
from course_lib.figures.bandwidth import Fit, bandwidth, fit
from course_lib.figures.bars import bars, stacked_bars
from course_lib.figures.blocks import blocks
from course_lib.figures.by_bits import by_bits
from course_lib.figures.colours import Picture
from course_lib.figures.course_map import course_map
from course_lib.figures.f_and_g import f_and_g
from course_lib.figures.head_map import head_map
from course_lib.figures.mesh_rows import mesh_rows
from course_lib.figures.parameter_life import parameter_life
from course_lib.figures.ranks_map import ranks_map
from course_lib.figures.ring_steps import ring_steps
from course_lib.figures.schedule import follow, schedule
from course_lib.figures.stage_bars import stage_bars
from course_lib.figures.statement import statement
from course_lib.figures.timeline import timeline
from course_lib.figures.who_holds import who_holds
from course_lib.figures.wirings import Part, wirings
from course_lib.figures.word_rows import word_rows

__all__ = [
    "Fit", "Part", "Picture", "activations", "bandwidth", "bars", "blocks", "by_bits",
    "course_map", "f_and_g", "fit", "follow", "head_map", "keeping", "mesh_rows",
    "parameter_life", "ranks_map", "ring_steps", "schedule", "stacked_bars", "stage_bars",
    "statement", "timeline", "who_holds", "wirings", "word_rows",
]  # fmt: skip
