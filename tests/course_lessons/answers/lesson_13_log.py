"""Answers to `read_log` of lesson 13: right, right by another road, and wrong in likely ways."""

from __future__ import annotations

from functools import partial

from tests.course_lessons.answers import changed

LOG = """
import math
import re

LINE = re.compile(r"OVERFLOW! .*Attempted loss scale: (\\d+), (?:reducing to (\\d+))?")
STEP = re.compile(r"\\[rank 0\\] step (\\d+) ")


def read_log(lines):
    steps, skips = [], []
    pending = last = at_least = False
    for line in lines:
        found = LINE.search(line)
        if found:
            tried = int(found.group(1))
            left = int(found.group(2)) if found.group(2) else tried
            skips.append((tried, left))
            pending, at_least = True, found.group(2) is not None and tried == left
        if STEP.search(line):
            steps.append(pending)
            last, pending = pending, False
    ended = any("already at minimum" in line for line in lines)
    skipped = len(skips)
    made = len(steps) - skipped
    scale = skips[-1][1] if skips else None
    doubled = 0
    for (_, left), (tried, _) in zip(skips, skips[1:]):
        doubled += round(math.log2(tried / left))
    if ended or (last and at_least):
        verdict = "diverged" if made else "no scale was found"
    else:
        verdict = "still looking" if last else "settled"
    return {
        "skipped": skipped,
        "scheduler": made,
        "scale": scale,
        "doubled": doubled,
        "verdict": verdict,
    }
"""
log = partial(changed, LOG)
# Another style: no regular expression, the lines of rank 0 cut into steps first, floats.
LOG_BY_STEPS = """
def after(line, words):
    return float(line.split(words)[1].split()[0].strip(","))


def read_log(lines):
    mine, steps, over = [x for x in lines if "[rank 0] step" in x or "OVERFLOW" in x], [], []
    for line in mine:
        if "OVERFLOW" in line:
            over.append(line)
        else:
            steps.append(over)
            over = []
    flags = [bool(lines_of_step) for lines_of_step in steps]
    scale, doubled = None, 0
    for line in (x for found in steps for x in found):
        tried = after(line, "scale: ")
        while scale is not None and scale < tried:
            scale, doubled = 2 * scale, doubled + 1
        scale = after(line, "reducing to ") if "reducing to " in line else tried
    stopped = "already at minimum" in "".join(lines)
    stuck = flags[-1] and "reducing to " in steps[-1][0]
    stuck = stuck and after(steps[-1][0], "scale: ") == after(steps[-1][0], "reducing to ")
    bad = "no scale was found" if all(flags) else "diverged"
    good = "still looking" if flags[-1] else "settled"
    return dict(
        verdict=bad if stopped or stuck else good,
        skipped=sum(flags),
        scheduler=flags.count(False),
        scale=scale,
        doubled=doubled,
    )
"""
SKIPPED = "    skipped = len(skips)\n"
MADE = "    made = len(steps) - skipped\n"
LOST = "    if ended or (last and at_least):\n"
GREW = "        doubled += round(math.log2(tried / left))\n"
SCALE = "    scale = skips[-1][1] if skips else None\n"
WRONG_LOG = {
    "reductions alone": (
        log((SKIPPED, '    skipped = sum("reducing" in x for x in lines)\n')),
        "hysteresis ignored",
    ),
    "moved at every step": (log(("len(steps) - skipped", "len(steps)")), "it moved at every step"),
    "the last number of the line": (
        log(
            (
                SCALE,
                '    told = [x for x in lines if "OVERFLOW" in x]\n'
                "    scale = int(told[-1].split()[-1]) if told else None\n",
            ),
        ),
        "the hysteresis taken for a scale",
    ),
    "an overflow late in the run": (
        log(
            (LOST, "    if True in steps[steps.index(False):] if False in steps else False:\n"
                   '        verdict = "diverged"\n    elif ended or (last and at_least):\n'),
        ),
        "late overflow taken as final",
    ),
    "every mention": (
        log((SKIPPED, '    skipped = sum("OVERFLOW" in x or "hysteresis" in x for x in lines)\n')),
        "every mention counted",
    ),
    "DeepSpeed's count": (
        log(
            (
                SKIPPED,
                '    told = re.findall(r"skipped=(\\d+)", " ".join(lines))\n'
                "    skipped = int(told[-1]) if told else 0\n",
            ),
        ),
        "DeepSpeed's count believed",
    ),
    "the error too": (log((SKIPPED, "    skipped = len(skips) + ended\n")),
                      "the last error counted"),
    "all ranks' steps": (
        log((MADE, '    made = sum("| loss" in x for x in lines) - skipped\n')),
        "each rank's lines counted",
    ),
    "the last step's number": (
        log(
            (MADE, '    made = int(re.findall(r" step (\\d+) ", " ".join(lines))[-1]) - skipped\n'),
        ),
        "the last number taken",
    ),
    "what was tried": (log(("skips[-1][1]", "skips[-1][0]")), "the scale that was tried"),
    "the last reduction": (
        log(
            (
                SCALE,
                '    told = re.findall(r"reducing to (\\d+)", " ".join(lines))\n'
                "    scale = int(told[-1]) if told else None\n",
            ),
        ),
        "hysteresis ignored",
    ),
    "a default": (log(("if skips else None", "if skips else 2**16")), "a scale from nowhere"),
    "no growth": (log((GREW, "        doubled += 0\n")), "growth not seen"),
    "jumps": (log((GREW, "        doubled += tried > left\n")), "jumps counted"),
    "from what was tried": (
        log(
            ("(_, left), (tried, _) in zip", "(left, _), (tried, _) in zip"),
            (GREW, "        doubled += max(0, round(math.log2(tried / left)))\n"),
        ),
        "compared with what was tried",
    ),
    "the ends": (
        log(
            (LOST, "    if skips:\n        doubled = max(0, round(math.log2(skips[-1][0] / "
                   "skips[0][0])))\n" + LOST),
        ),
        "the ends compared",
    ),
    "any is trouble": (log(('"still looking" if last else', '"still looking" if skips else')),
                       "any overflow is trouble"),
    "any at the least": (
        log(
            (LOST, "    one = [x for x in skips if x[0] == x[1] and (x[0], x[0]) in twice]\n"
                   "    if ended or one:\n"),
            ("    steps, skips = [], []\n",
             "    steps, skips = [], []\n"
             "    told = re.findall(r' scale: (\\d+), reducing to (\\d+)', '\\n'.join(lines))\n"
             "    twice = {(int(a), int(b)) for a, b in told}\n"),
        ),
        "one at the least scale",
    ),
    "never diverged": (log(('"diverged" if made else "no', '"no')), "verdicts confused"),
    "always diverged": (log(('"diverged" if made else "no scale was found"', '"diverged"')),
                        "verdicts confused"),
    "the error alone": (log((LOST, "    if ended:\n")), "an endless row not seen"),
    "any rank's step": (
        log(("            steps.append(pending)\n            last, pending",
             "            steps.append(pending)\n        if '| loss' in line:\n"
             "            last, pending")),
        "ranks mixed up",
    ),
    "only what reduces": (
        log(
            ('"still looking" if last else',
             '"still looking" if last and len({*skips[-1]}) > 1 else'),
        ),
        "hysteresis ignored",
    ),
    "another word": (log(('"settled"', '"fine"')), "another word"),
    "off by one": (log(("    doubled = 0\n", "    doubled = 1\n")), "doubled misread"),
    "a bool": (log((SKIPPED, SKIPPED + "    skips = skips[:1]\n")), "scale misread"),
    "without the scale": (log(('        "scale": scale,\n', "")), "a key missing"),
    "the first line": (log(("skips[-1][1] if skips else None", "skips[-1][1]")),
                       "stopped by an error"),
    "takes lines out": (
        log(("    for line in lines:\n        found",
             "    for line in lines[:]:\n        lines.remove(line)\n        found"),
            ('any("already at minimum" in line for line in lines)', "False")),
        "input changed",
    ),
    "nothing": (log(("    return {\n", "    {\n")), "nothing returned"),
    "a number": ("def read_log(lines):\n    return len(lines)\n", "not a dictionary"),
    "the least scale, ever": (
        log(("pending, at_least = True, found.group(2) is not None and tried == left",
             "pending = True\n"
             "            at_least |= found.group(2) is not None and tried == left")),
        "one at the least scale",
    ),
    "ten in a row are the end": (
        log((LOST, "    row = steps[::-1].index(False) if False in steps else len(steps)\n"
                   "    if ended or (last and at_least) or row >= 10:\n")),
        "long row taken as final",
    ),
    "rank 10 too": (log(("\\[rank 0\\]", "rank \\d*0\\]")), "rank 10 is not rank 0"),
    "the least is 1": (log(("tried == left\n", "tried == left == 1\n")),
                       "minimum assumed to be 1"),
    "lost who is at 1": (
        log(("tried == left\n", "left == 1\n")), "minimum assumed to be 1"
    ),
    "lost who comes down to 1": (
        log(("tried == left\n", "left in (1, tried)\n")), "minimum not tried yet"
    ),
    "no step yet": (
        log(('"still looking" if last else',
             '("still looking" if made else "no scale was found") if last else')),
        "still searching",
    ),
    "looked for again": (
        log(('"still looking" if last else',
             '("diverged" if made else "still looking") if last else')),
        "searching again",
    ),
    "steps before the log": (
        log(('"diverged" if made else', '"diverged" if made or " step 1 " not in '
             '"\\n".join(lines) else')),
        "steps before the log",
    ),
    "twelve overflows are too many": (
        log((LOST, "    if ended or (last and at_least) or all(steps[-12:]) and "
             "len(steps) > 11:\n")),
        "long row taken as final",
    ),
    "an even number of overflows": (
        log((LOST, "    if last and len(skips) % 2 and not at_least:\n"
             '        verdict = "settled"\n    elif ended or (last and at_least):\n')),
        "the end misread",
    ),
    "DeepSpeed's count where there is one": (
        log((SKIPPED, '    told = re.findall(r"skipped=(\\d+)", " ".join(lines))\n'
             "    skipped = int(told[-1]) if told else len(skips)\n"),
            (MADE, "    made = len(steps) - len(skips)\n")),
        "DeepSpeed's count believed",
    ),
    "DeepSpeed's last count without its first": (
        log((SKIPPED, '    told = re.findall(r"skipped=(\\d+)", " ".join(lines))\n'
             "    skipped = int(told[-1]) - int(told[0]) if told else 0\n"),
            (MADE, "    made = len(steps) - len(skips)\n")),
        "DeepSpeed's count believed",
    ),
    "lines alike are one": (
        log(("    skipped = len(skips)\n",
             "    skipped = len({line for line in lines if 'OVERFLOW' in line})\n"),
            ("made = len(steps) - skipped", "made = len(steps) - len(skips)")),
        "skipped misread",
    ),
}  # fmt: skip

