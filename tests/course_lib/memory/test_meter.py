"""The meter: known patterns to the byte, two witnesses against each other, and what each misses."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from course_lib.memory import meter, peak
from course_lib.memory.blocks import MemoryEvent, from_events
from course_lib.memory.release_wait import PATIENCE, TASKS, wait_until_settled

pytestmark = pytest.mark.cpu("two witnesses of the CPU's memory; test_on_device.py has the GPU's")

MB = 1_000_000


def block(megabytes):
    return torch.empty(int(megabytes * MB), dtype=torch.uint8)


both = pytest.mark.parametrize("by", ["profiler", "watch"])


# ---- known patterns


@both
def test_a_known_pattern_to_the_byte(by):
    with peak(by=by) as p:
        a = block(1)
        b = block(2)
        del a
        c = block(3)
        del b
    assert p.bytes == 5 * MB
    assert p.held_after == 3 * MB == c.nbytes
    assert p.by == by
    assert [point.nbytes for point in p.timeline] == [n * MB for n in (0, 1, 3, 2, 5, 3)]
    assert p.timeline[1].what == "aten::empty"
    assert p.timeline[3].what == "end of aten::empty"
    times = [point.seconds for point in p.timeline]
    assert times == sorted(times)


@both
@settings(max_examples=5, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 300_000)), max_size=12))
def test_any_pattern_of_taking_and_freeing(by, steps):
    held, now, top = [], 0, 0
    with peak(by=by) as p:
        for take, size in steps:
            if take or not held:
                held.append(torch.empty(size, dtype=torch.uint8))
                now += size
            else:
                now -= held.pop(0).nbytes
            top = max(top, now)
    assert (p.bytes, p.held_after) == (top, now)


@both
def test_what_is_freed_from_before_makes_room(by):
    old = [block(4)]
    with peak(by=by) as p:
        old.clear()
        new = block(3)
        more = block(2)
    assert (p.bytes, p.held_after) == (MB, MB)
    with peak(by=by) as p:
        del new, more
    assert (p.bytes, p.held_after) == (0, -5 * MB)


@both
def test_views_and_writes_in_place_take_nothing(by):
    a = block(4)
    with peak(by=by) as p:
        a.add_(1).view(2, -1).t()
        b = a[5:]
    assert p.bytes <= 32  # the number 1 as a tensor, within the operation
    assert p.held_after == 0
    assert b.nbytes


@both
def test_storages_that_are_emptied_and_filled_again(by):
    a = block(4)
    with peak(by=by) as p:
        a.untyped_storage().resize_(0)
        a.untyped_storage().resize_(4 * MB)
        a.untyped_storage().resize_(0)
        b = block(3)
    assert (p.bytes, p.held_after) == (0, b.nbytes - 4 * MB)


def test_earlier_garbage_is_no_room_for_the_region():
    loop = [block(3)]
    loop.append(loop)
    del loop
    with peak() as p:
        a = block(1)
        gc.collect()
    assert (p.bytes, p.held_after) == (a.nbytes, MB)


def test_tensors_from_data_are_seen():
    values = list(range(1000))
    with peak(by="watch") as p:
        kept = torch.tensor(values)
    assert p.held_after == kept.nbytes == 8000


# ---- a training step: both witnesses, and a count by hand


def step_of(model, optimizer, x, y):
    def step():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"foreach": False}])
def test_a_step_with_fused_and_other_adam(options):
    model = nn.Sequential(nn.Linear(300, 500), nn.GELU(), nn.Linear(500, 200))
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    step = step_of(model, optimizer, torch.randn(64, 300), torch.randint(0, 200, (64,)))
    step()
    seen = {}
    for by in ("profiler", "watch"):
        with peak(by=by) as p:
            step()
        assert p.held_after == 0
        seen[by] = p.bytes
    gradients = sum(parameter.nbytes for parameter in model.parameters())
    assert seen["profiler"] > gradients
    assert seen["watch"] == pytest.approx(seen["profiler"], rel=0.01)
    if options.get("fused"):
        # All gradients, and at the end of the backward the gradient of what GELU returned, which
        # GELU's backward reads while it writes one of the same size; its input is kept as well.
        assert seen["profiler"] < gradients + 4 * (64 * 500 * 4) + 2 * (64 * 200 * 4)


@both
def test_a_backward_alone_frees_what_the_forward_kept(by):
    weight = torch.randn(200, requires_grad=True)
    x = weight.expand(500, 200)
    loss = x.exp().sum()  # autograd alone keeps exp's result: 400,000 bytes
    with peak(by=by) as p:
        loss.backward()
    assert p.held_after == weight.grad.nbytes - 500 * 200 * 4
    assert p.bytes <= 500 * 200 * 4 + 2000


# ---- where the two differ


def test_temporaries_inside_an_operation_are_the_profilers():
    x = torch.randn(4, 8, 32, 32, dtype=torch.float64)
    weight = torch.randn(8, 8, 3, 3, dtype=torch.float64)
    with peak(by="profiler") as events:
        y = F.conv2d(x, weight, padding=1)
    with peak(by="watch") as watch:
        z = F.conv2d(x, weight, padding=1)
    assert events.held_after == watch.held_after == watch.bytes == y.nbytes == z.nbytes
    assert events.bytes >= watch.bytes + 8 * 9 * 32 * 32 * 8  # at least one unfolded image


@both
def test_a_free_in_another_thread_is_seen(by):
    held = []
    with peak(by=by) as p:
        held.append(block(2))
        other = threading.Thread(target=held.clear)
        other.start()
        other.join()
    assert (p.bytes, p.held_after) == (2 * MB, 0)


def gloo_copies(me):
    n = 250_000
    found = []
    for by in ("profiler", "watch"):
        dist.barrier()
        with peak(by=by) as p:
            x = torch.ones(me.world * n)
            out = torch.empty(n)
            scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
            scatter(out, x)
        found.append(p.bytes)
        sizes = x.nbytes, out.nbytes
        del x, out
    return found, *sizes


def test_copies_that_the_backend_makes_are_the_profilers(pool):
    for (events, watch), whole, piece in pool.run(2, gloo_copies):
        assert watch == whole + piece
        assert events >= 2 * whole + piece


def named_like_a_backend(body):
    """A thread with the name of gloo's workers that runs `body`, started and at work."""
    started = threading.Event()

    def named():
        (TASKS / str(threading.get_native_id()) / "comm").write_text("pt_gloo_runloop")
        started.set()
        body()

    thread = threading.Thread(target=named, daemon=True)
    thread.start()
    started.wait(10)
    return thread


