"""Several hosts: two of them on one machine with a link that can be cut, and what ranks say then.

In the order of reading: two_hosts, starter, on_hosts.
Lesson 15.
"""
