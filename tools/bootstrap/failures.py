"""Error messages of an installer or the system, translated into one sentence with a remedy.

It is a pure function of the output of pip or uv, so that tests can use real outputs. No lesson
derives it.
"""

from __future__ import annotations

import re

from .say import Refusal

# In order of precedence. A full disk also causes other complaints from pip. A lost connection may
# have recovered before a different failure, but it explains versions that were not found.
_FAILURES = (
    (
        r"No space left on device|Errno 28\b|Disk quota exceeded|Errno 122\b",
        "The disk (or your quota) became full during the installation.",
        "free some space, or point TMPDIR (where pip unpacks) and PIP_CACHE_DIR (its cache) "
        "to a folder with room, then run the same command again",
    ),
    (
        r"Read-only file system|Errno 30\b|Permission denied|Errno 13\b",
        "You may not read or write a file or folder{}.",
        "if an earlier run was made as root, remove .venv as root. Or clone the course to a folder "
        "of yours, or set COURSE_VENV to an existing environment",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError|\bSSLError\b|peer certificate",
        "The package index was reached, but its certificate was not accepted.",
        "behind a company proxy set PIP_CERT=/path/to/its-ca.pem; also check this machine's clock",
    ),
    (
        r"DO NOT MATCH THE HASHES|Hash mismatch|Hashes are required|must have a hash",
        "A package does not match any known hash.",
        "run the same command again. If it fails twice, run pip cache purge and suspect the mirror "
        "or, with HASHES, a file of hashes for a different kind of machine "
        "(python -m tools.hashes FOLDER_OF_PACKAGES FILE creates one)",
    ),
    (
        r"fatal error: Python\.h|error: command '.*(gcc|cc|g\+\+|clang).*' failed|"
        r"unable to execute '.*(gcc|cc|g\+\+|clang)'|Failed building wheel|Failed to build",
        "A package had to be compiled here, but that failed.",
        "the lines above name it; often a compiler or Python's headers are missing (on Debian and "
        "Ubuntu, apt install g++ python3-dev). Then run the same command again",
    ),
    (
        r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|"
        r"Name or service not known|Network is unreachable|ConnectTimeout|ReadTimeout|"
        r"Read timed out|Connection refused|ProxyError|Max retries exceeded|"
        r"Connection reset by peer|ConnectionError|No route to host|error sending request",
        "The package index could not be reached.",
        "connect this machine (behind a proxy, set HTTPS_PROXY=http://host:port), or name an index "
        "it can reach (PIP_INDEX_URL, TORCH_INDEX_URL), or a folder of wheels (PIP_FIND_LINKS), "
        "then run the same command again; it continues",
    ),
    (
        r"ResolutionImpossible|conflicting dependencies|No matching distribution found|"
        r"No solution found",
        "A version in constraints.txt is not available for this Python and machine.",
        "the lines above name it. Try a different Python (PYTHON=python3.11 make ...), or a "
        "different index (PIP_INDEX_URL, PIP_FIND_LINKS, PIP_NO_INDEX, shown by pip config list)",
    ),
)


def diagnose(output: str) -> Refusal | None:
    """Return the Refusal for an output, or None if nothing in it is recognised."""
    for pattern, cause, remedy in _FAILURES:
        if re.search(pattern, output):
            named = re.search(r"\[Errno (?:13|30)\][^'\"\n]*['\"]([^'\"]+)['\"]", output)
            return Refusal(cause.format(f": {named.group(1)}" if named else ""), remedy)
    return None


def complaints(output: str, limit: int = 8) -> str:
    """Extract the installer's error lines, or its last lines if there are none."""
    kept = [line.rstrip() for line in output.splitlines() if line.strip()]
    errors = [line for line in kept if re.match(r"\s*(ERROR|error|cause|OSError|fatal)\b", line)]
    return "\n".join(f"  {line[:300]}" for line in (errors or kept)[-limit:])
