"""Claims that cannot be true: whatever a file says, others' ranks start, and nothing crashes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from course_classroom import leases
from course_classroom.leases import claims, folder, share
from course_classroom.leases.gpus import Gpu
from course_classroom.leases.machine import Machine

NODE = Machine(64, 64 << 30, 64, 64 << 30)
HONEST = {
    "pid": 1,
    "started": 1.0,
    "notebook": "a.ipynb",
    "gpus": None,
    "shared": False,
    "cores": 2,
    "memory": 1 << 30,
}
SEEN = [Gpu("0", "uuid-0")]


@pytest.fixture
def put(tmp_path, monkeypatch) -> Iterator[Callable[..., Path]]:
    """Lay a claim into a node's folder, held as long as the test runs."""
    node, handles = tmp_path / "node", []
    node.mkdir()
    monkeypatch.setenv("COURSE_LEASES", str(node))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def put(text: str | bytes = b"", **facts) -> Path:
        content = text.encode() if isinstance(text, str) else text
        content = content or json.dumps(HONEST | facts).encode()
        path, handle = folder.new_locked(node, "claim-", content)
        handles.append(handle)
        return path

    yield put
    for handle in handles:
        os.close(handle)


def taken(world: int = 2) -> tuple[int, int, list[str]]:
    """Cores, bytes and complaints of a lease that is given back at once."""
    lease = leases.take(world, seen=[], machine=NODE)
    lease.give_back()
    return lease.cores, lease.memory, lease.told


@pytest.mark.parametrize("learners", ["", "4"])
@pytest.mark.parametrize("memory", [10**18, NODE.memory + 1, 2**63])
def test_a_claim_of_more_than_there_is_keeps_nobody_from_ranks(put, monkeypatch, learners, memory):
    monkeypatch.setenv("COURSE_LEARNERS", learners)
    undisturbed = taken()
    for pid in range(1, 30):
        put(memory=memory, cores=10**18, pid=pid)
    assert taken() == undisturbed
    assert leases.node_report([], NODE)["claims"] == []
    share.check_world(1)


def test_what_is_shown_of_a_claim_is_bounded_by_the_machine(put):
    put(cores=10**18, memory=NODE.memory)
    report = leases.node_report([], NODE)
    assert [one["cores"] for one in report["claims"]] == [64]
    assert report["cores"] == {"total": 64, "claimed": 64}


def test_on_a_shared_node_a_claim_counts_for_a_part_at_the_most(put, monkeypatch):
    monkeypatch.setenv("COURSE_LEARNERS", "4")
    put(memory=NODE.memory, cores=64)
    assert taken() == (16, 16 << 30, []), "three parts are left, and this is one of them"
    for pid in (2, 3, 4):
        put(memory=NODE.memory, cores=64, pid=pid)
    with pytest.raises(MemoryError, match=r"0\.0 GB are not held by others"):
        taken()


def test_honest_claims_go_on_counting_beside_others(put):
    put(memory=NODE.memory - (1 << 30), cores=60)
    put(memory=10**18)
    assert taken()[0] == 4
    with pytest.raises(MemoryError, match=r"1\.1 GB are not held by others"):
        taken(5)


NONSENSE = {
    "negative memory": json.dumps(HONEST | {"memory": -(10**12)}),
    "negative cores": json.dumps(HONEST | {"cores": -1}),
    "memory is NaN": json.dumps(HONEST | {"memory": float("nan")}),
    "memory is a text": json.dumps(HONEST | {"memory": "1000"}),
    "memory is a truth": json.dumps(HONEST | {"memory": True}),
    "a number of 400 digits": json.dumps(HONEST | {"memory": 10**400}),
    "a number of 5000 digits": json.dumps(HONEST).replace("1.0", "9" * 5000),
    "a start of 400 digits": json.dumps(HONEST | {"started": 10**400}),
    "an infinite pid": json.dumps(HONEST | {"pid": float("inf")}),
    "infinite cores": json.dumps(HONEST).replace('"cores": 2', '"cores": 1e999'),
    "GPUs are a text": json.dumps(HONEST | {"gpus": "uuid-0"}),
    "GPUs are an object": json.dumps(HONEST | {"gpus": {"uuid-0": 1}}),
    "nested deeply": '{"gpus": ' + "[" * 30_000 + "]" * 30_000 + "}",
    "a huge file": json.dumps(HONEST | {"notebook": "a" * 10_000_000}),
    "not JSON": "memory = 5",
    "zeros": "\0" * 100,
    "nothing": "{}",
    "no text": b"\xff",
}


@pytest.mark.parametrize("what", NONSENSE)
def test_a_claim_that_is_nonsense_is_passed_over(put, what):
    undisturbed = taken()
    put(NONSENSE[what])
    honest = put(pid=2)
    assert taken() == (undisturbed[0] - 2, *undisturbed[1:])
    (one,) = leases.node_report(SEEN, NODE)["claims"]
    assert (one["pid"], one["memory"]) == (2, 1 << 30)
    assert honest.exists()


def test_a_claim_in_my_name_by_another_user_is_not_mine(put):
    put(pid=os.getpid(), started=claims._started(), gpus=["uuid-0"], memory=1)
    (mine,) = claims.living(folder.node_folder(), NODE)
    assert mine.is_mine()
    forged = replace(mine, user="somebody else")
    assert not forged.is_mine() and claims.others([forged]) == [forged]


def test_what_strangers_write_is_not_trusted(put):
    claim = put(notebook="a\x1b[31m.ipynb", gpus=["uuid-0"], user="ana")
    os.mkfifo(claim.parent / "claim-pipe")
    (claim.parent / "claim-folder").mkdir()
    (claim.parent / "claim-link").symlink_to(claim)
    (one,) = leases.node_report(SEEN, NODE)["claims"]
    assert one["notebook"] == "a?[31m.ipynb" and one["cores"] == 2
    assert one["user"] == claims._user(os.getuid()), "by the file's owner, not by its text"
