"""Mistakes in the step of course_lib/step and in what it is made of."""

import os.path

from tests.mutation import Mutant

HOME = "course_lib/step/"
TESTS = "tests/step/"
MATRIX = TESTS + "test_matrix.py::test_twenty_steps_are_those_of_one_process"
MORE = TESTS + "test_matrix.py::test_so_they_are_with_what_else_there_is"
ADAM = TESTS + "test_matrix.py::test_adamw_learns_alike"
STEP = TESTS + "test_step.py::"
SENT = STEP + "test_replicas_meet_in_one_buffer_and_two_small_sums"
BROKEN = STEP + "test_what_is_not_finite_on_one_rank_stops_all_before_the_update"
STOPS = STEP + "test_one_rank_that_wants_to_stop_stops_all_after_the_same_step"
ONCE = STEP + "test_every_logical_gradient_counts_once"
BUCKETS = STEP + "test_gradients_meet_whole_in_buckets_of_any_size"
REFUSED = STEP + "test_a_step_that_cannot_be_is_refused"
DECAY = STEP + "test_norms_and_biases_do_not_decay"


EXTENTS = "../tensor_parallel/extents"


def mutant(file: str, name: str, old: str, new: str, tests: tuple, why: str, trap=None) -> Mutant:
    return Mutant(f"step-{name}", os.path.normpath(f"{HOME}{file}.py"), old, new, tests, why, trap)


