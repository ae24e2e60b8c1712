"""`read_config` of lesson 13: what a printed config comes to on two GPUs, in numbers.

The right numbers follow from the config's own, DeepSpeed's defaults and the Trainer's formulas;
each wrong idea from another count.
"""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.classroom.checks.thought import Mistake, Thought, compare
from course_lib.classroom.checks.words import Page

SAYS = Page("lesson_13/read_config")

GPUS, HIDDEN = 2, 1024  # in the question
MICRO, TIMES, ASKED, BUCKET = 4, 8, 0.3, 2e8  # in the config that it prints
BYTES, OVERLAP = 2, 4.5
CLIPPING, REDUCE = 1.0, 5e8  # DeepSpeed's defaults
BATCH, CLIP, ROOM = "batch", "clipping", "buckets, GB"
BY_TRAINER = ("reduce_bucket_size", "stage3_prefetch_bucket_size")
PERSIST, ALONE = "stage3_param_persistence_threshold", "reduce_bucket_size, own loop"
STAGE, RAISE = "stage, misspelt", "misspellings that raise"
FIELDS = (BATCH, CLIP, ROOM, *BY_TRAINER, PERSIST, ALONE, STAGE, RAISE)

RIGHT = {
    BATCH: MICRO * TIMES * GPUS,
    CLIP: CLIPPING,
    ROOM: OVERLAP * 2 * BUCKET * BYTES / 1e9,
    BY_TRAINER[0]: HIDDEN**2,
    BY_TRAINER[1]: int(0.9 * HIDDEN**2),
    PERSIST: 10 * HIDDEN,
    ALONE: REDUCE,
    STAGE: 0,
    RAISE: 1,
}
MISTAKES = (
    Mistake(*SAYS.of("one GPU's batch"), {BATCH: MICRO * TIMES}),
    Mistake(*SAYS.of("accumulation forgotten"), {BATCH: MICRO * GPUS}),
    Mistake(*SAYS.of("ranks counted twice"), {BATCH: MICRO * TIMES * GPUS**2}),
    Mistake(*SAYS.of("a micro-batch"), {BATCH: MICRO}),
    Mistake(*SAYS.of("what the author meant #1"), {CLIP: ASKED, STAGE: 2}),
    Mistake(*SAYS.of("no clipping"), {CLIP: 0.0}),
    Mistake(*SAYS.of("what the author meant #2"), {STAGE: 3}),
    Mistake(*SAYS.of("a default above zero"), {STAGE: 1}),
    Mistake(*SAYS.of("overlap costs nothing #1"), {ROOM: 2 * BUCKET * BYTES / 1e9}),
    Mistake(*SAYS.of("half of it"), {ROOM: OVERLAP * BUCKET * BYTES / 1e9}),
    Mistake(*SAYS.of("overlap costs nothing #2"), {ROOM: BUCKET * BYTES / 1e9}),
    Mistake(*SAYS.of("float32"), {ROOM: OVERLAP * 2 * BUCKET * 4 / 1e9}),
    Mistake(*SAYS.of("elements alone"), {ROOM: OVERLAP * BUCKET / 1e9}),
    Mistake(*SAYS.of("GiB"), {ROOM: OVERLAP * 2 * BUCKET * BYTES / 2**30}),
    Mistake(*SAYS.of("over the GPUs"), {ALONE: REDUCE / GPUS}),
    Mistake(
        *SAYS.of("hidden size, not its square"),
        {BY_TRAINER[0]: HIDDEN, BY_TRAINER[1]: int(0.9 * HIDDEN)},
    ),
    Mistake(
        *SAYS.of("bytes"),
        {
            BY_TRAINER[0]: BYTES * HIDDEN**2,
            BY_TRAINER[1]: BYTES * int(0.9 * HIDDEN**2),
            PERSIST: BYTES * 10 * HIDDEN,
            ALONE: BYTES * REDUCE,
        },
    ),
    Mistake(*SAYS.of("all of the bucket"), {BY_TRAINER[1]: HIDDEN**2}),
    Mistake(*SAYS.of("the share of the prefetch"), {BY_TRAINER[0]: int(0.9 * HIDDEN**2)}),
    Mistake(
        *SAYS.of("the file's own"), {BY_TRAINER[0]: BUCKET, BY_TRAINER[1]: BUCKET, ALONE: BUCKET}
    ),
    Mistake(*SAYS.of("no bucket"), {ALONE: 0}),
    Mistake(*SAYS.of("persistence of a matrix"), {PERSIST: HIDDEN**2}),
    Mistake(*SAYS.of("one vector"), {PERSIST: HIDDEN}),
    Mistake(*SAYS.of("the square as well"), {PERSIST: 10 * HIDDEN**2}),
    Mistake(*SAYS.of("resolved by nobody"), {ALONE: HIDDEN**2}),
    Mistake(*SAYS.of("the prefetch's default"), {ALONE: 5e7}),
    Mistake(
        *SAYS.of("DeepSpeed's default"), {BY_TRAINER[0]: 5e8, BY_TRAINER[1]: 5e7, PERSIST: 1e5}
    ),
    Mistake(*SAYS.of("all of them raise"), {RAISE: 3}),
    Mistake(*SAYS.of("none of them raises"), {RAISE: 0}),
    Mistake(*SAYS.of("two of them raise"), {RAISE: 2}),
)


def judge_clinic(given: Mapping) -> None:
    """Hold the numbers against what the config comes to, and misreadings by name."""
    compare(given, RIGHT, MISTAKES, apart=True)


READ_CONFIG = Thought(fields=FIELDS, judge=judge_clinic, **SAYS.about)
