"""Who gets which rows: tp ranks the same, dp ranks different ones, each once, and none is lost."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain

import pytest
import torch
import torch.distributed as dist

from course_lib import ranks
from course_lib.data import Batches
from tests.course_lib.tensor_parallel.parts import said

MESHES = [(1, 1), (1, 4), (2, 2), (4, 1), (3, 1)]  # dp, tp
LENGTH, ROWS, SEED = 4, 5, 3


def documents(count=17, seed=0):
    """Documents of 0 to 12 tokens; no two tokens are alike, so that a token says where it is."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 13, (count,), generator=generator).tolist()
    tokens = torch.arange(sum(lengths)) + 100
    return list(tokens.split(lengths))


def made(pack, **options):
    given = {"rows": ROWS, "length": LENGTH, "seed": SEED, "pack": pack, **options}
    return Batches(documents(), **given)


def row_contents(pack):
    """Each row's (ids, targets), worked out token by token."""
    docs = [doc.tolist() for doc in documents()]
    found = []
    for doc in [list(chain(*docs))] if pack else docs:
        for at in range(0, len(doc), LENGTH):
            ids, targets = doc[at : at + LENGTH], doc[at + 1 : at + LENGTH + 1]
            if len(targets) == LENGTH or (targets and not pack):
                filled = ids + [0] * (LENGTH - len(ids))
                found.append((filled, targets + [-100] * (LENGTH - len(targets))))
    return found


def taken(batches, steps):
    """Rows, ids and targets of some steps, as plain lists; what a batch says of itself is held."""
    found = []
    for _ in range(steps):
        batch = next(batches)
        assert batch.ids.shape == batch.targets.shape == (len(batch.rows), LENGTH)
        assert batch.ids.dtype == batch.targets.dtype == torch.int64
        assert batch.count == int((batch.targets != -100).sum())
        found.append((list(batch.rows), batch.ids.tolist(), batch.targets.tolist(), batch.total))
    return found


def joined(every):
    """What dp ranks took, put together step by step; all say the same total, and it is right."""
    steps = []
    for of_a_step in zip(*every, strict=True):
        rows, ids, targets = (list(chain(*(one[i] for one in of_a_step))) for i in range(3))
        counted = sum(target != -100 for row in targets for target in row)
        assert [one[3] for one in of_a_step] == [counted] * len(of_a_step)
        steps.append((rows, ids, targets))
    return steps


