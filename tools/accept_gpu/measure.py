"""`python -m tools.accept_gpu.measure WORLD`: the doctor's all-reduce on that many ranks, as JSON.

It is a separate process, so that it can be ended if it hangs. No lesson derives it.
"""

from __future__ import annotations

import json
import sys

from course_classroom.doctor.finding import Check, guarded
from course_classroom.doctor.real_ranks import RealRanks


def main(world: int) -> None:
    ranks = RealRanks(world)
    found = guarded(Check("all-reduce", ranks.look, 300.0))
    answer = {"backend": ranks.backend, "rows": ranks.rows}
    print(json.dumps({**answer, "findings": [one.as_json() for one in found]}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
