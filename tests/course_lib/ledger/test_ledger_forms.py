"""The formula sheet: every verb has its form, and at one rank it is nothing."""

from __future__ import annotations

import pytest

from course_lib.ledger import forms

pytestmark = pytest.mark.cpu("formulas")


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("root", range(3))
def test_a_broadcast_is_a_chain_and_a_reduce_the_chain_backwards(n, root):
    root %= n
    passed_on = [0] * n
    for hop in range(n - 1):
        passed_on[(root + hop) % n] += 24
    assert [forms.broadcast(n, rank, root, 24) for rank in range(n)] == passed_on
    assert [forms.reduce(rank, root, 24) for rank in range(n)].count(24) == n - 1


def test_one_rank_sends_nothing():
    """Among itself; test_ledger_verbs.py holds the forms of more ranks against their sockets."""
    for op in set(forms.OPS) - {"send"}:
        assert forms.must(op, 1, 0, 900, own=900) == 0


def test_must_finds_the_form_of_every_op():
    of = {op: forms.must(op, 3, 1, 900, own=200, root=0) for op in forms.OPS}
    same = dict.fromkeys(("broadcast", "reduce", "gather", "send"), 900)
    none = dict.fromkeys(("scatter", "recv", "barrier"), 0)
    cut = dict.fromkeys(("reduce_scatter", "all_to_all"), 700)
    assert of == {"all_reduce": 1200, "all_gather": 1800} | cut | same | none
    with pytest.raises(ValueError, match="'allreduce' has no closed form; the ops are all_reduce,"):
        forms.must("allreduce", 2, 0, 4)
