"""Additions to the course's two axes: other axes, and weights in few bits. Lesson 15."""
