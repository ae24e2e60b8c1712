"""`read_config` of lesson 13: the effect of a printed config on two GPUs, from its own numbers,
DeepSpeed's defaults and the Trainer's formulas. A wrong idea uses different counts."""

from __future__ import annotations

from course_classroom.judge.thought import Thought, held_against, named
from course_classroom.judge.words import Page
from course_lib.peers.deepspeed_config.auto import SIZES

SAYS = Page(__file__, "read_config")

GPUS, HIDDEN = 2, 1024  # in the question
MICRO, TIMES, ASKED, BUCKET = 4, 8, 0.3, 2e8  # in the config that it prints
BYTES, OVERLAP = 2, 4.5
CLIPPING, REDUCE = 1.0, 5e8  # DeepSpeed's defaults
BATCH, CLIP, ROOM, ALONE = "batch", "clipping", "buckets, GB", "reduce_bucket_size, own loop"
SUM, AHEAD, PERSIST = (path.partition(".")[2] for path in SIZES)  # by the Trainer
STAGE, RAISE = "stage, misspelt", "misspellings that raise"

RIGHT = {
    BATCH: MICRO * TIMES * GPUS,
    CLIP: CLIPPING,
    ROOM: OVERLAP * 2 * BUCKET * BYTES / 1e9,
    **{path.partition(".")[2]: of(HIDDEN) for path, (_, of) in SIZES.items()},
    ALONE: REDUCE,
    STAGE: 0,
    RAISE: 1,
}
IDEAS = {
    "one GPU's batch": {BATCH: MICRO * TIMES},
    "accumulation forgotten": {BATCH: MICRO * GPUS},
    "ranks counted twice": {BATCH: MICRO * TIMES * GPUS**2},
    "a micro-batch": {BATCH: MICRO},
    "what the author meant #1": {CLIP: ASKED, STAGE: 2},
    "no clipping": {CLIP: 0.0},
    "what the author meant #2": {STAGE: 3},
    "a default above zero": {STAGE: 1},
    "overlap costs nothing #1": {ROOM: 2 * BUCKET * BYTES / 1e9},
    "half of it": {ROOM: OVERLAP * BUCKET * BYTES / 1e9},
    "overlap costs nothing #2": {ROOM: BUCKET * BYTES / 1e9},
    "float32": {ROOM: OVERLAP * 2 * BUCKET * 4 / 1e9},
    "only elements": {ROOM: OVERLAP * BUCKET / 1e9},
    "GiB": {ROOM: OVERLAP * 2 * BUCKET * BYTES / 2**30},
    "over the GPUs": {ALONE: REDUCE / GPUS},
    "hidden size, not its square": {SUM: HIDDEN, AHEAD: int(0.9 * HIDDEN)},
    "bytes": {field: BYTES * RIGHT[field] for field in (SUM, AHEAD, PERSIST, ALONE)},
    "full bucket": {AHEAD: HIDDEN**2},
    "the share of the prefetch": {SUM: int(0.9 * HIDDEN**2)},
    "value from the file": dict.fromkeys((SUM, AHEAD, ALONE), BUCKET),
    "no bucket": {ALONE: 0},
    "persistence of a matrix": {PERSIST: HIDDEN**2},
    "one vector": {PERSIST: HIDDEN},
    "squared": {PERSIST: 10 * HIDDEN**2},
    "auto not resolved": {ALONE: HIDDEN**2},
    "the prefetch's default": {ALONE: 5e7},
    "DeepSpeed's default": {SUM: 5e8, AHEAD: 5e7, PERSIST: 1e5},
    "all of them raise": {RAISE: 3},
    "none of them raises": {RAISE: 0},
    "two of them raise": {RAISE: 2},
}
MISTAKES = named(SAYS, IDEAS)

READ_CONFIG = Thought(
    fields=tuple(RIGHT), judge=held_against(RIGHT, MISTAKES, apart=True), **SAYS.about
)
