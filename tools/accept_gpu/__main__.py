"""`python -m tools.accept_gpu [--out FILE] [--rehearse] [--only GROUPS]`, behind make accept-gpu.

Exit code 0 where every stage that was asked for passed and, unless it is a rehearsal or a part,
the course is accepted; 1 else; 2 for a wrong call. No lesson derives it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from course_lib.classroom.doctor import privacy, torch_build
from course_lib.files import write_whole
from tools.accept_gpu.node import describe
from tools.accept_gpu.stages import Place, Stage, stages
from tools.accept_gpu.verdict import why_not

ROOT = Path(__file__).resolve().parents[2]
GROUPS = ("doctor", "tests", "notebooks", "training", "bandwidth", "scaling")


def main(arguments: list[str] | None = None) -> int:
    asked = _parse(arguments)
    gpus = torch_build.of_this_process().devices
    if gpus < 2 and not asked.rehearse:
        _say(
            f"torch sees {gpus} GPU(s) here; acceptance needs two or more, on one node.\n"
            "Remedy: run it on such a node (`course doctor` tells why GPUs are not seen), or try "
            'the command itself with ACCEPT_ARGS="--rehearse".'
        )
        return 1
    today = datetime.datetime.now(datetime.timezone.utc)
    out = Path(asked.out or f"accept-gpu-{today:%Y-%m-%d}.json")
    verdict: dict[str, Any] = {
        "accepted": False,
        "finished": False,
        "rehearsal": asked.rehearse,
        "why_not": ["it is not finished"],
        "date": today.isoformat(timespec="seconds"),
        **describe(ROOT),
        "stages": [],
    }
    try:
        _write(out, verdict)  # an hour's work must not end at a folder that cannot be written
    except OSError as error:
        _say(f"{out} cannot be written ({error.strerror}).\nRemedy: ACCEPT_ARGS='--out FILE'")
        return 1
    every = stages(max(2, gpus))
    chosen = [one for one in every if one.group in asked.only]
    with tempfile.TemporaryDirectory(prefix="course-accept-") as scratch:
        place = Place(ROOT, Path(scratch))
        for number, stage in enumerate(chosen, 1):
            _say(f"{number}/{len(chosen)} {stage.name} (at most {stage.limit / 60:.0f} min) ...")
            verdict["stages"].append(run(stage, place))
            _write(out, verdict)
            told = verdict["stages"][-1]
            word = "ok" if told["ok"] else "FAILED"
            _say(f"{number}/{len(chosen)} {stage.name}: {word}, {told['found']}")
    reasons = why_not(verdict["stages"], [one.name for one in every], gpus, asked.rehearse)
    verdict.update(finished=True, accepted=not reasons, why_not=reasons)
    _write(out, verdict)
    return _conclude(out, verdict, whole=chosen == every)


def run(stage: Stage, place: Place) -> dict[str, Any]:
    """One stage; whatever goes wrong in it is told in its result."""
    began = time.monotonic()
    try:
        found = stage.run(place, stage.limit)
    except Exception as error:
        found = {"ok": False, "found": f"{type(error).__name__}: {error}"}
    return {"name": stage.name, "seconds": round(time.monotonic() - began, 1), **found}


def _conclude(out: Path, verdict: dict[str, Any], *, whole: bool) -> int:
    failed = [one["name"] for one in verdict["stages"] if not one["ok"]]
    if verdict["accepted"]:
        _say(f"accepted. Please send {out} back.")
        return 0
    _say(f"not accepted: {'; '.join(verdict['why_not'])}\nThe whole story is in {out}.")
    return 1 if failed or (whole and not verdict["rehearsal"]) else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    words = argparse.ArgumentParser(prog="make accept-gpu", description=__doc__)
    words.add_argument("--out", help="the verdict's file; default: accept-gpu-DATE.json here")
    words.add_argument("--rehearse", action="store_true", help="on whatever machine this is")
    words.add_argument("--only", default=",".join(GROUPS), help=f"some of {', '.join(GROUPS)}")
    asked = words.parse_args(arguments)
    asked.only = asked.only.split(",")
    unknown = sorted(set(asked.only) - set(GROUPS))
    if unknown:
        words.error(f"no stage is called {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    return asked


def _write(out: Path, verdict: dict[str, Any]) -> None:
    clean = privacy.scrubbed(verdict, privacy.of_this_machine())
    write_whole(out, json.dumps(clean, indent=1, ensure_ascii=False) + "\n")


def _say(text: str) -> None:
    for line in text.splitlines():
        print(f"[accept-gpu] {line}", file=sys.stderr, flush=True)


def _as_interrupt(*_: object) -> None:
    raise KeyboardInterrupt  # so that the stage that runs is ended with all it started


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        _say("interrupted; the file holds the stages that had ended")
        sys.exit(130)
