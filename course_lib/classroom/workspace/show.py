"""Progress in lines and tables: a learner's own, and a room's with what its node holds.

Names come from folders and people, so nothing in them is taken as an instruction to the terminal.
Lesson 00 points to it.
"""

from __future__ import annotations

from collections import Counter

from course_lib.classroom.outcomes import MARKS, RIGHT
from course_lib.classroom.standing import times, when
from course_lib.classroom.workspace.handed_out import called, capital


def own(found: dict, everything: bool = False) -> str:
    """A line for each lesson and appendix that was opened, below it one for each exercise; then
    the sums. Where `everything` is asked for, the others have their lines too."""
    lines = [f"Your copies: {found['workspace']}"]
    lessons = found["lessons"]
    shown = [one for one in lessons if everything or one["opened"]]
    for one in shown:
        opened = "opened" if one["opened"] else "not opened"
        head = f"{capital(called(one['lesson']))}  {one['title']}: {opened}"
        if one["of"]:
            head += f", {one['points']} of {one['of']} points"
        lines += [head + _predictions(one["predictions"]), *map(_exercise, one["exercises"])]
    lines += [_sums(lessons), *_left_out(len(lessons) - len(shown)), *damaged(found)]
    return "\n".join(lines)


def _sums(lessons: list[dict]) -> str:
    """The course as a whole in a line."""
    outcomes = [exercise["outcome"] for one in lessons for exercise in one["exercises"]]
    points, of = (sum(one[name] for one in lessons) for name in ("points", "of"))
    right = f"{outcomes.count(RIGHT)} of {len(outcomes)} exercises right"
    return f"In all: {points} of {of} points, {right}"


def _left_out(lessons: int) -> list[str]:
    if not lessons:
        return []
    are = "lesson or appendix is" if lessons == 1 else "lessons and appendices are"
    return [f"{lessons} {are} not opened yet; `course status --everything` lists them too."]


def _predictions(told: dict) -> str:
    if not told["made"]:
        return ""
    word = "prediction" if told["made"] == 1 else "predictions"
    return f", {told['made']} {word} written down, {told['compared']} compared"


def _exercise(one: dict) -> str:
    hints = f", {one['hints']} hint{'s' * (one['hints'] > 1)}" if one["hints"] else ""
    last = times(*(one[name] for name in ("outcome", "since", "last", "last_outcome")))
    points = f"{one['points']} of {one['of']}"
    return (
        f"  {MARKS[one['outcome']]} {one['exercise']:<22} {one['outcome']}, {points}{hints}{last}"
    )


def damaged(found: dict) -> list[str]:
    numbers = found["damaged_lines"]
    if not numbers:
        return []
    word = "Line" if len(numbers) == 1 else "Lines"
    return [
        f"{word} {', '.join(map(str, numbers))} of progress.jsonl cannot be read; the rest counts."
    ]


def everybody(room: dict, node: dict) -> None:
    """The table of learners and lessons, who could not be read, and who holds what."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 1000  # into a file or a pipe, nothing is cut off or wrapped
    learners = room["learners"]
    table = Table("learner")
    lessons = [one["lesson"] for one in learners[0]["lessons"]] if learners else []
    for name in [*lessons, "points", "last activity"]:
        table.add_column(name, no_wrap=True)
    names = Counter(one["name"] for one in learners)
    for one in learners:
        label = one["name"] if names[one["name"]] == 1 else f"{one['name']} ({one['workspace']})"
        points = (
            f"{sum(s['points'] for s in one['lessons'])}/{sum(s['of'] for s in one['lessons'])}"
        )
        cells = [plain(label), *map(_cell, one["lessons"]), points, when(one["last"]) or "never"]
        table.add_row(*map(Text, cells))
    if learners:
        console.print(table)
        console.print("– not opened, 2/6 points of the lesson's exercises")
    else:
        console.print("No workspace was found: folders with .course in them, up to three levels.")
    for one in learners:
        for line in damaged(one):
            console.print(Text(f"{plain(one['workspace'])}: {line}"))
    for one in room["unreadable"]:
        console.print(Text(f"{plain(one['path'])} cannot be read: {plain(one['reason'])}."))
    for line in on_node(node):
        console.print(Text(plain(line)))


def _cell(lesson: dict) -> str:
    if not lesson["opened"]:
        return "–"
    return f"{lesson['points']}/{lesson['of']}" if lesson["of"] else "opened"


def on_node(node: dict) -> list[str]:
    """Who holds which GPUs, cores and memory of this machine."""
    lines = ["", "This node:"]
    if node["problem"]:
        lines.append(f"  leases are off: {node['problem']}")
    for gpu in node["gpus"]:
        held = ", ".join(f"{c['user']} ({c['notebook'] or c['pid']})" for c in gpu["held_by"])
        lines.append(f"  GPU {gpu['gpu']}: {held or 'free'}")
    cores, memory = node["cores"], node["memory"]
    lines.append(f"  cores: {cores['claimed']} of {cores['total']} held")
    lines.append(f"  memory: {memory['claimed'] / 1e9:.1f} of {memory['total'] / 1e9:.1f} GB held")
    for claim in node["claims"]:
        on = ", ".join(map(str, claim["gpus"] or [])) or "no GPU"
        lines.append(
            f"  {claim['user']}, process {claim['pid']}, {claim['notebook'] or 'a notebook'}: "
            f"{on}, {claim['cores']} cores, {claim['memory'] / 1e9:.1f} GB"
        )
    return lines


def plain(text: str) -> str:
    """Without anything that a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in str(text))
