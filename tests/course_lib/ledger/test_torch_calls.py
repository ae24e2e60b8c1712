"""The one table of torch's collectives, and the one listener for waits."""

from __future__ import annotations

import functools
import threading

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # registers what is functional

from course_lib.ledger import forms
from course_lib.ledger.torch_calls import OPERATIONS, arguments, listening
from course_lib.ledger.torch_calls.waits import WaitListener

pytestmark = pytest.mark.cpu("what torch calls, whatever the device")
# Taken apart into other operations, or issued by torch alone where no course code leads.
NOT_IN_THE_TABLE = {
    "_c10d_functional::isend",
    "_c10d_functional::irecv",
    "_c10d_functional::batch_p2p_ops",
}
SCHEMAS = {schema.name: schema for schema in torch._C._jit_get_all_schemas()}


def of_groups():
    """Torch's own operations that take a group of ranks."""
    return {
        name
        for name, schema in SCHEMAS.items()
        if name.split("::")[0] in ("c10d", "_c10d_functional")
        and {"process_group", "group_name"} & {argument.name for argument in schema.arguments}
    }


def test_every_operation_that_takes_a_group_is_in_the_table():
    assert of_groups() - NOT_IN_THE_TABLE <= set(OPERATIONS)
    assert {name for name in OPERATIONS if name.startswith("c10d::")} <= of_groups()


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_has_the_arguments_that_the_table_names(name):
    if name not in SCHEMAS:
        pytest.skip("this torch has no such operation")
    known = {argument.name: str(argument.type) for argument in SCHEMAS[name].arguments}
    operation = OPERATIONS[name]
    assert operation.verb in forms.OPS and operation.agree in ("", "in", "out")
    for tensors in (operation.inputs, operation.outputs):
        assert not tensors or "Tensor" in known[tensors]
    for number in (operation.root, operation.peer):
        assert not number or known[number] == "int"
    for argument, kind in known.items():  # all tensors are inputs or outputs
        if "Tensor" in kind and argument not in ("out", "sparse_indices", "tensor"):
            assert argument in (operation.inputs, operation.outputs)
    assert operation.agree != "out" or operation.outputs


def test_arguments_go_by_their_names():
    func = torch.ops.c10d.alltoall_base_.default
    by_name = arguments(func, ("out", "in", "group"), {"input_split_sizes": [1]})
    assert by_name == {
        "output": "out", "input": "in", "process_group": "group", "input_split_sizes": [1],
    }  # fmt: skip


class Ear(WaitListener):
    """Keeps what it hears."""

    def __init__(self, refuse=None):
        self.heard, self.refuse = [], refuse

    def before_wait(self, work):
        self.heard.append(("before", work))
        if self.refuse:
            raise self.refuse

    def after_wait(self, work, start, caller):
        self.heard.append(("after", work))
        assert start > 0 and caller.f_code.co_filename == __file__

    @property
    def count(self):
        return len(self.heard)


@pytest.fixture
def work(monkeypatch):
    """A handle, and torch's `wait` in the place of the one in C++; some waits raise."""

    class Work:
        waited = 0

        def wait(self, timeout=None):
            self.waited += 1
            if timeout == "never":
                raise RuntimeError("timed out")
            return ("done", timeout)

    monkeypatch.setattr(dist, "Work", Work)
    return Work()


def test_a_wait_is_heard_before_and_after_and_gives_what_it_gave(work):
    ear, original = Ear(), dist.Work.wait
    with listening(ear):
        assert work.wait() == ("done", None) and work.wait(timeout=3) == ("done", 3)
        assert ear.heard == [("before", work), ("after", work)] * 2
    assert dist.Work.wait is original
    work.wait()
    assert ear.count == 4 and work.waited == 3


def test_listening_twice_hears_once_until_it_has_ended_twice(work):
    ear, other, original = Ear(), Ear(), dist.Work.wait
    with listening(ear), listening(other):
        with listening(ear):
            work.wait()
            assert ear.count == 2
        work.wait()
        assert ear.count == other.count == 4
    assert dist.Work.wait is original


def test_a_wait_that_raises_has_not_returned(work):
    ear, original = Ear(), dist.Work.wait
    with pytest.raises(RuntimeError, match="timed out"), listening(ear):
        work.wait("never")
    assert ear.heard == [("before", work)] and dist.Work.wait is original
    with pytest.raises(KeyError), listening(Ear(KeyError("absent"))):
        work.wait()
    assert work.waited == 1  # torch was not asked
    assert dist.Work.wait is original


@pytest.mark.parametrize("wraps", [False, True])
def test_a_method_that_others_put_over_ours_stays(work, wraps):
    first, second, original = Ear(), Ear(), dist.Work.wait
    with listening(first):
        ours = dist.Work.wait

        def theirs(work, *args):
            return ours(work, *args)

        theirs = functools.wraps(ours)(theirs) if wraps else theirs
        dist.Work.wait = theirs
        with listening(second):
            ours_of = first.after_wait, second.after_wait
            first.after_wait = second.after_wait = lambda *_: None  # called from elsewhere
            work.wait()
            first.after_wait, second.after_wait = ours_of
            assert first.count == second.count == 1
        assert dist.Work.wait is theirs
    assert dist.Work.wait is theirs
    work.wait()
    assert first.count == second.count == 1
    dist.Work.wait = original


def test_threads_may_begin_and_end_at_once(work):
    original, ears = dist.Work.wait, [Ear() for _ in range(8)]

    def often(ear):
        for _ in range(200):
            with listening(ear):
                work.wait()

    threads = [threading.Thread(target=often, args=(ear,)) for ear in ears]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dist.Work.wait is original and all(ear.count >= 400 for ear in ears)
