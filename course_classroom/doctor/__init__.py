"""The doctor: checks of this machine, and remedies for what is missing.

Each part of the machine has a module; `examine.py` lists them. Lesson 00 refers to `course doctor`.
"""
