"""From a fresh clone to a working environment, with the standard library only.

One file per question: which Python, which torch, which installer errors, the state of .venv, and
the work of a make target. No lesson derives it; `python3 -m tools.bootstrap help` lists it.
"""
