"""Pictures are drawn from what was executed, say in words what they show, and survive dark mode."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
from collections import namedtuple

import pytest
import torch

from course_lib.figures import Fit, bandwidth, colours, fit, ranks_map, timeline, who_holds
from course_lib.figures.bandwidth import smooth
from course_lib.figures.timeline import ready_times, tracks

Span = namedtuple("Span", "op start end waits")


def pixels(picture):
    from PIL import Image

    return Image.open(io.BytesIO(picture.png)).convert("RGB")


def numbers(n: int, chunks: int) -> list[list[torch.Tensor]]:
    made = torch.Generator().manual_seed(3)
    return [list(torch.randn(chunks * 4, generator=made).chunk(chunks)) for _ in range(n)]


def test_importing_figures_loads_no_matplotlib():
    code = "import sys, course_lib.figures; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_who_holds_finds_out_whose_numbers_are_in_a_chunk():
    x = numbers(3, 3)
    total = [x[0][c] + x[1][c] + x[2][c] for c in range(3)]
    scattered = [[total[c] if c == r else None for c in range(3)] for r in range(3)]
    partial = [[x[0][0] + x[2][0], None, x[1][2]], [None] * 3, [None] * 3]
    words = who_holds({"after": scattered, "on the way": partial}, x).alt
    assert "after: rank 0 holds 0+1+2, nothing, nothing; rank 1 holds nothing, 0+1+2" in words
    assert "on the way: rank 0 holds 0+2, nothing, 1; rank 1" in words


def test_who_holds_refuses_a_picture_of_what_is_not_so():
    x = numbers(2, 2)
    doubled = [[2 * x[0][0], x[0][1]], x[1]]
    with pytest.raises(ValueError, match=r"after, rank 0, chunk 0.*no sum of the ranks' own"):
        who_holds({"after": doubled}, x)


def test_a_map_says_who_computes_where():
    words = ranks_map(["cuda:0", "cuda:1", "cuda:0"], "gloo", title="Three on two").alt
    assert words == (
        "Three on two. The notebook runs cells on 3 ranks: rank 0 and rank 2 on cuda:0; "
        "rank 1 on cuda:1. The ranks speak gloo to each other."
    )
    assert "speak" not in ranks_map(["cpu"], "gloo").alt
    with pytest.raises(ValueError, match="no ranks to draw"):
        ranks_map([], "gloo")


def test_a_timeline_tells_counts_and_order_but_no_times():
    spans = [
        [Span("send", 5.0, 5.5, ()), Span("recv", 5.1, 5.7, ((5.2, 5.7),))],
        [Span("send", 5.2, 5.9, ()), Span("recv", 5.2, None, ())],
    ]
    picture = timeline(spans, title="A ring")
    assert picture.alt == (
        "A ring. A lane for each rank, a bar from call to completion. "
        "rank 0: 1 × send, 1 × recv; rank 1: 1 × send."
    )


def test_a_timeline_without_a_completed_call_says_so():
    """One rank's ring sends nothing, and a lesson on one rank goes on."""
    words = "No rank has completed a call. A group of one rank sends no messages."
    assert timeline([[Span("recv", 5.2, None, ())]], title="A ring").alt == f"A ring. {words}"
    assert timeline([[]]).alt == words


def test_a_collective_moves_nothing_until_the_last_rank_has_called():
    early = [Span("all_reduce", 1.0, 4.0, ()), Span("all_reduce", 2.0, 5.0, ())]
    late = [Span("all_reduce", 3.0, 4.0, ()), Span("all_reduce", 3.5, 5.0, ())]
    assert ready_times([early, late], "all_reduce") == [3.0, 3.5]
    split, plain = (timeline([early, late], together=ops) for ops in (("all_reduce",), ()))
    assert "A bar of all_reduce is hollow until every rank has called it." in split.alt
    assert "hollow" not in plain.alt
    filled = [
        sum(count for count, rgb in pixels(one).getcolors(1 << 24) if rgb == (0x00, 0x72, 0xB2))
        for one in (split, plain)
    ]
    assert filled[0] < 0.6 * filled[1]  # of rank 0's four seconds two are waiting
    with pytest.raises(ValueError, match=r"the ranks made \[2, 1\] calls of all_reduce"):
        timeline([early, late[:1]], together=("all_reduce",))


def test_calls_under_way_at_one_time_do_not_cover_each_other():
    assert tracks([(0, 2), (1, 3), (2, 4), (2.5, 3), (5, 6)]) == [0, 1, 0, 2, 0]
    assert tracks([]) == []


def test_the_fit_is_drawn_as_a_curve_through_200_sizes():
    line = Fit(4e-4, 1e-9)
    curve = smooth(line, [1e3, 1e5, 1e7])
    assert len(curve) == 200 and curve[0][0] == 1e3 and curve[-1][0] == pytest.approx(1e7)
    assert all(seconds == line.seconds(size) for size, seconds in curve)
    steps = [b / a for (a, _), (b, _) in itertools.pairwise(curve)]
    assert max(steps) == pytest.approx(min(steps))  # even on a logarithmic axis


