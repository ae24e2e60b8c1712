"""What pip says, in fewer words: its progress condensed, its failures named with a remedy.

Pure functions of pip's output, so that tests can hold them against real outputs of pip.
No lesson derives it.
"""

from __future__ import annotations

import re
from typing import Iterable

from .say import Refusal

# In order of precedence. A full disk makes pip complain of other things too; a lost connection may
# have come back before something else failed, but explains versions that were not found.
_FAILURES = (
    (
        r"No space left on device|Errno 28\b|Disk quota exceeded|Errno 122\b",
        "The disk (or your quota) ran full while installing.",
        "free some space, or point TMPDIR (where pip unpacks) and PIP_CACHE_DIR (what it keeps) "
        "to a folder with room, then run the same command again",
    ),
    (
        r"Read-only file system|Errno 30\b",
        "This folder is on a read-only file system.",
        "clone the course to a folder you can write to, or set COURSE_VENV to an environment "
        "that somebody has made for you",
    ),
    (
        r"Permission denied|Errno 13\b",
        "A file or folder may not be read or written by you{}.",
        "if an earlier run was made as root, remove .venv as root; or "
        "clone the course to a folder of yours; or set COURSE_VENV to an environment that "
        "somebody has made for you",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError|\bSSLError\b",
        "The package index was reached, but its certificate was not accepted.",
        "behind a company proxy: PIP_CERT=/path/to/its-ca.pem; also check this machine's clock",
    ),
    (
        r"THESE PACKAGES DO NOT MATCH THE HASHES",
        "A downloaded package was not what the index promised.",
        "run the same command again; if it happens twice, clear pip's cache (pip cache purge) "
        "and suspect the proxy, the mirror or, where HASHES names one, a file of hashes that was "
        "made for another kind of machine",
    ),
    (
        r"Hashes are required in --require-hashes mode",
        "A package has no hash in the file that HASHES names.",
        "pip's lines above name it; python -m tools.hashes FOLDER_OF_PACKAGES FILE writes a whole "
        "file",
    ),
    (
        r"fatal error: Python\.h|error: command '.*(gcc|cc|g\+\+|clang).*' failed|"
        r"unable to execute '.*(gcc|cc|g\+\+|clang)'",
        "A package had to be compiled here and the compiler or Python's headers are missing.",
        "Debian, Ubuntu: apt install g++ python3-dev; then run the same command again",
    ),
    (
        r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|"
        r"Name or service not known|Network is unreachable|ConnectTimeout|ReadTimeout|"
        r"Read timed out|Connection refused|ProxyError|Max retries exceeded|"
        r"Connection reset by peer|ConnectionError|No route to host",
        "The package index could not be reached.",
        "connect this machine (behind a proxy: HTTPS_PROXY=http://host:port), or name an index it "
        "can reach (PIP_INDEX_URL, TORCH_INDEX_URL), or a folder of wheels (PIP_FIND_LINKS), "
        "then run the same command again; it carries on",
    ),
    (
        r"ResolutionImpossible|conflicting dependencies",
        "A version that constraints.txt names is not to be had for this Python and machine.",
        "the lines above name it; another Python may have it (PYTHON=python3.11 make ...), or a "
        "fuller index (PIP_INDEX_URL); git status tells whether constraints.txt was changed",
    ),
)
_NO_LEAVE = re.compile(r"Permission denied: ['\"]([^'\"]+)['\"]")
_NO_MATCH = re.compile(r"No matching distribution found for ([^\s(]+)")
_BUILD_FAILED = re.compile(r"(?:Failed building wheel for|Failed to build) ['\"]?([\w.\-]+)")


def diagnose(output: str) -> Refusal | None:
    """The Refusal that pip's output calls for, or None if nothing in it is recognised."""
    for pattern, cause, remedy in _FAILURES:
        if re.search(pattern, output):
            named = _NO_LEAVE.search(output)
            place = f": {named.group(1)}" if named else ""
            return Refusal(cause.format(place), remedy)
    missing = _NO_MATCH.search(output)
    if missing:
        where = "the folders of wheels it was given" if _no_index(output) else "its package index"
        return Refusal(
            f"pip found no {missing.group(1)} for this Python and machine in {where}.",
            "look at PIP_NO_INDEX, PIP_INDEX_URL and PIP_FIND_LINKS (pip config list shows them), "
            "or use another Python: PYTHON=python3.11 make ...",
        )
    broken = _BUILD_FAILED.search(output)
    if broken:
        return Refusal(
            f"{broken.group(1)} could not be built here.",
            "the lines above and the log say why; often a compiler is missing (apt install g++)",
        )
    return None


def _no_index(output: str) -> bool:
    return "Looking in indexes" not in output and "Looking in links" in output


class Progress:
    """Reads pip's lines one by one and answers with the few that a person wants to see."""

    LARGE = 20.0  # MB from which a download gets a line of its own

    def __init__(self) -> None:
        self.found = 0
        self.last = ""

    def read(self, line: str) -> str | None:
        """The sentence for this line, or None."""
        words = line.split()
        if line.startswith(("Collecting ", "Processing ")) and len(words) > 1:
            self.found += 1
            self.last = f"looking at {_package(words[1])}"
            return None
        loading = re.match(r"\s+Downloading (\S+) \(([\d.]+) (kB|MB|GB)\)", line)
        if loading:
            name = _package(loading.group(1))
            size = f"{loading.group(2)} {loading.group(3)}"
            self.last = f"downloading {name}, {size}"
            megabytes = float(loading.group(2)) * {"kB": 1e-3, "MB": 1.0, "GB": 1e3}[loading[3]]
            return f"  downloading {name}, {size}" if megabytes >= self.LARGE else None
        building = re.match(r"\s*Building (?:editable )?(?:wheel )?for ([\w.\-]+).*: started", line)
        if building:
            self.last = f"building {building.group(1)}"
            return f"  building {building.group(1)}"
        if line.startswith("Installing collected packages:"):
            count = len(line.partition(":")[2].split(","))
            self.last = f"installing {count} package{'s' * (count != 1)}"
            return f"  {self.last}"
        return None

    def alive(self, waited: str) -> str:
        """The sentence for a long silence."""
        seen = f"{self.found} packages so far" if self.found else "nothing yet"
        return f"  ... {waited}: {seen}" + (f", {self.last}" if self.last else "")


def complaints(lines: Iterable[str], limit: int = 8) -> list[str]:
    """pip's own last words: its error lines, or the last lines if it named none."""
    kept = [line.rstrip() for line in lines if line.strip()]
    errors = [line for line in kept if re.match(r"\s*(ERROR|error|OSError|fatal)\b", line)]
    return [line[:300] for line in (errors or kept)[-limit:]]


def _package(file_name: str) -> str:
    base = file_name.rsplit("/", 1)[-1].replace("%2B", "+")
    parts = base.split("-")
    return f"{parts[0]} {parts[1]}" if len(parts) > 1 else base
