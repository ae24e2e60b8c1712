"""`pieces_of` of lesson 09: which elements of which parameter a rank's shard of a bucket holds.

Asked for four buckets on three ranks and on two; what is wrong everywhere in the same way goes by
the name of the idea.
"""

from __future__ import annotations

import os

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_09 import pieces_trial as trial
from course_lib.classroom.checks.lesson_09.pieces_trial import questions, readings, right

_LOST = (
    "Shards of total // n elements do not hold the whole bucket: some elements at its end belong "
    "to no rank, or the last rank has a longer shard than the message has. Round up."
)
_EMPTY = "A parameter of which the rank holds nothing is no piece: leave it out."
_PLACES = (
    "`start` and `stop` count from the beginning of the *parameter*, `at` from the beginning of "
    "the rank's *shard*. You have counted from the beginning of the bucket."
)
_ONE_BY_ONE = (
    "Each parameter was cut by itself. The bucket is cut as one: most parameters then belong to a "
    "single rank, and padding comes once, at the end."
)
IDEAS = {
    "rounded down": ("rounded down", _LOST),
    "the last takes the rest": ("rounded down", _LOST),
    "balanced": (
        "shards of unequal length",
        "The first ranks have one element more than the others. A message with equal pieces "
        "carries the bucket, so every shard is as long as the first, and the last ends in padding.",
    ),
    "balanced, from the end": (
        "shards of unequal length",
        "The shards are as even as they can be, and not equally long. A message with equal pieces "
        "carries the bucket: all shards are as long as the longest, and the last ends in padding.",
    ),
    "one more": (
        "one element too long",
        "A shard of total // n + 1 is too long where n divides the total: as short as they can be.",
    ),
    "to the nearest": (
        "rounded to the nearest",
        "The length of a shard was rounded to the nearest whole number. Where that is down, the "
        "shards do not hold the whole bucket: round up.",
    ),
    "one by one": ("parameters cut one by one", _ONE_BY_ONE),
    "one by one, from 0": ("parameters cut one by one", _ONE_BY_ONE),
    "whole": (
        "whole parameters",
        "Each parameter went whole to the rank in whose shard it begins. The cut does not care "
        "where parameters begin: one that crosses it is on two ranks, or on more.",
    ),
    "empty": ("empty pieces", _EMPTY),
    "empty, other": ("empty pieces", _EMPTY),
    "empty, touching": ("empty pieces", _EMPTY),
    "empty, of nothing": ("empty pieces", _EMPTY + " So is one without elements."),
    "at in the bucket": ("counted from the bucket", _PLACES),
    "start in the bucket": ("counted from the bucket", _PLACES),
    "all in the bucket": ("counted from the bucket", _PLACES),
    "at always 0": (
        "everything at 0",
        "`at` says where in the shard a piece begins: after the pieces before it.",
    ),
    "stop is the last": (
        "the last instead of the end",
        "`stop` is the first element that is *not* in the piece, as in a Python slice.",
    ),
    "a length for stop": (
        "a length for an end",
        "`stop` is where the piece ends in the parameter, and not how long it is.",
    ),
    "ends only": (
        "a rank in the middle",
        "A parameter that is longer than a shard can be on three ranks or more. On those in the "
        "middle it neither begins nor ends, and it is there all the same.",
    ),
    "padding": (
        "padding as part of a parameter",
        "The last piece reaches beyond its parameter. What fills the shard up is padding, and "
        "belongs to nothing.",
    ),
    "padding by itself": (
        "padding as a piece",
        "There is a piece more than there are parameters, of the padding. Padding is no piece.",
    ),
}


def judge_pieces(answer: Answer, judge: Judge) -> None:
    """Ask for every bucket on three ranks, then on two that are not the notebook's first two."""
    judge.take(answer, trial.__name__)
    seed = int.from_bytes(os.urandom(3), "big")
    for members in ([0, 1, 2], [1, 2]):
        when = on(members)
        reports = judge.trial(answer, trial.ask, seed, members=members, when=when)
        for told in zip(*(report["told"] for report in reports), strict=True):
            _look_at_results(told, when)
        asked = [questions(seed, len(members), rank) for rank in range(len(members))]
        got = [[one["pieces"] for one in report["told"]] for report in reports]
        refuse_kept(reports, when)
        if got == [[right(*each) for each in of_rank] for of_rank in asked]:
            continue
        if len(members) == 2 or _right_of_own_group(got, asked):
            refuse_world_numbers(answer, when)
        for idea, (name, text) in IDEAS.items():
            said = [[sorted(readings(*each)[idea]) for each in of_rank] for of_rank in asked]
            if got == said:
                raise Finding(name, f"These are other pieces than the rank holds, {when}. {text}")
        _refuse_first(got, asked, when)


def _right_of_own_group(got: list, asked: list) -> bool:
    """Whether only what is asked about larger groups is wrong."""
    pairs = [pair for both in zip(got, asked, strict=True) for pair in zip(*both, strict=True)]
    return all(p == right(*each) for p, each in pairs if each[1] == len(got))


def refuse_kept(reports: list[dict], when: str) -> None:
    """A Finding where one call leaves something behind for the next."""
    if any(report["spoiled"] for report in reports):
        raise Finding(
            "one list reused",
            f"A later call has changed the list that an earlier one returned, {when}. Each call "
            "returns a list of its own.",
        )
    if not all(report["again"] for report in reports):
        raise Finding(
            "kept between calls",
            f"Asked the same again, your function says something else, {when}. Does it keep "
            "something between calls, such as a list that is a default argument?",
        )


def _look_at_results(told: tuple[dict, ...], when: str) -> None:
    refuse_none(list(told), when, "a list of pieces")
    for rank, one in enumerate(told):
        if one["ops"]:
            raise Finding(
                "a message",
                f"Rank {rank} sent something {when}. Every rank knows all lengths and can work out "
                "its own pieces alone.",
            )
        if one["changed"]:
            raise Finding("input changed", f"Your function changed `lengths`, {when}.")
        if one["pieces"] is None:
            raise Finding(
                "not pieces",
                f"Rank {rank} got a {one['kind']} back {when} that is no list of pieces of four "
                "whole numbers each: (index, start, stop, at).",
            )


def _refuse_first(got: list, asked: list, when: str) -> None:
    """A Finding with the first bucket and rank for which something else is right."""
    for found, these in zip(zip(*got, strict=True), zip(*asked, strict=True), strict=True):
        for pieces, (lengths, n, rank) in zip(found, these, strict=True):
            if pieces != right(lengths, n, rank):
                raise Finding(
                    "wrong pieces",
                    f"Not right for rank {rank} of {n} and lengths {lengths}: you have {pieces}.",
                )


PIECES = Exercise(
    name="pieces_of",
    title="A parameter on two ranks",
    points=3,
    judge=judge_pieces,
    when_right=(
        "Every element of every bucket has one owner: with a parameter over several ranks, with "
        "padding, and with a rank that has nothing, on three ranks and on two."
    ),
    hints=(
        "First the shards, then the parameters: from where to where in the *bucket* does the shard "
        "of `rank` go, and where does each parameter begin?",
        "Two ranges overlap from the larger of their beginnings to the smaller of their ends, if "
        "that is anything.",
        "The overlap is known in positions of the bucket. Subtract where the parameter begins, and "
        "for `at` where the shard begins.",
    ),
)