def test_one_line_has_its_alpha_its_ceiling_and_the_size_between_marked():
    points = [(10.0**k, 1e-3 + 10.0**k / 1e9) for k in range(3, 9)]
    one = bandwidth({"a": points}, {"a": Fit(1e-3, 1e-9)})
    two = bandwidth({"a": points, "b": points}, {"a": Fit(1e-3, 1e-9), "b": Fit(1e-3, 1e-9)})
    assert "half of the time is α at 1 MB" in one.alt
    assert "half of the time" not in two.alt


def test_a_fit_finds_the_line_that_made_the_points():
    sizes = [1e3, 1e4, 1e5, 1e6, 1e7]
    line = fit(sizes, [4e-4 + b / 2e9 for b in sizes])
    assert line.alpha == pytest.approx(4e-4, rel=1e-6)
    assert line.bytes_per_second == pytest.approx(2e9, rel=1e-6)
    assert line.half == pytest.approx(8e5, rel=1e-6)
    assert line.seconds(0) == line.alpha


def test_a_fit_weighs_small_messages_as_much_as_large_ones():
    # One large size takes twice as long, as where a cache overflows.
    sizes = [1e3, 1e4, 1e5, 1e6, 1e7, 3e7]
    times = [4e-4 + b / 2e9 for b in sizes]
    times[-2] *= 2
    line = fit(sizes, times)
    assert line.alpha == pytest.approx(4e-4, rel=0.05)  # an unweighted line would start at 11e-4


def test_a_fit_needs_two_sizes():
    with pytest.raises(ValueError, match="two points or more"):
        fit([1.0], [1.0])
    with pytest.raises(ValueError, match="all sizes are the same"):
        fit([8.0, 8.0], [1.0, 2.0])


def test_bandwidth_says_what_was_measured():
    points = [(1000.0, 1e-3), (1e6, 2e-3)]
    picture = bandwidth({"all_reduce": points}, {"all_reduce": Fit(1e-3, 1e-9)}, title="here")
    assert "2 sizes from 1,000 to 1,000,000 bytes" in picture.alt
    assert "starts at 1 ms and approaches 1 GB per second" in picture.alt
    with pytest.raises(ValueError, match="two sizes or more"):
        bandwidth({"all_reduce": points[:1]})


def draw_holds():
    x = numbers(4, 4)
    return who_holds({"before": x, "a very long name of a verb": x}, x, title="four")


def draw_narrow():
    x = numbers(2, 2)
    return who_holds({"before": x, "all_reduce": x, "another": x, "and another": x}, x)


def draw_timeline():
    return timeline([[Span("send", 0.0, 1.0, ((0.5, 1.0),))]] * 4, title="four")


def draw_bandwidth():
    return bandwidth({"a": [(1.0, 1.0), (2.0, 2.0)], "b": [(1.0, 2.0), (2.0, 3.0)]})


def draw_map():
    return ranks_map([f"cuda:{r % 3}" for r in range(8)], "gloo", title="eight on three")


@pytest.mark.parametrize("draw", [draw_holds, draw_narrow, draw_timeline, draw_bandwidth, draw_map])
def test_each_picture_is_small_a_white_card_and_cuts_nothing_off(draw):
    picture = draw()
    assert len(picture.png) < 200_000
    image = pixels(picture)
    width, height = image.size
    edge = [(x, y) for x in range(width) for y in (0, height - 1)]
    edge += [(x, y) for x in (0, width - 1) for y in range(height)]
    # Ink on the border would be a title or a label that has been cut.
    assert all(image.getpixel(at) == (255, 255, 255) for at in edge)
    assert len(image.getcolors(maxcolors=width * height)) > 20  # something is drawn


def test_the_same_tensors_give_the_same_file():
    first, second = (who_holds({"before": numbers(3, 3)}, numbers(3, 3)) for _ in range(2))
    assert first.png == second.png


def test_a_picture_carries_its_words_into_the_notebook(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **more: shown.append((data, more)))
    picture = colours.Picture(b"png", "a < b", 100)
    picture._ipython_display_()
    image, words = shown
    assert image[0] == {"image/png": b"png", "text/plain": "a < b"}
    assert image[1]["metadata"]["image/png"]["alt"] == "a < b"
    assert "a &lt; b" in words[0]["text/html"]


def _seen(colour: str, blindness: str) -> tuple[float, float, float]:
    """How a colour looks to an eye without one kind of cone (Viénot, Brettel and Mollon)."""
    matrices = {
        "none": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        "protan": [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
        "deutan": [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
    }
    linear = [(int(colour[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5)]
    mixed = (sum(k * v for k, v in zip(row, linear, strict=True)) for row in matrices[blindness])
    return tuple(max(0.0, v) ** (1 / 2.2) for v in mixed)


@pytest.mark.parametrize("blindness", ["none", "protan", "deutan"])
def test_the_first_four_ranks_are_told_apart_by_every_eye(blindness):
    seen = [_seen(colour, blindness) for colour in colours.RANKS[:4]]
    for a, b in itertools.combinations(seen, 2):
        assert sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5 > 0.25
    assert len(set(colours.HATCHES)) == len(colours.RANKS)  # and by their hatches in any case
