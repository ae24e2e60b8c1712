"""The node's doctor: what this machine has, what it lacks for the course, and the remedy for each.

One file a part of the machine; `examine.py` holds the list. Lesson 00 points to `course doctor`.
"""
