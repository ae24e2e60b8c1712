"""Leases: who holds which GPUs, cores and memory of a node that several notebooks share.

There is no daemon: a lease is a lock on a file, and the kernel of the operating system takes it
back when the process ends, however that was. Lesson 00 shows what a notebook got; docs/ says more.
"""

from __future__ import annotations

from course_classroom.leases.lease import Lease, node_report, take

__all__ = ["Lease", "node_report", "take"]
