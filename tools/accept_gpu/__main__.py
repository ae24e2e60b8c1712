"""`python -m tools.accept_gpu [--one-gpu] [--rehearse] [--seconds N] [--only GROUPS] [--out PATH]`.

The program of make accept-gpu. The exit code is 0 if every requested stage passed and, unless it is
a rehearsal or a part, the course is accepted, or with --one-gpu nothing was left out. It is 2 for a
wrong call, 130 after an interrupt, and otherwise 1. No lesson derives it.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from course_classroom.doctor import torch_build
from tools.accept_gpu import one_gpu
from tools.accept_gpu.node import describe
from tools.accept_gpu.report import Report, say
from tools.accept_gpu.road import travel
from tools.accept_gpu.running import Place, watched
from tools.accept_gpu.sizes import TINY
from tools.accept_gpu.stages import Stage, stages
from tools.accept_gpu.verdict import why_not

ROOT = Path(__file__).resolve().parents[2]
GROUPS = ("doctor", "tests", "notebooks", "training", "bandwidth", "scaling")


def main(arguments: list[str] | None = None) -> int:
    began = time.monotonic()
    asked = _parse(arguments)
    gpus = torch_build.of_this_process().devices
    least = 1 if asked.one_gpu else 2
    if gpus < least and not asked.rehearse:
        say(_refusal(gpus, least))
        return 1
    if asked.one_gpu and gpus > 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[0]
    today = datetime.datetime.now(datetime.timezone.utc)
    out = Path(asked.out or f"accept-gpu-{today:%Y-%m-%d}{'' if asked.one_gpu else '.json'}")
    document: dict[str, Any] = {
        "accepted": False,
        "finished": False,
        "rehearsal": asked.rehearse,
        "one_gpu": asked.one_gpu,
        "why_not": ["it is not finished"],
        "date": today.isoformat(timespec="seconds"),
        **describe(ROOT),
    }
    try:
        report = _report(out, document, folder=asked.one_gpu)
    except OSError as error:
        say(f"{out} cannot be written ({error.strerror}).\nRemedy: ACCEPT_ARGS='--out PATH'")
        return 1
    with tempfile.TemporaryDirectory(prefix="course-accept-") as scratch, watched():
        place = Place(ROOT, Path(scratch), out / "tests.jsonl" if asked.one_gpu else None)
        every = _every(asked, place, gpus)
        chosen = [one for one in every if one.group in asked.only]
        travel(chosen, place, report, began + asked.seconds)
    results = report.document["stages"]
    if asked.one_gpu:
        reasons = one_gpu.why_not(results, gpus > 0, asked.rehearse)
    else:
        reasons = why_not(results, [one.name for one in every], gpus, asked.rehearse)
    report.update(finished=True, accepted=not reasons, why_not=reasons)
    return _conclude(out, report, whole=asked.one_gpu or chosen == every)


def _refusal(gpus: int, least: int) -> str:
    if least == 1:
        wanted, options = "--one-gpu needs one", "--one-gpu --rehearse"
    else:
        wanted, options = "acceptance needs two or more, on one node", "--rehearse"
    text = f"torch sees {gpus} GPU(s) here; {wanted}.\n"
    if gpus == 1:
        text += 'With one GPU: ACCEPT_ARGS="--one-gpu".\n'
    text += "Remedy: run it on such a node (`course doctor` explains missing GPUs), or try "
    return text + f'the command itself with ACCEPT_ARGS="{options}".'


def _report(out: Path, document: dict[str, Any], *, folder: bool) -> Report:
    if not folder:
        return Report(out, document)
    out.mkdir(parents=True, exist_ok=True)
    (out / "tests.jsonl").write_text("")
    return Report(out / "found.json", document, out / "summary.txt")


def _every(asked: argparse.Namespace, place: Place, gpus: int) -> list[Stage]:
    if not asked.one_gpu:
        return stages(max(2, gpus))
    sizes = TINY if asked.rehearse else one_gpu.sizes_here(place)
    return one_gpu.stages(sizes, gpus > 0, os.cpu_count() or 1)


def _conclude(out: Path, report: Report, *, whole: bool) -> int:
    verdict = report.document
    if verdict["one_gpu"]:
        print(report.as_table(), flush=True)
    if verdict["accepted"]:
        say(f"accepted. Please send {out} back.")
        return 0
    say(f"not accepted: {'; '.join(verdict['why_not'])}\nDetails are in {out}.")
    failed = [one["name"] for one in verdict["stages"] if not one["ok"]]
    return 1 if failed or (whole and not verdict["rehearsal"]) else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    words = argparse.ArgumentParser(prog="make accept-gpu", description=__doc__)
    words.add_argument(
        "--one-gpu",
        action="store_true",
        help="run a shorter check, which needs only one GPU and takes minutes",
    )
    words.add_argument(
        "--rehearse",
        action="store_true",
        help="run on this machine as a rehearsal, even if it has too few GPUs",
    )
    words.add_argument(
        "--seconds",
        type=float,
        help="time limit in seconds for all stages together (default: 540 with --one-gpu, else no "
        "limit)",
    )
    words.add_argument(
        "--only", help="run only these groups of stages, e.g. doctor,training (default: all groups)"
    )
    words.add_argument(
        "--out",
        help="output file, or with --one-gpu the output folder (default: accept-gpu-DATE.json, or "
        "the folder accept-gpu-DATE)",
    )
    asked = words.parse_args(arguments)
    groups = one_gpu.GROUPS if asked.one_gpu else GROUPS
    asked.only = asked.only.split(",") if asked.only else list(groups)
    unknown = sorted(set(asked.only) - set(groups))
    if unknown:
        words.error(f"no stage is called {', '.join(unknown)}. Use {', '.join(groups)}")
    if asked.seconds is None:
        asked.seconds = one_gpu.SECONDS if asked.one_gpu else math.inf
    if not asked.seconds > 0:
        words.error(f"--seconds {asked.seconds:g} must be above 0")
    return asked


def _as_interrupt(*_: object) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the first signal is being handled
    raise KeyboardInterrupt  # so that the running stage is ended with all its processes


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _as_interrupt)
    signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("interrupted; the completed stages are in the file")
        sys.exit(130)
