"""Figures: one function per kind of picture, drawn from what was executed, one colour per rank.

`who_holds.py` draws tensors' blocks, `timeline.py` a ledger's spans, `bandwidth.py` times by size.
matplotlib is loaded when a picture is drawn and not before. From lesson 01 on.
"""

from course_lib.figures.bandwidth import Fit, bandwidth, fit
from course_lib.figures.colours import Picture
from course_lib.figures.timeline import timeline
from course_lib.figures.who_holds import who_holds

__all__ = ["Fit", "Picture", "bandwidth", "fit", "timeline", "who_holds"]
