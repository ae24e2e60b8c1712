"""The program that trains: `python -m course_lib.train --help`, or `course train` on this host.

Read `program.py` first (mesh, model, optimizer, engine, loop). Then, in reading order: options,
record, checks, memory_check, model, text, curve, step_meter, flops, report, stop, lock, journal,
rendezvous, host_agreement, entry, launch. Lesson 12.
"""
