"""Leases: the GPUs, cores and memory of a shared node that each notebook holds.

There is no daemon. A lease is a lock on a file, which the operating system releases when the
process ends for any reason. Lesson 00 shows a notebook's share, and docs/ has the details.
"""

from __future__ import annotations

from course_classroom.leases.lease import Lease, node_report, take

__all__ = ["Lease", "node_report", "take"]
