"""A terminal that is not UTF-8: signs that it cannot write become ASCII ones, and nothing fails.

Signs of a table become one character, so that its columns stay in line. No lesson derives it.
"""

from __future__ import annotations

import codecs
import unicodedata
from typing import TextIO

HANDLER = "course-in-ascii"
PLAIN = {
    "–": "-", "—": "-", "−": "-", "→": ">", "←": "<", "✓": "+", "✗": "x", "○": "o", "×": "x",
    "·": "*", "“": "'", "”": "'", "‘": "'", "’": "'", "≥": ">=", "≤": "<=", "≈": "~", "√": "sqrt ",
}  # fmt: skip


def readable(stream: TextIO) -> None:
    """Let a stream write in ASCII the signs that its encoding lacks. A notebook's lacks none."""
    if hasattr(stream, "reconfigure"):
        codecs.register_error(HANDLER, _replaced)
        stream.reconfigure(errors=HANDLER)


def in_ascii(text: str) -> str:
    """Every sign by one or more ASCII characters: → by >, Ψ by Psi, 10⁻⁸ by 10^-8, ö by o."""
    written, raised = [], False
    for sign in text:
        decomposed = unicodedata.decomposition(sign)
        above = decomposed.startswith("<super>")
        name = unicodedata.name(sign, "")
        if sign in PLAIN:
            plain = PLAIN[sign]
        elif name.startswith("GREEK"):
            letter = name.rpartition(" ")[2].lower()
            plain = letter.capitalize() if "CAPITAL" in name else letter
        else:
            plain = unicodedata.normalize("NFKD", sign).replace("−", "-")
            plain = plain.encode("ascii", "ignore").decode() or "?"
        written.append("^" * (above and not raised) + plain)
        raised = above
    return "".join(written)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return in_ascii(error.object[error.start : error.end]), error.end
