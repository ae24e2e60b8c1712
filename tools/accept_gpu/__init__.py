"""`make accept-gpu`: the full course on a node with several GPUs, and a report file.

The node's owner runs it and returns the file, which names no person or machine. No lesson derives
it.
"""
