"""Figures drawn from executed code: one function per kind, one colour per rank.

Each file draws one kind and names the lesson that shows it. `colours.py` has the styles of ranks
and methods, and `shapes.py` the shared shapes. The first picture imports matplotlib. From lesson 00
on.
"""

from course_classroom.figures.activations import activations, keeping
from course_classroom.figures.bandwidth import Fit, bandwidth, fit
from course_classroom.figures.bars import bars, stacked_bars
from course_classroom.figures.blocks import blocks
from course_classroom.figures.by_bits import by_bits
from course_classroom.figures.colours import Picture
from course_classroom.figures.course_map import course_map
from course_classroom.figures.f_and_g import f_and_g
from course_classroom.figures.head_map import head_map
from course_classroom.figures.mesh_rows import mesh_rows
from course_classroom.figures.parameter_life import parameter_life
from course_classroom.figures.ranks_map import ranks_map
from course_classroom.figures.ring_steps import ring_steps
from course_classroom.figures.schedule import follow, schedule
from course_classroom.figures.stage_bars import stage_bars
from course_classroom.figures.statement import statement
from course_classroom.figures.timeline import timeline
from course_classroom.figures.who_holds import who_holds
from course_classroom.figures.wirings import Part, wirings
from course_classroom.figures.word_rows import word_rows

__all__ = ["Fit", "Part", "Picture", "activations", "bandwidth", "bars", "blocks", "by_bits"]
__all__ += ["course_map", "f_and_g", "fit", "follow", "head_map", "keeping", "mesh_rows"]
__all__ += ["parameter_life", "ranks_map", "ring_steps", "schedule", "stacked_bars", "stage_bars"]
__all__ += ["statement", "timeline", "who_holds", "wirings", "word_rows"]
