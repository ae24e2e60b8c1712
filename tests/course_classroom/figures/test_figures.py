"""Every kind of picture: its numbers are what it was given, in words and in shapes."""

from __future__ import annotations

import ast
import io
import itertools
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from course_classroom.figures import (
    Fit,
    Part,
    activations,
    bandwidth,
    bars,
    blocks,
    by_bits,
    colours,
    course_map,
    f_and_g,
    head_map,
    mesh_rows,
    parameter_life,
    ranks_map,
    ring_steps,
    schedule,
    stacked_bars,
    stage_bars,
    statement,
    timeline,
    who_holds,
    wirings,
    word_rows,
)
from course_classroom.figures.flat_cut import flat_cut
from course_classroom.figures.loss_curve import loss_curve
from course_classroom.figures.run_summary import run_summary
from course_classroom.figures.scaling import ScalingBar, scaling_bars
from course_classroom.figures.schedule import Call, Visit
from course_classroom.figures.states import states
from course_classroom.figures.transpose import Step, transpose
from course_lessons.appendix_e4.pipeline_steps import pipeline_steps
from course_lessons.lesson_10.gradient_memory import gradient_memory
from course_lessons.lesson_10.sent_by_k import sent_by_k
from course_lessons.lesson_11.ahead import ahead
from course_lessons.lesson_11.memory_line import PHASE, Run, memory_line
from course_lessons.lesson_12.crossings import Crossing, crossings
from course_lessons.lesson_12.tiers import tiers
from course_lessons.lesson_13.loss_scale import loss_scale
from course_lessons.lesson_13.schedules import schedules
from course_lessons.lesson_14.logical import logical
from course_lessons.lesson_14.throughput import throughput
from course_lib.extras.axes.schedule import one_f_one_b
from course_lib.layout import Box
from tests.course_lib.extras.axes.test_schedule import timetable

FIGURES = Path(colours.__file__).parent
LESSONS = FIGURES.parents[1] / "course_lessons"
MB = 1_000_000
Span = namedtuple("Span", "op start end waits phase", defaults=((), "forward"))


def numbers(n: int, chunks: int, seed: int = 3) -> list[list[torch.Tensor]]:
    made = torch.Generator().manual_seed(seed)
    return [list(torch.randn(chunks * 4, generator=made).chunk(chunks)) for _ in range(n)]


def called(op: str, elements: int) -> SimpleNamespace:
    return SimpleNamespace(op=op, elements=elements, payload=4 * elements, must=4 * elements)


X = numbers(3, 3)
TOTAL = [X[0][c] + X[1][c] + X[2][c] for c in range(3)]
HEADS = {"q": torch.arange(8.0).view(4, 2), "k": torch.arange(4.0).view(2, 2)}
IDS = torch.tensor([0, 212, 7])
LOOKED_UP = torch.ones(3, 5)
OWN = torch.tensor([True, False, True])[:, None]
RANK = {
    "rank": 0,
    "held_by_tier": {"device": 2 * MB, "host": 3 * MB, "disk": MB},
    "peak": 5 * MB,
    "sent": 3 * MB,
    "sent_by_axis": {"dp": MB, "tp": 2 * MB},
    "estimate": {
        "held_by_tier": {"device": 2 * MB, "host": 3 * MB, "disk": MB},
        "peak": 4 * MB,
        "sent": 3 * MB,
    },
}
STEP = [
    Visit("norm", "forward", ()),
    Visit("mlp.up", "forward", (Call("all_gather", "tp", 120),)),
    Visit("mlp.down", "forward", (Call("reduce_scatter", "tp", 60),)),
    Visit("mlp.down", "backward", ()),
    Visit("mlp.up", "backward", ()),
    Visit("norm", "backward", (Call("all_reduce", "tp", 1234567),)),
]
MEMORY = Run(
    [(0.0, 0, ""), (0.2, 5_500_000, ""), (1.0, 100, "")],
    [
        (0.0, 0, "begin"),
        (0.1, 3 * MB, "come a"),
        (0.4, 0, "go a"),
        (0.5, 0, f"{PHASE}backward"),
        (0.6, 2 * MB, "come b"),
        (0.7, 2 * MB, f"{PHASE}step"),
        (0.8, 0, "go b"),
    ],
    3 * MB,
    4 * MB,
)
LINE = [(step, 5.0 - 0.1 * step) for step in range(1, 21)]
NEAR = [(step, loss + 3e-13) for step, loss in LINE]
WEIGHTS = [{"W": torch.ones(4, 3) * r, "Y": torch.ones(2, 3) * r} for r in range(2)]


