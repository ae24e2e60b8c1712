"""Figures: one function per kind of picture, drawn from what was executed, one colour per rank.

`ranks_map.py` draws where ranks are, `who_holds.py` whose numbers a chunk sums, `blocks.py` which
rank holds which block, `head_map.py` which heads, `schedule.py` a block's parts and their messages,
`wirings.py` several wirings of the same layers, `timeline.py` a ledger's spans, `bandwidth.py`
times by size. matplotlib is loaded at the first picture. From lesson 00 on.
"""

from course_lib.figures.bandwidth import Fit, bandwidth, fit
from course_lib.figures.blocks import blocks
from course_lib.figures.colours import Picture
from course_lib.figures.head_map import head_map
from course_lib.figures.ranks_map import ranks_map
from course_lib.figures.schedule import follow, schedule
from course_lib.figures.timeline import timeline
from course_lib.figures.who_holds import who_holds
from course_lib.figures.wirings import Part, wirings

__all__ = [
    "Fit", "Part", "Picture", "bandwidth", "blocks", "fit", "follow", "head_map", "ranks_map",
    "schedule", "timeline", "who_holds", "wirings",
]  # fmt: skip
