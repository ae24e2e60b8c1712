"""What `offload=` refuses, in words, before anything is made; and what fits its own files."""

from __future__ import annotations

import pytest
import torch

from course_lib.zero.offload import OffloadPlan
from course_lib.zero.offload.file_bucket import check_lendable
from course_lib.zero.offload.file_layout import FileLayout
from course_lib.zero.offload.files import Files, aligned, buffer, make
from course_lib.zero.optimizer_parts import states_of

pytestmark = pytest.mark.cpu("options and folders")

REFUSED = [
    ("cpu", 0, "cannot be used with stage 0"),
    ("disk", 3, "neither 'cpu' nor 'nvme'"),
    (True, 3, "is a bool"),
    ({"optimiser": "cpu"}, 3, "has no option optimiser"),
    ({"optimizer": ["cpu"]}, 3, "neither 'cpu' nor 'nvme'"),
    ({}, 3, "names nothing to move"),
    ({"parameters": "nvme", "folder": "x"}, 3, "add optimizer='nvme'"),
    ({"optimizer": "cpu", "parameters": "nvme", "folder": "x"}, 3, "add optimizer='nvme'"),
    ({"optimizer": "cpu", "parameters": "cpu"}, 2, "is only for stage 3, but this is stage 2"),
    (
        {"optimizer": "nvme", "parameters": "nvme", "folder": "x"},
        1,
        "is only for stage 3, but this is",
    ),
    ("nvme", 3, "needs a folder"),
    ({"optimizer": "nvme", "folder": "x", "io": "aio"}, 3, "neither 'threads' nor"),
    ({"optimizer": "cpu", "folder": "x"}, 3, "nothing goes to files"),
    ({"parameters": "cpu"}, 2, "is only for stage 3, but this is stage 2"),
]


@pytest.mark.parametrize(("offload", "stage", "words"), REFUSED)
def test_what_does_not_go_together_is_refused(offload, stage, words):
    with pytest.raises((ValueError, TypeError), match=words):
        OffloadPlan.named(offload, stage)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_word_is_a_plan(stage):
    assert OffloadPlan.named("cpu", stage) == OffloadPlan("cpu")
    assert OffloadPlan.named(None, stage) is None


class Counting(torch.optim.SGD):
    """Its steps become smaller with every call, which a bucket's is."""

    def step(self, closure=None):
        self.calls = getattr(self, "calls", 0) + 1
        self.param_groups[0]["lr"] /= self.calls
        return super().step(closure)


def test_an_optimizer_that_is_not_torchs_cannot_be_lent_buckets():
    x = torch.nn.Parameter(torch.ones(3))
    check_lendable(torch.optim.AdamW([x]))
    with pytest.raises(ValueError, match="passes Counting one bucket of a step after the other"):
        check_lendable(Counting([x], lr=0.1))


def test_the_states_of_torchs_optimizers_are_known():
    x = torch.nn.Parameter(torch.ones(3))
    for made, want in (
        (torch.optim.SGD([x], lr=1e-3), set()),
        (torch.optim.SGD([x], lr=1e-3, momentum=0.9), {"momentum_buffer"}),
        (torch.optim.AdamW([x]), {"exp_avg", "exp_avg_sq"}),
        (torch.optim.Adam([x], amsgrad=True), {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}),
    ):
        [group] = made.param_groups
        assert states_of(made, group, torch.float32) == dict.fromkeys(want, torch.float32)
        assert not made.state and torch.equal(x, torch.ones(3))


def test_parts_of_a_file_do_not_touch():
    layout = FileLayout(
        5000, torch.float32, {"a": torch.float32, "b": torch.float64}, torch.bfloat16
    )
    memory = buffer(layout.nbytes, torch.device("cpu")).zero_()
    assert memory.data_ptr() % 4096 == 0
    parts = [layout.values(memory), layout.state(memory, "a"), layout.state(memory, "b")]
    parts.append(layout.halves(memory))
    for number, part in enumerate(parts, 1):
        part.fill_(number)
    assert [bool((x == i).all()) for i, x in enumerate(parts, 1)] == [True] * 4
    assert layout.kept_bytes == 2 * aligned(20000) + aligned(40000)
    assert layout.nbytes == layout.kept_bytes + aligned(10000)


def test_a_file_gives_back_what_it_was_given(tmp_path):
    io = Files(threads=3, block=8192)
    file = make(tmp_path / "x", 9 * 4096)
    cpu = torch.device("cpu")
    one, other = buffer(9 * 4096, cpu), buffer(9 * 4096, cpu).zero_()
    one.copy_(torch.randint(256, (9 * 4096,), dtype=torch.uint8))
    io.write(file, 0, one).wait()
    io.sync([file]).wait()
    io.read(file, 4096, other[4096:]).wait()
    assert torch.equal(other[4096:], one[4096:]) and bool((other[:4096] == 0).all())
    assert (io.bytes_read, io.bytes_written, io.syncs) == (8 * 4096, 9 * 4096, 1)
    with pytest.raises(ValueError, match="multiples of 4096"):
        io.read(file, 0, other[1:])
    io.close()