MUTANTS = [
    mutant(
        "step", "mean-of-means",
        "p.grad.div_(max(1, every.tokens))",
        "p.grad.div_(max(1, count) * (groups[1].size() if len(groups) > 1 else 1))",
        (f"{MATRIX}[2-1-llama]",),
        "each replica divides by its own tokens: a token weighs more where there are few", "T19",
    ),
    mutant(
        "step", "loss-of-this-replica",
        "return StepResult(every.loss / max(1, every.tokens),",
        "return StepResult(total / max(1, count),",
        (f"{MATRIX}[2-2-gpt2]",),
        "each replica reports its own loss", "T19",
    ),
    mutant(
        "step", "replicas-not-summed",
        "        sum_gradients(parameters, groups[1], most=bucket_bytes)\n",
        "        pass\n",
        (f"{MATRIX}[2-1-gpt2]", f"{SENT}[2-0.3]"),
        "each replica trains on its own rows", "T20",
    ),
    mutant(
        "step", "last-batch-alone",
        "        loss.backward()\n",
        "        for p in parameters:\n            p.grad = None\n        loss.backward()\n",
        (f"{MORE}[micro-batches]",),
        "a micro-batch forgets the gradients of those before it", "T22",
    ),
    mutant(
        "step", "gradients-left-over",
        "    for p in parameters:\n        p.grad = None\n    total",
        "    total",
        (f"{ADAM}[1-3-config0]",),
        "the gradients of the step before are still there",
    ),
    mutant(
        "step", "never-clipped",
        "norms.norm(pieces, groups) if clip is None else norms.clip(pieces, groups, clip)",
        "norms.norm(pieces, groups)",
        (f"{MATRIX}[1-2-gpt2]",),
        "clipping is left out", "T18",
    ),
    mutant(
        "step", "clipped-by-own-shards",
        "norms.clip(pieces, groups, clip)",
        "norms.clip([p._replace(cut_over=(), holders=None) for p in pieces], [], clip)",
        (f"{MATRIX}[1-3-gpt2]",),
        "each rank clips by the norm of what it holds", "T18",
    ),
    mutant(
        "step", "nan-goes-on",
        "    if every.bad:\n",
        "    if False:\n",
        (f"{BROKEN}[2-3-loss]",),
        "a loss that is no number is noticed by its gradients alone, and not named", "T26",
    ),
    mutant(
        "step", "nan-gradient-goes-on",
        "    if not math.isfinite(size):\n",
        "    if False:\n",
        (f"{BROKEN}[1-2-gradient]",),
        "one shard's infinity goes into all weights", "T26",
    ),
    mutant(
        "step", "update-before-the-check",
        "    if not math.isfinite(size):\n",
        "    optimizer.step()\n    if not math.isfinite(size):\n",
        (f"{BROKEN}[1-2-gradient]",),
        "the weights are gone when the error comes", "T26",
    ),
    mutant(
        "step", "nobody-is-named",
        "by_rank(who_says(own, groups))",
        "by_rank(who_says(own, []))",
        (f"{BROKEN}[2-1-gradient]",),
        "each rank knows of itself alone", "T35",
    ),
    mutant(
        "step", "stops-alone",
        "every.tokens, size, every.stops > 0)",
        "every.tokens, size, stop)",
        (f"{STOPS}[1]",),
        "the rank that was asked stops, and the others wait for it", "T30",
    ),
    mutant(
        "step", "stops-its-model-alone",
        "            numbers = collectives.all_reduce(numbers, group, donated=True)\n",
        "            numbers = collectives.all_reduce(numbers, group)\n            break\n",
        (f"{STOPS}[2]", f"{MATRIX}[2-2-llama]"),
        "the other replicas hear nothing", "T30",
    ),
    mutant(
        "step", "tokens-counted-on-all",
        "first = not groups or groups[0].rank() == 0",
        "first = True",
        (f"{MATRIX}[1-2-llama]",),
        "the tp ranks' same tokens count once each",
    ),
    mutant(
        "losses", "no-row-no-message",
        "    if ids.numel():\n        return ids, targets\n",
        "    if ids is not None:\n        return ids, targets\n",
        ("tests/step/test_no_rows.py::test_no_layer_meets_an_empty_batch",),
        "layers, and kernels below them, are handed an empty batch",
    ),
    mutant(
        "losses", "made-up-row-learnt",
        "ids.new_zeros(shape), targets.new_full(shape, IGNORED)",
        "ids.new_zeros(shape), targets.new_zeros(shape)",
        ("tests/step/test_no_rows.py::test_without_a_mesh_too",),
        "the row that stands in for none is learnt",
    ),
    mutant(
        "step", "no-batch",
        "    if not batches:\n",
        "    if batches is None:\n",
        (REFUSED,),
        "a step on nothing moves the weights by momentum",
    ),
    mutant(
        "losses", "gather-owes-a-sum",
        "states = gather(states, head.group, S, sizes, after=REPLICATED)",
        'states = gather(states, head.group, S, sizes, after="sharded")',
        (f"{MORE}[fused]",),
        "the gradient of the states, which is whole already, is summed once more", "T8",
    ),
    mutant(
        "losses", "means",
        '"reduction": "sum"}',
        '"reduction": "mean"}',
        (f"{MATRIX}[1-3-llama]",),
        "a mean is divided by the tokens once more", "T19",
    ),
    mutant(
        "losses", "ignored-counted",
        "numbers((targets != IGNORED).sum(), targets.numel())",
        "targets.numel()",
        (f"{MATRIX}[1-1-gpt2]",),
        "padding counts as tokens", "T19",
    ),
    mutant(
        "losses", "fused-on-a-whole-head",
        "        if fused:\n            raise",
        "        if fused and head is None:\n            raise",
        (REFUSED,),
        "fused=True is dropped without a word",
    ),
    mutant(
        EXTENTS, "padding-counted",
        "Extent(0, real * table.hidden, over)",
        "Extent(0, p.numel(), over)",
        (f"{ONCE}[1-3-config0-lay0]",),
        "rows of no word count in the norm", "T18",
    ),
    mutant(
        EXTENTS, "head-s-padding-counted",
        "isinstance(module, (VocabularyParallelEmbedding, VocabularyParallelHead)):",
        "isinstance(module, VocabularyParallelEmbedding):",
        (f"{ONCE}[1-3-config1-lay1]",),
        "an untied head's padding counts", "T18",
    ),
    mutant(
        "pieces", "shared-heads-counted",
        "yield Piece(x, over + part.cut_over, None, part.holders)",
        "yield Piece(x, over + part.cut_over)",
        (f"{ONCE}[1-4-config2-lay2]", f"{MATRIX}[1-4-llama]"),
        "a key/value head counts for each rank that holds it", "T18",
    ),
    mutant(
        EXTENTS, "all-cut",
        "over = () if p in whole or tp is None else (tp,)",
        "over = () if tp is None else (tp,)",
        (f"{ONCE}[2-2-config3-lay3]", f"{MATRIX}[1-2-gpt2]"),
        "norms and row biases count for each rank", "T18",
    ),
    mutant(
        "buckets", "averaged",
        "        flat = collectives.all_reduce(flat, group, donated=True)\n",
        "        flat = collectives.all_reduce(flat, group, donated=True) / group.size()\n",
        (BUCKETS, f"{MATRIX}[2-1-gpt2]"),
        "gradients are averaged and divided by the tokens as well", "T19",
    ),
    mutant(
        "buckets", "last-one-forgotten",
        "    yield from open_.values()\n",
        "",
        (BUCKETS,),
        "the last bucket, which is not full, is never sent", "T23",
    ),
    mutant(
        "buckets", "one-a-parameter",
        "if open_.get(kind) and used[kind] + size > most:",
        "if open_.get(kind):",
        (f"{SENT}[2-None]", BUCKETS),
        "a message for each parameter",
    ),
    mutant(
        "buckets", "no-bound",
        "used[kind] + size > most:",
        "used[kind] > most:",
        (BUCKETS,),
        "a bucket may be larger than it was told",
    ),
    mutant(
        "buckets", "unused-left-out",
        "            p.grad = torch.zeros_like(p)\n",
        "            continue\n    parameters = [p for p in parameters if p.grad is not None]\n"
        "    for p in parameters:\n        assert p is not None\n",
        (BUCKETS,),
        "ranks that did not use a parameter send another buffer", "T21",
    ),
    mutant(
        "buckets", "of-nothing",
        "    if most < 1:\n",
        "    if most < 0:\n",
        (BUCKETS,),
        "a bucket of no bytes is taken",
    ),
    mutant(
        "groups", "all-decay",
        '"weight_decay": 0.0}',
        '"weight_decay": float(decay)}',
        (f"{DECAY}[gpt2]",),
        "norms are pulled to 0",
    ),
    mutant(
        "groups", "tables-do-not",
        "if p.dim() > 1]",
        "if p.dim() > 2]",
        (f"{DECAY}[llama]",),
        "nothing decays, and what has two dims is not even trained",
    ),
    mutant(
        "groups", "below-zero",
        "    if not decay >= 0:\n",
        "    if decay is None:\n",
        (REFUSED,),
        "weights that grow by their decay",
    ),
]  # fmt: skip
