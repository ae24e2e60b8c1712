"""The probes: each makes the installed release say what has changed since the pages were written.

No probe needs a network or an accelerator, and none leaves anything behind. Lesson 13.
"""
