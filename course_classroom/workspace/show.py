"""Progress as text: a learner's own progress, and a room's progress with the use of its node.

Names come from folders and people, so the terminal never receives them as control sequences. Lesson
00 refers to `course status`.
"""

from __future__ import annotations

from collections import Counter

from course_classroom.progress.log import RIGHT
from course_classroom.progress.points import Row, when
from course_classroom.ranks.agreement import counted
from course_classroom.workspace.handed_out import called, capital


def own(found: dict, everything: bool = False) -> str:
    """Return a line for each opened lesson and appendix, with a line below for each exercise, then
    the sums. With `everything`, unopened lessons are included."""
    lines = [f"Your copies: {found['workspace']}"]
    lessons = found["lessons"]
    shown = [one for one in lessons if everything or one["opened"]]
    for one in shown:
        opened = "opened" if one["opened"] else "not opened"
        head = f"{capital(called(one['lesson']))}  {one['title']}: {opened}"
        if one["of"]:
            head += f", {one['points']} of {one['of']} points"
        told = one["predictions"]
        if told["made"]:
            made = counted(told["made"], "prediction")
            head += f", {made} recorded, {told['compared']} compared"
        rows = (Row(one["lesson"], **exercise) for exercise in one["exercises"])
        lines += [head, *(row.as_text(f"{row.outcome}, ") for row in rows)]
    outcomes = [exercise["outcome"] for one in lessons for exercise in one["exercises"]]
    points, of = (sum(one[name] for one in lessons) for name in ("points", "of"))
    right = f"{outcomes.count(RIGHT)} of {len(outcomes)} exercises right"
    lines.append(f"In total: {points} of {of} points, {right}")
    if left := len(lessons) - len(shown):
        are = "lesson or appendix is" if left == 1 else "lessons and appendices are"
        lines.append(f"{left} {are} not opened yet; `course status --everything` lists them too.")
    return "\n".join([*lines, *damaged(found)])


def damaged(found: dict) -> list[str]:
    numbers = found["damaged_lines"]
    if not numbers:
        return []
    word = "Line" if len(numbers) == 1 else "Lines"
    return [
        f"{word} {', '.join(map(str, numbers))} of progress.jsonl cannot be read; the others count."
    ]


def everybody(room: dict, node: dict) -> None:
    """Print the table of learners and lessons, the unreadable workspaces, and the leases."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 1000  # in a file or a pipe, nothing is cut off or wrapped
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
    """Return text without control characters for a terminal."""
    return "".join(c if c.isprintable() else "?" for c in str(text))
