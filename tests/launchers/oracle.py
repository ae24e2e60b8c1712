"""DeepSpeed's own reading of hostfiles and filters, in a process of its own: JSON in, JSON out.

`python -m tests.launchers.oracle` reads {"hostfiles": [text], "filters": [[slots, in, out]]}.
"""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys

REFUSED = None


def answers(hostfiles: list[str], filters: list[tuple[dict, str, str]]) -> tuple[list, list]:
    """What DeepSpeed makes of each; REFUSED where it raises."""
    asked = json.dumps({"hostfiles": hostfiles, "filters": filters})
    done = subprocess.run(
        [sys.executable, "-m", __name__], input=asked, capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    answered = json.loads(done.stdout)
    return answered["hostfiles"], answered["filters"]


def main() -> None:
    logging.disable(logging.CRITICAL)
    sys.stdout, out = sys.stderr, sys.stdout
    from deepspeed.launcher import runner

    def outcome(function, *arguments):
        try:
            return list(function(*arguments).items())
        except Exception:  # what it raises differs, and is not meant to be read
            return REFUSED

    asked = json.load(sys.stdin)
    read = [
        outcome(runner._parse_hostfile, io.StringIO(text, newline=None).readlines())
        for text in asked["hostfiles"]
    ]
    chosen = [outcome(runner.parse_inclusion_exclusion, *entry) for entry in asked["filters"]]
    json.dump({"hostfiles": read, "filters": chosen}, out)


if __name__ == "__main__":
    main()
