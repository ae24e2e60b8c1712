"""What a forward keeps is asked of autograd, agrees with the meter, and is drawn by the part."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

from course_lib.figures import activations, keeping
from course_lib.memory import peak

B, H, F = 3, 5, 7


class Half(nn.Module):
    """Two linear layers, with a bend that belongs to neither."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(H, F), nn.Linear(F, H)

    def forward(self, x):
        return self.down(self.up(x).tanh())


def parts(model: Half) -> dict[str, nn.Module]:
    return {"half": model, "up": model.up, "down": model.down}


def test_each_storage_is_counted_once_at_the_part_that_kept_it_first():
    model, x = Half(), torch.randn(B, H)
    with keeping(parts(model)) as kept:
        y = model(x.requires_grad_())
        z = y * y.exp()
    # up keeps x; tanh its result, which down keeps as well; outside, y and its exp.
    assert kept == {"half": 4 * B * F, "up": 4 * B * H, "down": 0, "between": 2 * 4 * B * H}
    z.sum().backward()
    assert x.grad is not None


def test_what_is_kept_is_what_the_meter_finds():
    model, x = Half(), torch.randn(B, H, requires_grad=True)
    with peak(device="cpu") as memory:
        y = model(x)
    del y
    with keeping(parts(model)) as kept:
        y = model(x)
    assert sum(kept.values()) == memory.held_after - y.nbytes + x.nbytes == 4 * B * (F + H)


def test_weights_are_not_counted_and_no_hook_stays():
    model = Half()
    with pytest.raises(RuntimeError), keeping(parts(model)):
        model(torch.randn(B, H + 1))
    with keeping(parts(model)) as kept:  # x wants no gradient: up keeps it for its weight
        model(torch.randn(B, H))
    assert kept["up"] == 4 * B * H and kept["down"] == 0
    every = [model, model.up, model.down]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in every)
    with keeping(parts(model)) as kept, torch.no_grad():
        model(torch.randn(B, H))
    assert sum(kept.values()) == 0


KEPT = {
    "whole": {"norms": 800, "masks": 400, "inside": 1200},
    "cut": {"norms": 400, "masks": 200, "inside": 1200},
}


def test_the_picture_says_its_numbers_in_words():
    words = activations(KEPT, unit=400, called="Φ", title="A block").alt
    assert words == (
        "A block. What a rank keeps between forward and backward, in Φ. whole: norms 2.00, masks "
        "1.00, inside 3.00; in all 6.00. cut: norms 1.00, masks 0.50, inside 3.00; in all 4.50."
    )


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match="no bar to draw"):
        activations({}, unit=1, called="bytes")
    with pytest.raises(ValueError, match="no bar to draw"):
        activations({"one": {"norms": 0}}, unit=1, called="bytes")
    with pytest.raises(ValueError, match="cut has the places masks, and whole has norms"):
        activations({"whole": {"norms": 1}, "cut": {"masks": 1}}, unit=1, called="bytes")
    with pytest.raises(ValueError, match="6 places; 5 can be told apart"):
        activations({"one": dict.fromkeys("abcdef", 1)}, unit=1, called="bytes")


def image(picture):
    from PIL import Image

    return Image.open(io.BytesIO(picture.png)).convert("RGB")


TITLES = {"none": "", "short": "x", "long": "A title that is a good deal wider than a word " * 4}


@pytest.mark.parametrize("title", TITLES.values(), ids=TITLES)
def test_the_picture_is_a_white_card_that_cuts_nothing_off(title):
    picture = activations(KEPT, unit=400, called="Φ numbers", title=title)
    shown = image(picture)
    wide, high = shown.size
    edge = [shown.getpixel((x, y)) for x in range(wide) for y in (0, high - 1)]
    edge += [shown.getpixel((x, y)) for x in (0, wide - 1) for y in range(high)]
    assert set(edge) == {(255, 255, 255)}
    assert len(picture.png) < 200_000


def test_bars_are_as_long_as_their_numbers():
    """The dark first place: twice as many pixels of it in a bar twice as long."""
    twice = activations({"one": {"a": 200, "b": 100}}, unit=1, called="bytes")
    once = activations({"one": {"a": 100, "b": 200}}, unit=1, called="bytes")
    dark = [
        sum(n for n, colour in image(p).getcolors(1 << 24) if colour == (0x22, 0x27, 0x2B))
        for p in (twice, once)
    ]
    assert 1.8 < dark[0] / dark[1] < 2.2


def test_the_same_numbers_give_the_same_file():
    one, two = (activations(KEPT, unit=400, called="Φ").png for _ in range(2))
    assert one == two
