"""What the cells of a lesson need beside their thought, a file a lesson: data, loops, clocks.

A cell keeps what it teaches and the assert that holds it; how a step is run, repeated or timed
stands here. From lesson 03 on.
"""
