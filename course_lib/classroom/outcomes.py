"""The four outcomes of a check, each with a sign: what a card, a table and a terminal show alike.

Apart from the checks themselves, so that a command that shows progress need not load them. From
lesson 00 on.
"""

from __future__ import annotations

NOT_ATTEMPTED, WRONG, RIGHT, NOT_JUDGED = "not attempted", "wrong", "right", "not judged"
MARKS = {NOT_ATTEMPTED: "○", WRONG: "✗", RIGHT: "✓", NOT_JUDGED: "–"}  # never by colour alone