@pytest.mark.skipif(not TASKS.exists(), reason="this system shows no threads")
@both
def test_what_a_backends_thread_still_holds_is_waited_for(by):
    held, big = [], torch.randn(700, 700)

    def body():
        end = time.monotonic() + 0.15
        while time.monotonic() < end:
            big @ big  # without the GIL
        held.clear()

    with peak(by=by) as p:
        held.append(block(2))
        thread = named_like_a_backend(body)
    assert p.held_after == 0  # and not the two megabytes
    thread.join()


def test_what_an_earlier_message_lets_go_late_is_not_freed_by_the_region(monkeypatch):
    late = [block(2)]
    monkeypatch.setattr(meter, "wait_until_settled", late.clear)
    with peak(by="watch") as p:
        kept = block(1)
    assert p.held_after == kept.nbytes  # and not less by the two megabytes


@pytest.mark.skipif(not TASKS.exists(), reason="this system shows no threads")
def test_a_backend_that_never_rests_is_waited_for_half_a_second():
    stop, big = threading.Event(), torch.randn(700, 700)
    thread = named_like_a_backend(lambda: [big @ big for _ in iter(stop.is_set, True)])
    began = time.monotonic()
    wait_until_settled()
    took = time.monotonic() - began
    stop.set()
    thread.join()
    assert PATIENCE <= took < PATIENCE + 2


