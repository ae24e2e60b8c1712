"""What can be wrong with a config, a family of rules a file; `check.py` runs them all.

In the order of reading: unknown, values, sizes, effects, conflicts, batch, optimizers, autos.
Lesson 13.
"""