def on_a_mesh(me, dp, pack, steps):
    return taken(made(pack, dp=ranks.mesh(me, dp=dp, tp=me.world // dp)), steps)


@pytest.mark.parametrize(("dp", "tp"), MESHES)
def test_tp_ranks_take_the_same_rows_and_dp_ranks_different_ones(pool, dp, tp):
    steps = 6  # past the end of an epoch
    for pack in (True, False):
        every = pool.run(dp * tp, on_a_mesh, dp, pack, steps)
        assert made(pack).known < steps * ROWS
        for replica in range(dp):
            for rank in range(tp):
                assert every[replica * tp + rank] == every[replica * tp]
        first = every[::tp]  # one rank of each replica
        for of_a_step in zip(*first, strict=True):
            rows = [set(one[0]) for one in of_a_step]
            assert len(set().union(*rows)) == sum(map(len, rows)) == ROWS
            assert max(map(len, rows)) - min(map(len, rows)) <= 1
        assert joined(first) == joined([taken(made(pack), steps)])


@pytest.mark.parametrize("pack", [True, False])
def test_an_epoch_has_each_row_once_and_every_target_once(pack):
    contents = row_contents(pack)
    batches = made(pack)
    assert batches.known == len(contents)
    seen = []
    for rows, ids, targets in joined([taken(batches, 3 * len(contents))]):  # ROWS times three
        seen += rows
        assert list(zip(ids, targets, strict=True)) == [contents[row] for row in rows]
    epochs = [seen[i : i + len(contents)] for i in range(0, len(seen), len(contents))]
    assert len(epochs) == 3 * ROWS
    assert all(Counter(epoch) == Counter(range(len(contents))) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs)  # an order of its own each
    other = next(made(pack, seed=SEED + 1)).rows
    assert list(other) != epochs[0][:ROWS]
    learnt = Counter(target for _, targets in contents for target in targets if target != -100)
    assert set(learnt.values()) == {1}
    if not pack:  # every token of a document but its first is learnt, across no border
        assert set(learnt) == {int(t) for doc in documents() for t in doc[1:]}


@pytest.mark.parametrize("pack", [True, False])
def test_a_run_goes_on_with_exactly_the_next_rows_on_any_number_of_dp_ranks(pack):
    whole, steps = made(pack), 9
    states = []
    for _ in range(steps):
        states.append(json.dumps(whole.state()))
        next(whole)
    want = joined([taken(made(pack), steps + 4)])
    crossed = {json.loads(state)["epoch"] for state in states}
    assert {0, 1} <= crossed
    for at, state in enumerate(states):
        for count in (1, 2, 3):
            shares = []
            for index in range(count):
                batches = made(pack, dp=(index, count))
                next(batches)  # wherever it was
                batches.restore(json.loads(state))
                assert json.dumps(batches.state()) == state
                assert batches.state()["epoch"] == json.loads(state)["epoch"]
                shares.append(taken(batches, 4))
            assert joined(shares) == want[at : at + 4]


def test_a_state_of_other_data_or_settings_is_refused():
    own = made(True)
    state = own.state()
    for key, value in {"seed": 4, "rows": 4, "length": 3, "pack": False}.items():
        told = said(ValueError, made(**{"pack": True, key: value}).restore, state)
        assert f"with {key}={state[key]!r}" in told and f"here {key}=" in told
    changed, shifted = documents(), documents()
    changed[3] = changed[3] + 1
    shifted[:3] = [torch.cat(shifted[:3])]
    settings = {"rows": ROWS, "length": LENGTH, "seed": SEED}
    assert "from different data" in said(ValueError, Batches(changed, **settings).restore, state)
    Batches(shifted, **settings).restore(state)  # packed, borders make no difference
    of_documents = Batches(shifted, **settings, pack=False)
    assert "from different data" in said(ValueError, of_documents.restore, made(False).state())
    less = {key: value for key, value in state.items() if key not in ("seed", "epoch")}
    assert "it lacks epoch, seed" in said(ValueError, own.restore, less)
    for key, value in (("position", own.known), ("position", -1), ("epoch", -1), ("epoch", 0.5)):
        assert f"{key}={value}" in said(ValueError, own.restore, {**state, key: value})
    assert own.state() == state  # what is refused changes nothing


def test_what_cannot_be_shared_out_is_refused():
    def refused(data=None, **options):
        given = {"rows": ROWS, "length": LENGTH, **options}
        return said(ValueError, Batches, documents() if data is None else data, **given)

    assert "1 of them would have none" in refused(dp=(0, ROWS + 1))
    assert f"make {made(True).known} rows" in refused(rows=100)
    assert "dp=(2, 2)" in refused(dp=(2, 2)) and "dp=(-1, 2)" in refused(dp=(-1, 2))
    assert "length=0" in refused(length=0) and "rows=True" in refused(rows=True)
    assert "no documents" in refused(data=[]) and "make 0 rows" in refused(torch.arange(LENGTH))
    assert "(2, 3)" in refused(torch.zeros(2, 3, dtype=torch.int64))
    assert "must be integers" in refused(torch.rand(99)) and "but got list" in refused([[1, 2]])
    assert "the id -1" in refused(torch.arange(99) - 1)


def test_one_piece_of_tokens_and_another_device():
    tokens, same = torch.cat(documents()), made(True)
    piece = Batches(tokens.int(), rows=ROWS, length=LENGTH, seed=SEED)
    assert taken(piece, 3) == taken(same, 3)
    assert piece.state() == same.state()
    away = next(made(False, device="meta"))
    assert away.ids.is_meta and away.targets.is_meta
    assert (away.count, away.rows) == ((here := next(made(False))).count, here.rows)


def without_dp(me):
    mesh = dist.device_mesh.init_device_mesh(me.device.type, (me.world,), mesh_dim_names=("tp",))
    return said(ValueError, made, True, dp=mesh)


def test_a_mesh_without_an_axis_dp_is_refused(pool):
    for message in pool.run(2, without_dp):
        assert "the axes tp but no axis 'dp'" in message
