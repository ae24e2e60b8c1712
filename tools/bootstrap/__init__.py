"""From a fresh clone to a working environment, with the standard library alone.

One file a question: which Python, which torch, what pip said, is .venv still the right one,
what a make target runs. No lesson derives it; `python3 -m tools.bootstrap help` lists it.
"""
