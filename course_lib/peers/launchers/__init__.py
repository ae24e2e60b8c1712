"""Launchers, each run for real on this host: who starts the ranks, and who tells them who they are.

In the order of reading: hostfile, filters, slurm, commands, as_rank, run, programs, table,
failures. Lesson 13.
"""
