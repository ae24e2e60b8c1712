"""What works on the house itself: its environment and its pins.

Nothing here is part of the library; `make` calls it.
No lesson derives it.
"""
