"""DeepSpeed's configuration: what its keys mean, what is wrong with a file, what a rung of the
ladder writes there.
Lesson 13.
"""
