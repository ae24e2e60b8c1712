"""This rank's traffic: every collective, its origin, and its bytes, counted in three ways.

`forms.py` has the formulas, `wire.py` counts sent bytes, `calls.py` and `origin.py` describe a
call, `in_flight.py` times it, and `recorder.py` fills the book, which `book.py` defines. Lesson 01.
"""

from course_lib.ledger.book import Book, Record, Span
from course_lib.ledger.recorder import ledger

__all__ = ["Book", "Record", "Span", "ledger"]
