"""Figures: one function per kind of picture, drawn from what was executed, one colour per rank.

`ranks_map.py` draws where ranks are, `who_holds.py` tensors' blocks, `timeline.py` a ledger's
spans, `bandwidth.py` times by size. matplotlib is loaded at the first picture. From lesson 00 on.
"""

from course_lib.figures.bandwidth import Fit, bandwidth, fit
from course_lib.figures.colours import Picture
from course_lib.figures.ranks_map import ranks_map
from course_lib.figures.timeline import timeline
from course_lib.figures.who_holds import who_holds

__all__ = ["Fit", "Picture", "bandwidth", "fit", "ranks_map", "timeline", "who_holds"]
