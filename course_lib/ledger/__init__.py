"""What was sent: every collective of this rank, who asked for it, and its bytes three ways.

`forms.py` is the formula sheet, `wire.py` counts what left, `calls.py` and `origin.py` read one
call, `in_flight.py` times it, `book.py` answers, `recorder.py` books. Lesson 01.
"""

from course_lib.ledger.book import Book, Record, Span
from course_lib.ledger.recorder import ledger

__all__ = ["Book", "Record", "Span", "ledger"]
