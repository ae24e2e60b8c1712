"""`make accept-gpu`: the whole course on a node with several GPUs, and the file that tells of it.

Its owner runs it and sends the file back; nothing in it names a person or a machine. No lesson
derives it.
"""