def case(words, figure, *args, name="", **more):
    """A picture to be drawn with a title, and its words: all of them, or in a tuple some pieces."""
    return name or figure.__name__, (lambda title: figure(*args, title=title, **more)), words


CASES = [
    case(
        "Activations kept between forward and backward pass, in Φ. whole: norms 2.00, masks 1.00; "
        "3.00 in total. cut: norms 1.00, masks 0.50; 1.50 in total.",
        activations,
        {"whole": {"norms": 800, "masks": 400}, "cut": {"norms": 400, "masks": 200}},
        unit=400,
        called="Φ",
    ),
    case(
        "One rank's messages, by the units' turns. depth 1: 2 × all_gather, 1 × reduce_scatter; "
        "1 gathers begin before the rank waits for the previous one.",
        ahead,
        {
            "depth 1": [
                Span("all_gather", 0, 2, ((1, 2),)),
                Span("reduce_scatter", 0.5, 4),
                Span("all_gather", 0.7, 4, ((3, 4),)),
            ]
        },
    ),
    case(
        "Time and bytes per second against size, both logarithmic. all_reduce measured at 2 sizes "
        "from 1,000 to 1,000,000 bytes; the line through them starts at 1 ms and approaches 1 GB "
        "per second; half of the time is α at 1 MB.",
        bandwidth,
        {"all_reduce": [(1e3, 1e-3), (1e6, 2e-3)]},
        {"all_reduce": Fit(1e-3, 1e-9)},
    ),
    case(
        "sent: gathered 4 MB, cut 400 kB. peak: gathered 27 MB, cut 0 bytes.",
        bars,
        {"sent": {"gathered": 4e6, "cut": 4e5}, "peak": {"gathered": 27e6, "cut": 0.0}},
    ),
    case(
        "Matrices to scale, each block in the colour of its rank. W[h@tp, f]: W, 8 × 3, is sharded "
        "along its rows: 4 on rank 0, 4 on rank 1. Y[b, f]{tp}: Y, 2 × 3, is a partial sum on each "
        "rank: an all-reduce over tp completes it.",
        blocks,
        ["W[h@tp, f]", "Y[b, f]{tp}"],
        WEIGHTS,
    ),
    case(
        "off, %: int8 at 8.12 bits 0.18, nf4 at 4.50 bits 2.81. same: int8 at 8.12 bits 1, nf4 at "
        "4.50 bits 1.",
        by_bits,
        {"int8": 8.125, "nf4": 4.5},
        {"off, %": {"int8": 0.18, "nf4": 2.81}, "same": {"int8": 1.0, "nf4": 1.0}},
    ),
    case(
        (
            "Map of the course. You are here: lesson 06, sequence parallelism. Part I (00, 01)",
            "both need Part I but not each other",
            "09 ZeRO-1: optimizer; 10 ZeRO-2: gradients",
        ),
        lambda title: course_map("06"),
        name="course_map",
    ),
    case(
        "Transfers between the tiers. Forward: host to device 3 kB, file to host 3 kB. "
        "Backward: device to host 3 kB. Step: host to file 6 kB.",
        crossings,
        [
            Crossing("read", 3000, "forward"),
            Crossing("up", 3000, "forward"),
            Crossing("down", 1000, "backward"),
            Crossing("down", 2000, "backward"),
            Crossing("written", 6000, "step"),
        ],
    ),
    case(
        (
            "3 ranks next to each other",
            "its columns of A, applies attention to its own part",
            "which gives a partial sum of Y. Then g completes it, so Y is replicated",
            "f is identity in the forward pass and all-reduce in the backward pass",
            "g is all-reduce in the forward pass and identity in the backward pass",
        ),
        f_and_g,
        3,
        between="attention",
        out="Y",
    ),
    case(
        "The parameters of a bucket, end to end. bucket, rank 0: 7 elements, last to middle, 3 of "
        "the 13 of middle. bucket, rank 1: 7 elements, middle to middle, 7 of the 13 of middle. "
        "bucket, rank 2: 5 elements, middle to first, 3 of the 13 of middle.",
        flat_cut,
        {"bucket": ([("last", 4), ("middle", 13), ("first", 2)], 7)},
        world=3,
    ),
    case(
        "Gradients held. whole: in backward 1 from 8 kB to 9 kB, at most 9 kB; in backward 2 from "
        "8 kB to 8 kB, at most 8 kB. cut: in backward 1 from 0 bytes to 2 kB, at most 2 kB; in "
        "backward 2 from 5 kB to 4 kB, at most 5 kB.",
        gradient_memory,
        {"whole": [[8000, 9000], [8000, 8000]], "cut": [[0, 2000], [5000, 4000]]},
    ),
    case(
        "Heads and the ranks that hold them. q: head 0 on rank 0; head 1 on rank 1; head 2 on "
        "rank 2; head 3 on rank 3. k: head 0 on rank 0 and rank 1; head 1 on rank 2 and rank 3.",
        head_map,
        HEADS,
        [{"q": HEADS["q"][r : r + 1], "k": HEADS["k"][r // 2 :][:1]} for r in range(4)],
    ),
    case(
        "A logical tensor of shape (3, 5), element by element. columns: rank 0 has 6 elements in "
        "1 box, rank 1 has 4 elements in 2 boxes, 5 are in no box.",
        logical,
        (3, 5),
        {"columns": [[Box((0, 0), (3, 2))], [Box((0, 2), (3, 1)), Box((0, 3), (1, 1))]]},
    ),
    case(
        "Loss by step: one goes from 4.900 at step 1 to 3.000 at step 20, and is lowest with "
        "3.000; near goes from 4.900 at step 1 to 3.000 at step 20, and is lowest with 3.000; same "
        "goes from 4.900 at step 1 to 3.000 at step 20, and is lowest with 3.000. near differs "
        "from one by less than 1e-12 at every step. same differs from one by less than 1e-12 at "
        "every step.",
        loss_curve,
        {"one": LINE, "near": NEAR, "same": LINE},
        bound=1e-9,
    ),
    case(
        "Loss scale by step: 64 at step 1, 32 at step 6, between 16 and 64. Steps skipped by an "
        "overflow: 1 to 3, 6.",
        loss_scale,
        [64.0, 64.0, 32.0, 16.0, 16.0, 32.0],
        [True, True, True, False, False, True],
    ),
    case(
        "Memory over the time of a step, above the memory between steps. a block: at most 3.00 MB "
        "of gathered parameters, by the formula 3.00, in 2 hills; all tensors together reach 5.5 "
        "MB.",
        memory_line,
        {"a block": MEMORY},
    ),
    case(
        "dp = 1, tp = 2, a step of 4 rows: rank 0 at dp 0, tp 0 sees 1 to 3; rank 1 at dp 0, tp 1 "
        "sees 2 and 4. dp = 2, tp = 1, a step of 2 rows: rank 0 at dp 0, tp 0 sees 1; rank 1 at "
        "dp 1, tp 0 sees 2.",
        mesh_rows,
        {(1, 2): [(3, 9, 4), (9, 8)], (2, 1): [(1,), (2,)]},
    ),
    case(
        (
            "forward: parameter full, memory 1/2 + 1; then free",
            "backward: parameter full, gradient partial sum, memory 1/2 + 1 + 1; then free",
            "memory 1/2 + 1; then reduce-scatter; backward of earlier units:",
        ),
        parameter_life,
        2,
    ),
    case(
        "Forwards F and backwards B of micro-batches by stage. 1F1B, 9 units: stage 0 takes F0 F1 "
        "B0 B1 and is idle for 3 units; stage 1 takes F0 B0 F1 B1 and is idle for 3 units.",
        pipeline_steps,
        {"1F1B": timetable([one_f_one_b(2, 2, stage) for stage in range(2)])},
    ),
    case(
        "The notebook runs cells on 3 ranks: rank 0 and rank 2 on cuda:0; rank 1 on cuda:1. The "
        "ranks communicate over gloo.",
        ranks_map,
        ["cuda:0", "cuda:1", "cuda:0"],
        "gloo",
    ),
    case(
        "Each chunk with the ranks whose values it sums. before: rank 0 holds 0, 0; rank 1 holds "
        "1, 1. reduce-scatter 1: 0 sends chunk 0 to 1; 1 sends chunk 1 to 0. Then rank 0 holds 0, "
        "0+1; rank 1 holds 0+1, 1. all-gather 1: 0 sends chunk 1 to 1; 1 sends chunk 0 to 0. Then "
        "rank 0 holds 0+1, 0+1; rank 1 holds 0+1, 0+1.",
        ring_steps,
        2,
    ),
    case(
        "Loss from 5.500 at step 1 to 5.000 at step 3. Validation loss 5.400 at step 2. Rank 0 "
        "holds 2 MB on the device, 3 MB on the host, 1 MB on disk, uses 5 MB of the device at the "
        "peak, and sends 3 MB in a step; by formula it holds 2 MB on the device, 3 MB on the host, "
        "1 MB on disk and sends 3 MB; its peak is estimated at 4 MB.",
        run_summary,
        [(1, 5.5), (2, 5.25), (3, 5.0)],
        [(2, 5.4)],
        [RANK],
    ),
    case(
        "Scaling efficiency. here: 1 rank: measured 100 %, predicted 100 %; 2 ranks tp: measured "
        "80 %, predicted 90 %, published 40 %. the article: 8.3B: published 77 %.",
        scaling_bars,
        {
            "here": [ScalingBar("1 rank", 100.0, 100.0), ScalingBar("2 ranks\ntp", 80, 90, 40)],
            "the article": [ScalingBar("8.3B", published=77)],
        },
    ),
    case(
        "The parts of a block in execution order. Forward: norm, mlp.up with "
        "all_gather of 120 over tp, mlp.down with reduce_scatter of 60 over tp. Backward: "
        "mlp.down, mlp.up, norm with all_reduce of 1,234,567 over tp. In norm a rank has a shard "
        "of the tokens, in the other parts all of them.",
        schedule,
        [STEP, STEP],
    ),
    case(
        "Learning rate by update: linear begins at 0, is highest with 0.002 at update 2, and ends "
        "at 0.001; top begins at 0, is highest with 0.001 at update 1, and ends at 0.",
        schedules,
        {"linear": [0.0, 1e-3, 2e-3, 1e-3], "top": [0.0, 1e-3 * (1 - 1e-15), 1e-3, 0.0]},
    ),
    case(
        "Sent by a rank in a step, in units of Ψ. whole: 2 at k = 1, 2 at k = 2, 2 at k = 4. cut: "
        "2 at k = 1, 3 at k = 2, 5 at k = 4.",
        sent_by_k,
        {"whole": {1: 2.0, 2: 2.0, 4: 2.0}, "cut": {1: 2.0, 4: 5.0, 2: 3.0}},
        unit="units of Ψ",
    ),
    case(
        "stage 3: device 4 MB, host 0 bytes. on cpu: device 1 MB, host 3 MB.",
        stacked_bars,
        {"stage 3": {"device": 4e6, "host": 0.0}, "on cpu": {"device": 1e6, "host": 3e6}},
    ),
    case(
        (
            "stage 0 (DDP): 120 GB, parameters 15, gradients 15, optimizer states 90. stage 1: "
            "31.4 GB,",
            "stage 2: 16.6 GB,",
            "stage 3 (FSDP): 1.9 GB",
        ),
        stage_bars,
    ),
    case(
        "The blocks of 4 ranks, on a mesh where rank 0 is dp 0, tp 0; rank 1 is dp 0, "
        "tp 1; rank 2 is dp 1, tp 0; rank 3 is dp 1, tp 1; every rank holds all of a replicated "
        "tensor. X[b@dp, h] (b sharded over dp, replicated over tp) times W[h, f@tp] (f "
        "sharded over tp, replicated over dp) gives Y[b@dp, f@tp] (b sharded over dp, f sharded "
        "over tp): no collective is needed. Y[b@dp, f@tp] (b sharded over dp, f sharded over tp): "
        "an all-gather over tp and an all-gather over dp makes it, Y[b, f] (replicated over dp, "
        "tp).",
        statement,
        ["X[b@dp, h] W[h, f@tp] -> Y[b@dp, f@tp]", "Y[b@dp, f@tp] -> Y[b, f]"],
        dp=2,
        tp=2,
    ),
    case(
        "Bytes per parameter by rank. stage 0: rank 0 12: parameters 4; moments 8. rank 1 12: "
        "parameters 4; moments 8. stage 1: rank 0 8: parameters 4; moments 4, its shard. rank 1 "
        "7.98: parameters 4; moments 3.98, its shard.",
        states,
        {
            "stage 0": [{"parameters": 4.0, "moments": 8.0}] * 2,
            "stage 1": [{"parameters": 4.0, "moments": 4.0}, {"parameters": 4.0, "moments": 3.98}],
        },
        cut={"stage 1": ("moments",)},
        own="its shard",
    ),
    case(
        "Tokens per second by rows. streamed: 40 at 2 rows, 250 at 16 rows. cut: 110 at 2 rows, "
        "230 at 16 rows. Marked: even in time at 13.3 rows.",
        throughput,
        {"streamed": {2: 40.0, 16: 250.0}, "cut": {16: 230.0, 2: 110.0}},
        models={"cut": lambda rows: 10.0 * rows},
        even={"even in time": 13.333},
    ),
    case(
        "device keeps activations. host keeps gradients, the update. disk keeps nothing. From "
        "device to host: gradients, 4Ψ/N. From disk to host: states, 12Ψ/N.",
        tiers,
        {"device": ["activations"], "host": ["gradients", "the update"], "disk": []},
        [("device", "host", "gradients, 4Ψ/N"), ("disk", "host", "states, 12Ψ/N")],
    ),
    case(
        "A lane for each rank, a bar from call to completion. rank 0: 1 × send, 1 × recv; rank 1: "
        "1 × send.",
        timeline,
        [
            [Span("send", 5.0, 5.5), Span("recv", 5.1, 5.7, ((5.2, 5.7),))],
            [Span("send", 5.2, 5.9), Span("recv", 5.2, None)],
        ],
    ),
    case(
        "A program and its transpose, step by step. Forward pass, from left to right: f sends "
        "nothing; g sends all_gather of 48 bytes and all_reduce of 1,240 bytes. Backward pass, "
        "from right to left: g sends nothing; f sends all_reduce of 1,240 bytes.",
        transpose,
        [
            Step("f", [], [called("all_reduce", 310)], "X[b, h]", "dX[b, h]{tp}"),
            Step("g", [called("all_gather", 12), called("all_reduce", 310)], [], "Y", "dY"),
        ],
        start=("X[b, h]", "dX[b, h]"),
    ),
    case(
        "Chunk by chunk, the ranks whose values it sums. after: rank 0 holds 0+1+2, "
        "nothing, nothing; rank 1 holds nothing, 0+1+2, nothing; rank 2 holds nothing, nothing, "
        "0+1+2. on the way: rank 0 holds 0+2, nothing, 1; rank 1 holds nothing, nothing, nothing; "
        "rank 2 holds nothing, nothing, nothing.",
        who_holds,
        {
            "after": [[TOTAL[c] if c == r else None for c in range(3)] for r in range(3)],
            "on the way": [[X[0][0] + X[2][0], None, X[1][2]], [None] * 3, [None] * 3],
        },
        X,
    ),
    case(
        "Elements that rank 0 of 2 must send. mine. A (weight sharded by rows): forward "
        "all_reduce of 6; GELU: no collective; in total 1 collective, 6 sent.",
        wirings,
        {"mine": [Part("A", [called("all_reduce", 6)], cut="rows"), Part("GELU")]},
        ranks=2,
    ),
    case(
        "The ids looked up are 0, 212, 7: rank 0 holds entries 0 to 149, finds 0, 7 and has zeros "
        "for the rest; rank 1 holds entries 150 to 299, finds 212 and has zeros for the rest; rank "
        "2 holds entries 300 to 449, has only zeros.",
        word_rows,
        IDS,
        [LOOKED_UP * OWN, LOOKED_UP * ~OWN, 0 * LOOKED_UP],
        LOOKED_UP,
        [(0, 150), (150, 300), (300, 450)],
    ),
]
GALLERY = {name: (draw, words) for name, draw, words in CASES}
NO_HATCH = {"ring_steps", "states"}  # a label beside each bar, a number in each tile says the rank
SMALLEST = 5.5  # points


def drawn(draw):
    """A picture, and matplotlib's figure of it."""
    from matplotlib import figure

    figures = []

    class Noted(figure.Figure):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            figures.append(self)

    with mock.patch.object(figure, "Figure", Noted):
        return draw(), figures[-1]


def hexes(patches) -> list[str]:
    from matplotlib.colors import to_hex

    return [to_hex(patch.get_facecolor()).upper() for patch in patches]


def words_in(figure) -> list[str]:
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def test_every_kind_of_picture_is_in_the_gallery():
    made = set()
    for path in (*FIGURES.glob("*.py"), *LESSONS.glob("*/*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and getattr(node.returns, "id", "") == "Picture":
                made.add(node.name)
    assert {name for name in made if name[0] != "_"} - {"draw"} == set(GALLERY)


@pytest.mark.parametrize("name", GALLERY)
def test_a_picture_says_its_numbers_cuts_nothing_off_and_needs_no_colours(name):
    from matplotlib.patches import Patch
    from matplotlib.text import Text
    from PIL import Image

    draw, words = GALLERY[name]
    title = f"The title of {name}, which is longer than a small picture would be wide on its own"
    picture, figure = drawn(lambda: draw(title))
    if isinstance(words, tuple):
        assert [piece for piece in words if piece not in picture.alt] == []
    else:
        assert picture.alt == f"{title}. {words}"
        assert draw("").alt == words
    assert len(picture.png) < 200_000
    # A white card reads in a dark notebook, and ink on its border would be a label that is cut.
    page = np.asarray(Image.open(io.BytesIO(picture.png)).convert("RGB"))
    for edge in (page[0], page[-1], page[:, 0], page[:, -1]):
        assert (edge == 255).all()
    assert name == "course_map" or title in words_in(figure)
    texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert min(text.get_fontsize() for text in texts) >= SMALLEST
    high, wide, _ = page.shape
    for text in [text for axis in figure.axes for text in axis.texts] + figure.texts:
        box = text.get_window_extent()
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= wide and box.y1 <= high, text
    papers = {text.get_bbox_patch() for text in texts}
    shapes = [shape for shape in figure.findobj(Patch) if shape not in papers]
    for shape, colour in zip(shapes, hexes(shapes), strict=True):
        if colour in colours.RANKS and name not in NO_HATCH:
            assert (shape.get_hatch() or "") == colours.HATCHES[colours.RANKS.index(colour)]


def lengths(name: str, way: str = "get_width", axis: int = 0) -> list[float]:
    """How long the bars of one axis of a picture of the gallery are."""
    return [
        getattr(bar, way)() for bar in drawn(lambda: GALLERY[name][0](""))[1].axes[axis].patches
    ]


@pytest.mark.parametrize(
    ("name", "how", "wanted"),
    [
        ("activations", {}, [2, 1, 1, 0.5]),
        ("bars", {}, [4e6, 4e5]),
        ("bars", {"axis": 1}, [27e6, 0]),
        ("stacked_bars", {}, [4, 0, 1, 3]),
        (
            "stage_bars",
            {},
            [15, 15, 90, 15, 15, 90 / 64, 15, 15 / 64, 90 / 64] + [x / 64 for x in (15, 15, 90)],
        ),
        ("states", {}, [4, 4, 8, 8] * 2 + [4, 4, 4, 4, 4, 4, 3.98, 3.98]),  # each with its band
        ("flat_cut", {}, [4, 3, 7, 3, 2]),
        ("crossings", {"way": "get_height", "axis": 0}, [1000, 2000]),
        ("crossings", {"way": "get_height", "axis": 3}, [6000]),
        ("scaling_bars", {"way": "get_height"}, [100, 100, 80, 90, 40]),
        ("run_summary", {"axis": 1}, [2, 3, 3, 1]),  # held, more at the peak; host; disk
        ("run_summary", {"axis": 2}, [1, 2]),
        ("timeline", {}, [500, 600, 700]),
    ],
)
def test_a_bar_is_as_long_as_its_number(name, how, wanted):
    assert lengths(name, **how) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("name", "axis", "wanted"),
    [
        ("gradient_memory", 0, [([1, 2, 3, 4], [8, 9, 8, 8]), ([1, 2, 3, 4], [0, 2, 5, 4])]),
        ("sent_by_k", 0, [([1, 2, 4], [2, 2, 2]), ([1, 2, 4], [2, 3, 5])]),
        (
            "loss_scale",
            0,
            [(range(1, 7), [64, 64, 32, 16, 16, 32]), ([1, 2, 3, 6], [64, 64, 32, 32])],
        ),
        ("schedules", 0, [(range(4), [0, 1e-3, 2e-3, 1e-3])]),
        ("throughput", 0, [([2, 16], [40, 250]), ([2, 16], [110, 230])]),
        ("bandwidth", 0, [([1e3, 1e6], [1, 2])]),
        ("bandwidth", 1, [([1e3, 1e6], [1e-3, 0.5])]),
        ("run_summary", 0, [([1, 2, 3], [5.5, 5.25, 5.0]), ([2], [5.4])]),
        # the marks of the closed forms: device, its estimated peak, host, disk
        ("run_summary", 1, [([x, x], None) for x in (2, 4, 3, 1)]),
        ("by_bits", 0, [([8.125], [0.18]), ([4.5], [2.81])]),
        ("loss_curve", 1, [(range(1, 21), [3e-13] * 20), (range(1, 21), [1e-17] * 20)]),
    ],
)
def test_a_line_goes_through_its_numbers(name, axis, wanted):
    lines = drawn(lambda: GALLERY[name][0](""))[1].axes[axis].lines
    for line, (x, y) in zip(lines, wanted, strict=False):
        assert list(line.get_xdata()) == pytest.approx(list(x))
        assert y is None or list(line.get_ydata()) == pytest.approx(y, rel=0.01)


def test_the_same_tensors_give_the_same_file():
    for name in ("who_holds", "statement"):
        assert GALLERY[name][0]("x").png == GALLERY[name][0]("x").png


def test_importing_figures_loads_no_matplotlib():
    code = "import sys, course_classroom.figures; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_picture_carries_its_words_into_the_notebook(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **more: shown.append((data, more)))
    colours.Picture(b"png", "a < b", 100)._ipython_display_()
    image, words = shown
    assert image[0] == {"image/png": b"png", "text/plain": "a < b"}
    assert image[1]["metadata"]["image/png"]["alt"] == "a < b"
    assert "a &lt; b" in words[0]["text/html"]


def seen(colour: str, blindness: str = "none") -> np.ndarray:
    """How a colour looks to an eye without one kind of cone (Viénot, Brettel and Mollon)."""
    matrices = {
        "none": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        "protan": [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
        "deutan": [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
    }
    linear = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]) ** 2.2
    return np.maximum(np.array(matrices[blindness]) @ linear, 0) ** (1 / 2.2)


@pytest.mark.parametrize("blindness", ["none", "protan", "deutan"])
def test_the_first_four_ranks_are_told_apart_by_every_eye(blindness):
    for a, b in itertools.combinations(colours.RANKS[:4], 2):
        assert np.linalg.norm(seen(a, blindness) - seen(b, blindness)) > 0.25
    assert len(set(colours.HATCHES)) == len(colours.RANKS)  # and by their hatches in any case


def test_methods_are_told_apart_without_any_colour_and_are_no_ranks():
    for a, b in itertools.product(colours.METHODS, colours.RANKS):
        assert np.linalg.norm(seen(a) - seen(b)) > 0.25
    letters = {letter for hatch in colours.HATCHES for letter in hatch}
    assert not letters & {letter for hatch in colours.METHOD_HATCHES for letter in hatch}

    def lightness(colour: str) -> float:
        return float(np.dot([0.2126, 0.7152, 0.0722], seen(colour) ** 2.2)) ** (1 / 2.2)

    for several, least in ((colours.METHODS, 0.05), (colours.METHODS[:4], 0.15)):
        light = sorted(map(lightness, several))
        assert all(b - a > least for a, b in itertools.pairwise(light))
    assert all(lightness(colours.line_of_method(i)) < 0.6 for i in range(8))  # seen as a line
    looks = [
        (colours.method(i), colours.mark_look(i)["marker"], colours.line_look(i)["linestyle"])
        for i in range(10)
    ]
    assert len(set(looks)) == 10
