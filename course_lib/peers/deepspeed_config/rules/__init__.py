"""The possible errors of a config, one family of rules per file; `check.py` runs them all.

In reading order: unknown, values, sizes, effects, conflicts, batch, optimizers, autos. Lesson 13.
"""
