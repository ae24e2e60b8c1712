"""`read_config` of lesson 13: what a printed config comes to on two GPUs, in numbers.

The right numbers follow from the config's own, DeepSpeed's defaults and the Trainer's formulas;
each wrong idea from another count.
"""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.classroom.checks.thought import Mistake, Thought, compare
from course_lib.classroom.checks.words import Page

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
    Mistake("one GPU's batch", "That is what one GPU sees before an update. Every rank brings as "
            "much.", {BATCH: MICRO * TIMES}),
    Mistake("accumulation forgotten", "An update waits for all micro-batches of the accumulation.",
            {BATCH: MICRO * GPUS}),
    Mistake("ranks counted twice", "Each micro-batch belongs to one rank: every rank counts once.",
            {BATCH: MICRO * TIMES * GPUS**2}),
    Mistake("a micro-batch", "That is one micro-batch of one GPU.", {BATCH: MICRO}),
    Mistake("what the author meant", "That is what was meant. The key is misspelt at the top "
            "level, where DeepSpeed ignores what it does not know, and its default holds.",
            {CLIP: ASKED, STAGE: 2}),
    Mistake("no clipping", "In this release a file without the key does not mean no clipping.",
            {CLIP: 0.0}),
    Mistake("what the author meant", "Stage 3 stands nowhere in the file; and the misspelt "
            "section is not read at all.", {STAGE: 3}),
    Mistake("a default above zero", "Without a section that DeepSpeed can read ZeRO is off.",
            {STAGE: 1}),
    Mistake("overlap costs nothing", "With `overlap_comm` the buckets are there more than once: "
            "DeepSpeed's page has the factor, and it is no whole number.",
            {ROOM: 2 * BUCKET * BYTES / 1e9}),
    Mistake("half of it", "There are two buckets, each element has two bytes, and no bucket is "
            "shared by two GPUs: a factor of two is missing.",
            {ROOM: OVERLAP * BUCKET * BYTES / 1e9}),
    Mistake("overlap costs nothing", "With `overlap_comm` the buckets are there more than once, "
            "and there are two of them.", {ROOM: BUCKET * BYTES / 1e9}),
    Mistake("float32", "The elements of these buckets have 16 bits.",
            {ROOM: OVERLAP * 2 * BUCKET * 4 / 1e9}),
    Mistake("elements alone", "That counts the elements of one bucket, without bytes and without "
            "the second.", {ROOM: OVERLAP * BUCKET / 1e9}),
    Mistake("GiB", "Those are GiB, of 2³⁰ bytes. 1 GB is 10⁹ bytes.",
            {ROOM: OVERLAP * 2 * BUCKET * BYTES / 2**30}),
    Mistake("over the GPUs", "A bucket is not sharded: each GPU has its own.",
            {ALONE: REDUCE / GPUS}),
    Mistake("hidden size, not its square", "A bucket is as large as a square weight matrix of "
            "the model.", {BY_TRAINER[0]: HIDDEN, BY_TRAINER[1]: int(0.9 * HIDDEN)}),
    Mistake("bytes", "These sizes count elements, not bytes.",
            {BY_TRAINER[0]: BYTES * HIDDEN**2, BY_TRAINER[1]: BYTES * int(0.9 * HIDDEN**2),
                PERSIST: BYTES * 10 * HIDDEN, ALONE: BYTES * REDUCE, }),
    Mistake("all of the bucket", "The Trainer asks for a little less than that to be fetched "
            "ahead.", {BY_TRAINER[1]: HIDDEN**2}),
    Mistake("the share of the prefetch", "A little less than that is what the prefetch has; a "
            "bucket of gradients has it all.", {BY_TRAINER[0]: int(0.9 * HIDDEN**2)}),
    Mistake("the file's own", "That stands in the file as it is printed. Here the value of this "
            "key is `auto`.", {BY_TRAINER[0]: BUCKET, BY_TRAINER[1]: BUCKET, ALONE: BUCKET}),
    Mistake("no bucket", "DeepSpeed trains on all the same: what it cannot read it replaces by "
            "its default.", {ALONE: 0}),
    Mistake("persistence of a matrix", "What stays on every rank are biases and norms, some "
            "times the hidden size; no matrix.", {PERSIST: HIDDEN**2}),
    Mistake("one vector", "A few vectors of the hidden size together count as small, not just one.",
            {PERSIST: HIDDEN}),
    Mistake("the square as well", "This one does not go with the square: what stays on every "
            "rank has to be small.", {PERSIST: 10 * HIDDEN**2}),
    Mistake("resolved by nobody", "Without the Trainer no program puts the hidden size in. "
            "DeepSpeed takes its own default, and prints no message.", {ALONE: HIDDEN**2}),
    Mistake("the prefetch's default", "That is the default of the prefetch's bucket.",
            {ALONE: 5e7}),
    Mistake("DeepSpeed's default", "That is DeepSpeed's default. Under the Trainer it is worked "
            "out from the hidden size.", {BY_TRAINER[0]: 5e8, BY_TRAINER[1]: 5e7, PERSIST: 1e5}),
    Mistake("all of them raise", "The top level is read key by key, and what is left over is not "
            "looked at.", {RAISE: 3}),
    Mistake("none of them raises", "A section under `zero_optimization` is a model with declared "
            "fields, and refuses others.", {RAISE: 0}),
    Mistake("two of them raise", "Two of the three stand on the same level, and meet the same.",
            {RAISE: 2}),
)  # fmt: skip


def judge_clinic(given: Mapping) -> None:
    """Hold the numbers against what the config comes to, and misreadings by name."""
    compare(given, RIGHT, MISTAKES, apart=True)


READ_CONFIG = Thought(fields=FIELDS, judge=judge_clinic, **Page("lesson_13/read_config").about)
