"""Mistakes in the benchmarks: unequal work, figures that belong to another method."""

from tests.mutation import Mutant

TESTS = "tests/test_benchmarks.py::"
EQUAL = f"{TESTS}test_overlap_compares_equal_work"
UNEQUAL = f"{TESTS}test_methods_that_do_other_work_are_not_compared"
PEERS = "tests/test_benchmarks_peers.py::"
TP = f"{PEERS}test_tp_trains_the_same_model_every_way"
PEERS_TP = TP
LOSS = f"{PEERS}test_loss_is_the_same_every_way"
PEERS_LOSS = LOSS
MISSING = f"{PEERS}test_a_missing_peer_is_left_out_and_named"
NAMES = f"{PEERS}test_names_and_settings"
MISSED = "tests/test_benchmarks_missing.py::"
FAULT = f"{MISSED}test_a_method_with_a_fault_is_named_and_the_others_stay"

MUTANTS = [
    Mutant(
        "benchmarks-unequal-work",
        "benchmarks/overlap.py",
        "        torch.manual_seed(0)\n",
        "",
        (EQUAL,),
        "the methods start from different weights, and nobody sees that they do other work",
    ),
    Mutant(
        "benchmarks-ratio-upside-down",
        "benchmarks/_ranks.py",
        "paired(took, seconds[order[0]])",
        "paired(took, seconds[order[-1]])",
        (EQUAL,),
        "ratios are to the last method",
    ),
    Mutant(
        "benchmarks-first-calls-counted",
        "benchmarks/_ranks.py",
        "    with ledger() as book:\n        _timed(me, method, losses, settled=False)\n",
        "    with ledger() as book:\n        _timed(me, method, losses, settled=False)\n"
        "        _timed(me, method, losses, settled=False)\n",
        (EQUAL,),
        "the messages of two steps are told as those of one",
    ),
    Mutant(
        "benchmarks-failure-unseen",
        "benchmarks/_start.py",
        "    if causes:\n",
        "    if False:\n",
        (f"{TESTS}test_a_benchmark_whose_rank_fails_says_so_and_leaves_nobody",),
        "a failed rank leaves the others waiting and the reader with a missing file",
    ),
    Mutant(
        "benchmarks-other-work",
        "benchmarks/_ranks.py",
        "            if not abs(a - b) <= most * abs(b):",
        "            if False:",
        (UNEQUAL,),
        "methods whose losses differ are compared all the same",
    ),
    Mutant(
        "benchmarks-out-of-time",
        "benchmarks/_ranks.py",
        "if turn >= LEAST_RUNS and _late(began + limit):",
        "if False:",
        (UNEQUAL,),
        "on a slow machine a benchmark goes on and on",
    ),
    Mutant(
        "benchmarks-dense-on-all",
        "benchmarks/_ranks.py",
        "takes_part = me.rank == 0 or not method.alone",
        "takes_part = True",
        (PEERS_TP,),
        "what one rank should do alone is done by all at once",
    ),
    Mutant(
        "benchmarks-held-forgotten",
        "benchmarks/tensor_parallel.py",
        "holds=(model, optimizer)",
        "holds=(model,)",
        (TP,),
        "the optimizer's states are not among what is held",
    ),
    Mutant(
        "benchmarks-heads-mixed",
        "benchmarks/_megatron.py",
        "rows.transpose(0, 1).reshape(whole.shape)",
        "rows.reshape(whole.shape)",
        (PEERS_TP,),
        "Megatron-core gets q, k and v of other heads",
    ),
    Mutant(
        "benchmarks-plan-mixed",
        "benchmarks/_dtensor.py",
        "parts = whole.view(3, n, -1, *whole.shape[1:]).transpose(0, 1)",
        "parts = whole",
        (TP,),
        "DTensor's first rank gets all of q and half of k",
    ),
    Mutant(
        "benchmarks-logits-spoilt",
        "benchmarks/_megatron.py",
        "vocab_parallel_cross_entropy(logits.clone(), targets)",
        "vocab_parallel_cross_entropy(logits.detach().requires_grad_(), targets)",
        (PEERS_LOSS,),
        "Megatron-core writes into the logits that the other methods read",
    ),
    Mutant(
        "benchmarks-printed-upon",
        "benchmarks/_start.py",
        "            stdout=2,  # what a peer's library prints is no part of the result\n",
        "",
        (MISSING,),
        "what a rank prints stands before the document",
    ),
    Mutant(
        "benchmarks-peer-left-out-silently",
        "benchmarks/_megatron.py",
        '    print(MISSING, file=sys.stderr)\n    return {"notes": [MISSING]}',
        "    return {}",
        (MISSING,),
        "nobody is told that a peer is missing",
    ),
    Mutant(
        "benchmarks-fused-unfused",
        "benchmarks/loss.py",
        "return head_cross_entropy(x, weight, targets, group, vocabulary=vocabulary)",
        "return product_then_loss(x, weight)",
        (LOSS,),
        "the fused form is named and another one measured",
    ),
    Mutant(
        "benchmarks-name",
        "course_lib/cli/author.py",
        'SHORT = {"tensor_parallel": "tp"}',
        "SHORT = {}",
        (NAMES,),
        "`course bench tp` is not known",
    ),
    Mutant(
        "benchmarks-setting-unknown",
        "course_lib/cli/author.py",
        "made[key] = type(default[key])(value)",
        "made[key] = type(default.get(key, 0))(value)",
        (NAMES,),
        "a misspelt setting changes nothing, and nobody says so",
    ),
    Mutant(
        "benchmarks-late-for-ever",
        "benchmarks/_start.py",
        "        if name is not None and spent > limit:\n",
        "        if name is not None and spent > limit * 100:\n",
        (f"{FAULT}[late]",),
        "a peer that hangs holds up the benchmark, and what was measured is not told",
    ),
    Mutant(
        "benchmarks-blames-who-was-left",
        "benchmarks/_start.py",
        "min(causes, key=lambda cause: cause[:2])",
        "max(causes, key=lambda cause: cause[:2])",
        (f"{MISSED}test_the_cause_is_who_ended_without_a_word_or_raised_first",),
        "the rank that lost its neighbour is said to be the cause",
    ),
    Mutant(
        "benchmarks-measured-thrown-away",
        "benchmarks/_each.py",
        '        if rows and rows[0]["name"] == fault.method:\n            rows = []',
        "        if rows:\n            rows = []",
        (f"{FAULT}[raises]",),
        "one late peer costs all others what was measured of them",
    ),
    Mutant(
        "benchmarks-ratio-to-nothing",
        "benchmarks/_each.py",
        '        if rows and rows[0]["name"] == fault.method:\n            rows = []',
        "        if rows is None:\n            rows = []",
        (f"{MISSED}test_the_first_one_s_fault_makes_the_next_the_first",),
        "ratios to a method that is missing stand beside ratios to another",
    ),
    Mutant(
        "benchmarks-wrong-call-is-a-failure",
        "course_lib/cli/author.py",
        "typer.Exit(2 if isinstance(error, ValueError) else 1)",
        "typer.Exit(1)",
        (NAMES,),
        "a script takes a workload that cannot be for a benchmark that broke",
    ),
    Mutant(
        "benchmarks-missing-is-good",
        "course_lib/cli/author.py",
        '    raise typer.Exit(1 if result.get("missing") else 0)\n',
        "",
        (f"{MISSED}test_a_peer_that_raises_costs_its_own_line_alone",),
        "a script that looks at the exit code believes that all was measured",
    ),
    Mutant(
        "benchmarks-nobody-s-turn",
        "benchmarks/_progress.py",
        '    _write("begins", name)\n',
        "",
        (f"{MISSED}test_several_faults_are_all_named",),
        "who has failed has no name, and all others are lost with it",
    ),
]