# A small machine: what each line does to the state of the run.
LOG_BY_STATE = """
from dataclasses import dataclass, field


@dataclass
class Run:
    scale: float = 0.0
    overflow: bool = False
    stuck: bool = False
    flags: list = field(default_factory=list)
    grown: int = 0
    over: bool = False

    def see(self, line):
        head, _, rest = line.partition("Attempted loss scale: ")
        if rest:
            tried, rest = rest.split(",", 1)
            tried = int(tried)
            if self.scale:
                self.grown += (tried // int(self.scale)).bit_length() - 1
            self.scale = int(rest.split()[-1]) if "reducing to" in rest else tried
            self.overflow, self.stuck = True, "reducing to" in rest and self.scale == tried
        elif "[rank 0] step" in head:
            self.flags.append(self.overflow)
            self.overflow = False
        self.over |= "cannot decrease" in line


def read_log(lines):
    run = Run()
    for line in lines:
        run.see(line)
    made = run.flags.count(False)
    match run.over or run.flags[-1] and run.stuck, run.flags[-1], made:
        case (True, _, 0):
            verdict = "no scale was found"
        case (True, _, _):
            verdict = "diverged"
        case (_, True, _):
            verdict = "still looking"
        case _:
            verdict = "settled"
    return {"scheduler": made, "skipped": sum(run.flags), "scale": run.scale or None,
            "doubled": run.grown, "verdict": verdict}
"""

RIGHT = {"read_log": {"by lines": LOG, "by steps": LOG_BY_STEPS, "by state": LOG_BY_STATE}}
WRONG = {"read_log": WRONG_LOG}
