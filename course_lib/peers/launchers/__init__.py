"""Launchers, all run with real processes on this host: how ranks start and learn their identity.

In reading order: hostfile, filters, slurm, commands, as_rank, run, programs, table, failures.
Lesson 13.
"""
