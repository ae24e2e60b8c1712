"""The rows of the table, in the order of the pages: a file for each part of a page.

Only rows live here; what makes a release speak is in `probes`. Lesson 13.
"""
