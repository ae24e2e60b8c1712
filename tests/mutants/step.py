"""Mistakes in the step of course_lib/step and in what it is made of."""

from tests.support.mutation import Mutant

MUTANTS = [
    Mutant(
        "step-mean-of-means",
        "course_lib/step/step.py",
        "p.grad.div_(max(1, every.tokens))",
        "p.grad.div_(max(1, count) * (groups[1].size() if len(groups) > 1 else 1))",
        (
            "tests/course_lib/step/test_matrix.py::test_twenty_steps_are_those_of_one_process[2-1-llama]",
        ),
        "each replica divides by its own tokens: a token weighs more where there are few",
        "T19",
    ),
    Mutant(
        "step-replicas-not-summed",
        "course_lib/step/step.py",
        "        sum_gradients(parameters, groups[1], most=bucket_bytes)\n",
        "        pass\n",
        (
            "tests/course_lib/step/test_matrix.py::test_twenty_steps_are_those_of_one_process[2-1-gpt2]",
            "tests/course_lib/step/test_step.py::test_replicas_meet_in_one_buffer_and_two_small_sums[2-0.3]",
        ),
        "each replica trains on its own rows",
        "T20",
    ),
    Mutant(
        "step-last-batch-alone",
        "course_lib/step/step.py",
        "        loss.backward()\n",
        "        for p in parameters:\n            p.grad = None\n        loss.backward()\n",
        (
            "tests/course_lib/step/test_matrix.py::test_so_they_are_with_what_else_there_is[micro-batches]",
        ),
        "a micro-batch forgets the gradients of those before it",
        "T22",
    ),
    Mutant(
        "step-never-clipped",
        "course_lib/step/step.py",
        "norms.norm(pieces, groups) if clip is None else norms.clip(pieces, groups, clip)",
        "norms.norm(pieces, groups)",
        (
            "tests/course_lib/step/test_matrix.py::test_twenty_steps_are_those_of_one_process[1-2-gpt2]",
        ),
        "clipping is left out",
        "T18",
    ),
    Mutant(
        "step-nan-goes-on",
        "course_lib/step/step.py",
        "    if every.bad:\n",
        "    if False:\n",
        (
            "tests/course_lib/step/test_step.py::test_what_is_not_finite_on_one_rank_stops_all_before_"
            "the_update[2-3-loss]",
        ),
        "a loss that is no number is noticed by its gradients alone, and not named",
        "T26",
    ),
    Mutant(
        "step-nan-gradient-goes-on",
        "course_lib/step/step.py",
        "    if not math.isfinite(size):\n",
        "    if False:\n",
        (
            "tests/course_lib/step/test_step.py::test_what_is_not_finite_on_one_rank_stops_all_before_"
            "the_update[1-2-gradient]",
        ),
        "one shard's infinity goes into all weights",
        "T26",
    ),
    Mutant(
        "step-nobody-is-named",
        "course_lib/step/step.py",
        "by_rank(who_says(own, groups))",
        "by_rank(who_says(own, []))",
        (
            "tests/course_lib/step/test_step.py::test_what_is_not_finite_on_one_rank_stops_all_before_"
            "the_update[2-1-gradient]",
        ),
        "each rank knows of itself alone",
        "T35",
    ),
    Mutant(
        "step-stops-alone",
        "course_lib/step/step.py",
        "every.tokens, size, every.stops > 0)",
        "every.tokens, size, stop)",
        (
            "tests/course_lib/step/test_step.py::test_one_rank_that_wants_to_stop_stops_all_after_the_"
            "same_step[1]",
        ),
        "the rank that was asked stops, and the others wait for it",
        "T30",
    ),
    Mutant(
        "step-stops-its-model-alone",
        "course_lib/step/step.py",
        "            numbers = collectives.all_reduce(numbers, group, donated=True)\n",
        "            numbers = collectives.all_reduce(numbers, group)\n            break\n",
        (
            "tests/course_lib/step/test_step.py::test_one_rank_that_wants_to_stop_stops_all_after_the_"
            "same_step[2]",
            "tests/course_lib/step/test_matrix.py::test_twenty_steps_are_those_of_one_process[2-2-llama]",
        ),
        "the other replicas hear nothing",
        "T30",
    ),
    Mutant(
        "step-no-row-no-message",
        "course_lib/step/losses.py",
        "    if ids.numel():\n        return ids, targets\n",
        "    if ids is not None:\n        return ids, targets\n",
        ("tests/course_lib/step/test_no_rows.py::test_no_layer_meets_an_empty_batch",),
        "layers, and kernels below them, are handed an empty batch",
    ),
    Mutant(
        "step-gather-owes-a-sum",
        "course_lib/step/losses.py",
        "states = gather(states, head.group, S, sizes, after=REPLICATED)",
        'states = gather(states, head.group, S, sizes, after="sharded")',
        ("tests/course_lib/step/test_matrix.py::test_so_they_are_with_what_else_there_is[fused]",),
        "the gradient of the states, which is whole already, is summed once more",
        "T8",
    ),
    Mutant(
        "step-means",
        "course_lib/step/losses.py",
        '"reduction": "sum"}',
        '"reduction": "mean"}',
        (
            "tests/course_lib/step/test_matrix.py::test_twenty_steps_are_those_of_one_process[1-3-llama]",
        ),
        "a mean is divided by the tokens once more",
        "T19",
    ),
    Mutant(
        "step-ignored-counted",
        "course_lib/step/losses.py",
        "numbers((targets != IGNORED).sum(), targets.numel())",
        "targets.numel()",
        (
            "tests/course_lib/step/test_matrix.py::test_twenty_steps_are_those_of_one_process[1-1-gpt2]",
        ),
        "padding counts as tokens",
        "T19",
    ),
    Mutant(
        "step-padding-counted",
        "course_lib/tensor_parallel/extents.py",
        "Extent(0, real * table.hidden, over)",
        "Extent(0, p.numel(), over)",
        (
            "tests/course_lib/step/test_step.py::test_every_logical_gradient_counts_once[1-3-config0-lay0]",
        ),
        "rows of no word count in the norm",
        "T18",
    ),
    Mutant(
        "step-shared-heads-counted",
        "course_lib/step/pieces.py",
        "yield Piece(x, over + part.cut_over, None, part.holders)",
        "yield Piece(x, over + part.cut_over)",
        (
            "tests/course_lib/step/test_step.py::test_every_logical_gradient_counts_once[1-4-config2-lay2]",
            "tests/course_lib/step/test_matrix.py::test_twenty_steps_are_those_of_one_process[1-4-llama]",
        ),
        "a key/value head counts for each rank that holds it",
        "T18",
    ),
    Mutant(
        "step-averaged",
        "course_lib/step/buckets.py",
        "        flat = collectives.all_reduce(flat, group, donated=True)\n",
        "        flat = collectives.all_reduce(flat, group, donated=True) / group.size()\n",
        (
            "tests/course_lib/step/test_step.py::test_gradients_meet_whole_in_buckets_of_any_size",
            "tests/course_lib/step/test_matrix.py::test_twenty_steps_are_those_of_one_process[2-1-gpt2]",
        ),
        "gradients are averaged and divided by the tokens as well",
        "T19",
    ),
    Mutant(
        "step-last-one-forgotten",
        "course_lib/step/buckets.py",
        "    yield from open_.values()\n",
        "",
        ("tests/course_lib/step/test_step.py::test_gradients_meet_whole_in_buckets_of_any_size",),
        "the last bucket, which is not full, is never sent",
        "T23",
    ),
    Mutant(
        "step-unused-left-out",
        "course_lib/step/buckets.py",
        "            p.grad = torch.zeros_like(p)\n",
        "            continue\n"
        "    parameters = [p for p in parameters if p.grad is not None]\n"
        "    for p in parameters:\n"
        "        assert p is not None\n",
        ("tests/course_lib/step/test_step.py::test_gradients_meet_whole_in_buckets_of_any_size",),
        "ranks that did not use a parameter send another buffer",
        "T21",
    ),
    Mutant(
        "step-all-decay",
        "course_lib/step/groups.py",
        '"weight_decay": 0.0}',
        '"weight_decay": float(decay)}',
        ("tests/course_lib/step/test_step.py::test_norms_and_biases_do_not_decay[gpt2]",),
        "norms are pulled to 0",
    ),
]
