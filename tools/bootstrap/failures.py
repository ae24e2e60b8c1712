"""What an installer or the system says when it fails, as one sentence with a remedy.

A pure function of the output of pip or uv, so that tests can hold it against real outputs.
No lesson derives it.
"""

from __future__ import annotations

import re

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
        r"Read-only file system|Errno 30\b|Permission denied|Errno 13\b",
        "A file or folder may not be read or written by you{}.",
        "if an earlier run was made as root, remove .venv as root; or clone the course to a folder "
        "of yours; or set COURSE_VENV to an environment that somebody has made for you",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError|\bSSLError\b|peer certificate",
        "The package index was reached, but its certificate was not accepted.",
        "behind a company proxy: PIP_CERT=/path/to/its-ca.pem; also check this machine's clock",
    ),
    (
        r"DO NOT MATCH THE HASHES|Hash mismatch|Hashes are required|must have a hash",
        "A package is not one of those whose hashes are known.",
        "run the same command again. If it happens twice: pip cache purge; and suspect the mirror "
        "or, where HASHES names one, a file of hashes that was made for another kind of machine "
        "(python -m tools.hashes FOLDER_OF_PACKAGES FILE writes one)",
    ),
    (
        r"fatal error: Python\.h|error: command '.*(gcc|cc|g\+\+|clang).*' failed|"
        r"unable to execute '.*(gcc|cc|g\+\+|clang)'|Failed building wheel|Failed to build",
        "A package had to be compiled here, and that failed.",
        "the lines above name it; often a compiler or Python's headers are missing (Debian, "
        "Ubuntu: apt install g++ python3-dev). Then run the same command again",
    ),
    (
        r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|"
        r"Name or service not known|Network is unreachable|ConnectTimeout|ReadTimeout|"
        r"Read timed out|Connection refused|ProxyError|Max retries exceeded|"
        r"Connection reset by peer|ConnectionError|No route to host|error sending request",
        "The package index could not be reached.",
        "connect this machine (behind a proxy: HTTPS_PROXY=http://host:port), or name an index it "
        "can reach (PIP_INDEX_URL, TORCH_INDEX_URL), or a folder of wheels (PIP_FIND_LINKS), "
        "then run the same command again; it carries on",
    ),
    (
        r"ResolutionImpossible|conflicting dependencies|No matching distribution found|"
        r"No solution found",
        "A version that constraints.txt names is not to be had for this Python and machine.",
        "the lines above name it; another Python may have it (PYTHON=python3.11 make ...), or "
        "another index (PIP_INDEX_URL, PIP_FIND_LINKS, PIP_NO_INDEX; pip config list shows them)",
    ),
)


def diagnose(output: str) -> Refusal | None:
    """The Refusal that the output calls for, or None if nothing in it is recognised."""
    for pattern, cause, remedy in _FAILURES:
        if re.search(pattern, output):
            named = re.search(r"\[Errno (?:13|30)\][^'\"\n]*['\"]([^'\"]+)['\"]", output)
            return Refusal(cause.format(f": {named.group(1)}" if named else ""), remedy)
    return None


def complaints(output: str, limit: int = 8) -> str:
    """The installer's own last words: its error lines, or the last lines if it named none."""
    kept = [line.rstrip() for line in output.splitlines() if line.strip()]
    errors = [line for line in kept if re.match(r"\s*(ERROR|error|cause|OSError|fatal)\b", line)]
    return "\n".join(f"  {line[:300]}" for line in (errors or kept)[-limit:])
