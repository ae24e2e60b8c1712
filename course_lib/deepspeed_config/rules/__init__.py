"""What can be wrong with a config, a family of rules a file; `check.py` runs them all.

In the order of reading: unknown, values, deprecated, sizes, needs, effects, conflicts, batch,
optimizers, autos, trainers. Lesson 13.
"""
