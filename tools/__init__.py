"""Tools for the repository itself: its environment and its pins.

None of them is part of the library; `make` calls them.
No lesson derives it.
"""
