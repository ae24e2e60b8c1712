"""DeepSpeed's own reading of hostfiles and filters, in a process of its own: JSON in, JSON out.

`python -m tests.course_lib.peers.launchers.oracle` reads {"hostfiles": [text],
"filters": [[slots, in, out]]}.
"""

from __future__ import annotations

import io
import json
import logging
import sys

from tests.course_lib.peers.deepspeed_config.parts import answered

REFUSED = None


def answers(hostfiles: list[str], filters: list[tuple[dict, str, str]]) -> tuple[list, list]:
    """What DeepSpeed makes of each; REFUSED where it raises."""
    found = answered(__name__, {"hostfiles": hostfiles, "filters": filters})
    return found["hostfiles"], found["filters"]


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
