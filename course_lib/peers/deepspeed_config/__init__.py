"""DeepSpeed's configuration: the meaning of its keys, the errors in a file, and a rung of the
ladder as a file.
Lesson 13.
"""
