"""Launchers, each run for real on this host: who starts the ranks, and who tells them who they are.

Lesson 13.
"""