# ---- regions in regions, other people's profilers, errors


def test_nested_regions():
    with peak() as outer:
        a = block(1)
        with peak() as inner:
            b = block(2)
            del b
        with pytest.raises(RuntimeError, match="no profiler to measure with"), peak(by="profiler"):
            pass
        c = block(1)
    assert (inner.bytes, inner.held_after, inner.by) == (2 * MB, 0, "watch")
    assert (outer.bytes, outer.held_after, outer.by) == (3 * MB, 2 * MB, "profiler")
    assert a.nbytes == c.nbytes


def test_inside_somebodys_profiler_and_around_it():
    from torch.profiler import profile

    with profile(profile_memory=True) as theirs:
        with peak() as p:
            a = block(1)
        b = block(1)
    assert (p.bytes, p.by) == (MB, "watch")
    assert any(event.key == "aten::empty" for event in theirs.key_averages())
    del a, b
    with peak() as p:
        a = block(2)
        with profile(profile_memory=True):
            b = block(1)
    assert (p.bytes, p.by) == (a.nbytes + b.nbytes, "watch")


def test_a_failing_region_is_measured_and_leaves_nothing_behind():
    resize = torch.UntypedStorage.resize_
    kept = []
    with pytest.raises(ZeroDivisionError), peak() as p:  # noqa: PT012
        kept.append(block(1))
        1 / 0  # noqa: B018
    assert p.held_after == MB
    assert not torch.autograd._profiler_enabled()
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []
    assert torch.UntypedStorage.resize_ is resize


def test_results_are_asked_for_after_the_end():
    with peak() as p, pytest.raises(RuntimeError, match="known only after the region"):
        p.bytes  # noqa: B018
    with pytest.raises(RuntimeError, match="measures one region"), p:
        pass
    with pytest.raises(ValueError, match="measured by profiler or watch, not 'psutil'"):
        peak(device="cpu", by="psutil")


def test_nothing_is_printed_and_no_compiler_imported():
    code = (
        "import torch, sys\n"
        "from course_lib.memory import peak\n"
        "old = [torch.empty(9) for _ in range(20)]\n"
        "with peak() as p:\n"
        "    old.clear(); torch.ones(10).sum()\n"
        "assert p.by == 'profiler', p\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "import os; assert 'KINETO_LOG_LEVEL' not in os.environ\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_on_cuda_nested_regions_share_the_allocators_mark(monkeypatch):
    """The allocator played by numbers: an inner region resets the mark that the outer one needs."""
    state = {"now": 100, "top": 100}

    def move(change):
        state["now"] += change
        state["top"] = max(state["top"], state["now"])

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: state["now"])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: state["top"])
    monkeypatch.setattr(
        torch.cuda, "reset_peak_memory_stats", lambda device=None: state.update(top=state["now"])
    )
    with peak(device="cuda") as outer:
        move(70)
        move(-60)
        with peak(device="cuda") as inner:
            move(20)
            move(-5)
        move(1)
    assert (inner.bytes, inner.held_after, inner.by) == (20, 15, "allocator")
    assert (outer.bytes, outer.held_after) == (70, 26)


# ---- the sums themselves


def test_blocks_whose_free_was_not_reported_end_when_the_address_comes_again():
    reports = ((1, 10, 5, "a"), (4, 10, 7, "b"), (6, 99, -3, "c"), (8, 10, -7, ""))
    events = [MemoryEvent(*report) for report in reports]
    blocks = from_events(events)[10]
    assert [(b.start, b.stop, b.nbytes) for b in blocks] == [(1, 4, 5), (4, 8, 7)]
    assert from_events(events)[99] == []
