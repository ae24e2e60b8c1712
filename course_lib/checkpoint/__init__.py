"""Checkpoints that describe logical tensors, to and from others: DeepSpeed's files, weights out.

In the order of reading: deepspeed_files; sources, weights, units. Lesson 14 derives it, and what
trains saves by it. Lesson 12.
"""
