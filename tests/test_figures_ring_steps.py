"""The ring that is drawn is a ring that was run: who sends what, and whose parts a chunk sums."""

from __future__ import annotations

import io

import pytest
import torch

from course_lib.figures import ring_steps
from course_lib.figures.ring_steps import ring_frames

EVERY = (2, 3, 4, 5, 8)


@pytest.mark.parametrize("n", EVERY)
def test_a_ring_of_n_is_complete_after_2_n_minus_1_steps_and_half_way_each_rank_has_one(n):
    frames = ring_frames(n)
    everybody = tuple(range(n))
    assert len(frames) == 1 + 2 * (n - 1)
    assert frames[0].held == tuple(((r,),) * n for r in range(n)) and not frames[0].sends
    half = frames[n - 1].held
    done = [[c for c in range(n) if half[r][c] == everybody] for r in range(n)]
    assert done == [[(r + 1) % n] for r in range(n)]  # as in the ring of lesson 01
    assert all(chunk == everybody for row in frames[-1].held for chunk in row)
    assert not all(chunk == everybody for row in frames[-2].held for chunk in row)


@pytest.mark.parametrize("n", EVERY)
def test_in_each_step_every_rank_sends_one_chunk_to_the_next_and_no_two_the_same(n):
    for frame in ring_frames(n)[1:]:
        assert [send.sender for send in frame.sends] == list(range(n))
        assert all(send.receiver == (send.sender + 1) % n for send in frame.sends)
        assert len({send.chunk for send in frame.sends}) == n


@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_messages_drawn_make_the_sums_drawn(n):
    """The same messages, carried out on random tensors, give the sums that the frames name."""
    made = torch.Generator().manual_seed(n)
    start = torch.randn(n, n, 5, generator=made, dtype=torch.float64)  # (rank, chunk, numbers)
    held, frames = start.clone(), ring_frames(n)
    for number, frame in enumerate(frames[1:], 1):
        before = held.clone()
        for send in frame.sends:
            arrived = before[send.sender, send.chunk]
            adds = number < n
            held[send.receiver, send.chunk] = arrived + (
                before[send.receiver, send.chunk] if adds else 0.0
            )
        assert frame.name == (f"reduce-scatter {number}" if number < n else
                              f"all-gather {number + 1 - n}")  # fmt: skip
        for rank, row in enumerate(frame.held):
            for chunk, owners in enumerate(row):
                torch.testing.assert_close(held[rank, chunk], start[list(owners), chunk].sum(0))
    for rank in range(n):
        torch.testing.assert_close(held[rank], start.sum(0))


def test_the_words_tell_each_step():
    words = ring_steps(2, title="A ring").alt
    assert words == (
        "A ring. Whose parts each chunk sums. before: rank 0 holds 0, 0; rank 1 holds 1, 1. "
        "reduce-scatter 1: 0 sends chunk 0 to 1; 1 sends chunk 1 to 0. Then rank 0 holds 0, 0+1; "
        "rank 1 holds 0+1, 1. all-gather 1: 0 sends chunk 1 to 1; 1 sends chunk 0 to 0. Then "
        "rank 0 holds 0+1, 0+1; rank 1 holds 0+1, 0+1."
    )
    one = ring_steps(3, step=2).alt
    assert "reduce-scatter 2: 0 sends chunk 2 to 1" in one and "all-gather" not in one


def test_what_is_no_ring_is_refused():
    for n in (0, 1, 9):
        with pytest.raises(ValueError, match="2 to 8 ranks"):
            ring_steps(n)
    for step in (-1, 5):
        with pytest.raises(ValueError, match="the ring of 3 has the steps 0 to 4"):
            ring_steps(3, step=step)


@pytest.mark.parametrize(
    "how", [{"n": 2}, {"n": 3}, {"n": 4}, {"n": 4, "step": 6}, {"n": 3, "step": 0}]
)
def test_the_picture_is_a_small_card_that_cuts_nothing_off(how):
    from PIL import Image

    picture = ring_steps(**how)
    assert picture.png == ring_steps(**how).png and len(picture.png) < 200_000
    image = Image.open(io.BytesIO(picture.png)).convert("RGB")
    wide, high = image.size
    edge = [(x, y) for x in range(wide) for y in (0, high - 1)]
    edge += [(x, y) for x in (0, wide - 1) for y in range(high)]
    assert all(image.getpixel(at) == (255, 255, 255) for at in edge)
