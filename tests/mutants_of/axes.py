"""Mistakes in the other axes: a schedule that keeps too much, a sum forgotten, a wrong mask."""

from tests.mutation import Mutant

AXES = "course_lib/axes/"
SCHEDULE, STAGES, PIPELINE = (AXES + f"{name}.py" for name in ("schedule", "stages", "pipeline"))
KEPT, PLACES, RING = (AXES + f"{name}.py" for name in ("kept", "places", "ring_attention"))
HEADS, HYBRID = AXES + "head_exchange.py", AXES + "hybrid.py"
EXPERTS, ON_RANKS = AXES + "experts.py", AXES + "expert_parallel.py"
FIGURE = "course_lib/figures/pipeline_steps.py"

PLAN, PIPE = "tests/axes/test_schedule.py::test_", "tests/axes/test_pipeline.py::test_"
CONTEXT, ROUTED = "tests/axes/test_context.py::test_", "tests/axes/test_experts.py::test_"
NODES, DRAWN = "tests/axes/test_hybrid.py::test_", "tests/test_figures_pipeline_steps.py::test_"

BUBBLE = PLAN + "each_micro_batch_goes_both_ways_once_and_the_bubble_is_p_minus_1_over_m"
FEWER = PLAN + "1f1b_keeps_p_minus_stage_micro_batches_and_gpipe_all"
CIRCLE = PLAN + "stages_that_wait_for_each_other_are_refused"
TURNS = PLAN + "stages_that_take_turns_differently_are_refused"
WHOLE = PIPE + "a_pipeline_is_the_whole_model"
TWO, THREE = WHOLE + "[1f1b-2-3-counts2-traits2]", WHOLE + "[1f1b-3-4-None-traits4]"
KEEPS = PIPE + "a_stage_keeps_the_activations_of_so_many_micro_batches[3]"
NO_PIPE = PIPE + "what_cannot_be_a_pipeline_is_refused"
IN_ORDER = PIPE + "blocks_are_shared_out_in_order"
DENSE = CONTEXT + "a_ring_is_dense_attention[stretches-3-11-4-2]"
ZIGZAG = CONTEXT + "a_ring_is_dense_attention[zigzag-2-8-4-2]"
EXCHANGED = CONTEXT + "an_exchange_of_heads_is_dense_attention[sizes1-4-2]"
BALANCE = CONTEXT + "a_zigzag_balances_what_a_causal_mask_leaves_to_do"
NO_CONTEXT = CONTEXT + "what_cannot_be_shared_out_is_refused"
FORMULA = ROUTED + "a_mixture_is_its_formula[5-2]"
MIXTURE = ROUTED + "experts_on_ranks_are_the_whole_mixture[3-4-2-sizes3]"
NO_EXPERTS = ROUTED + "what_cannot_be_shared_out_is_refused"
ONE = NODES + "hybrid_sharding_is_one_process[4-2-2-2-0.5-False]"
UNEVEN = NODES + "hybrid_sharding_is_one_process[4-2-3-1-0.5-True]"
CROSSING = NODES + "groups_that_do_not_cross_are_refused"


def mutant(name: str, path: str, old: str, new: str, tests: str | tuple, why: str) -> Mutant:
    tests = (tests,) if isinstance(tests, str) else tests
    return Mutant(f"axes-{name}", path, old, new, tests, why)


MUTANTS = [
    # ---- schedules
    mutant(
        "one-more-ahead",
        SCHEDULE,
        "min(stages - 1 - stage, micros)",
        "min(stages - stage, micros)",
        (FEWER, KEEPS),
        "each stage keeps the activations of one micro-batch more",
    ),
    mutant(
        "bubble-of-the-step",
        SCHEDULE,
        "Fraction(end * len(timed) - work, work)",
        "Fraction(end * len(timed) - work, end * len(timed))",
        BUBBLE,
        "the idle part of the step is another number than idle time over work",
    ),
    mutant(
        "no-dependency",
        SCHEDULE,
        "return done.get((neighbour, step)) if 0 <= neighbour <= last else 0",
        "return 0",
        (BUBBLE, CIRCLE),
        "a stage begins before its input is there",
    ),
    mutant(
        "circle-passes",
        SCHEDULE,
        "    if stuck:",
        "    if not timed:",
        CIRCLE,
        "a schedule that never ends has a bubble",
    ),
    mutant(
        "order-free",
        SCHEDULE,
        "if order != orders[0]:",
        "if sorted(order) != sorted(orders[0]):",
        TURNS,
        "a stage takes another micro-batch's message for its own",
    ),
    # ---- a pipeline on ranks
    mutant(
        "first-stages-less",
        STAGES,
        "(i < layers % stages)",
        "(i >= stages - layers % stages)",
        IN_ORDER,
        "the last stage, which has the head already, gets the block that is left over",
    ),
    mutant(
        "empty-stage",
        STAGES,
        "    if stages > layers:",
        "    if stages > layers + 1:",
        NO_PIPE,
        "a stage without a block passes messages on",
    ),
    mutant(
        "ends-unasked",
        PIPELINE,
        "theirs != (wanted if dist.get_rank() in wanted else [])",
        "len(theirs) == 1",
        NO_PIPE,
        "the tied table's gradient is summed over other ranks too, which never come",
    ),
    mutant(
        "no-last-norm",
        STAGES,
        "return self.norm(x) if self.last else x",
        "return x",
        TWO,
        "the last stage leaves out the norm before the head",
    ),
    mutant(
        "tied-not-summed",
        PIPELINE,
        "summed = all_reduce(table.grad, self.ends, donated=True)",
        "summed = table.grad",
        THREE,
        "the two copies of a tied table drift apart",
    ),
    mutant(
        "tied-summed-twice",
        PIPELINE,
        "earlier, table.grad = table.grad, None",
        "earlier = None",
        THREE,
        "a gradient that was summed in the step before is summed again",
    ),
    mutant(
        "mean-of-means",
        PIPELINE,
        "self.stage.loss_sum(y, self.targets[k]) / self.tokens",
        "self.stage.loss_sum(y, self.targets[k]) / self.targets[k].numel() / len(self.targets)",
        TWO,
        "a token of a short micro-batch weighs more",
    ),
    mutant(
        "deaf-clock",
        PIPELINE,
        "start = max(came, self.walked[-1].end if self.walked else 0)",
        "start = self.walked[-1].end if self.walked else 0",
        THREE,
        "no stage ever waits, and there is no bubble",
    ),
    mutant(
        "weights-kept",
        KEPT,
        "not in self._parameters",
        "is not None",
        KEEPS,
        "parameters are counted as activations",
    ),
    mutant(
        "kept-for-ever",
        KEPT,
        "weakref.WeakSet[Saved] = weakref.WeakSet()",
        "set[Saved] = set()",
        (THREE, KEEPS),
        "what a backward has freed is still counted, and still there",
    ),
    # ---- context
    mutant(
        "zigzag-straight",
        PLACES,
        "pieces[2 * n - 1 - r]",
        "pieces[n + r]",
        BALANCE,
        "the last rank has twice the end of the sequence",
    ),
    mutant(
        "places-twice",
        PLACES,
        "every != list(range(len(every)))",
        "False",
        NO_CONTEXT,
        "a position on two ranks is attended to twice",
    ),
    mutant(
        "strict-mask",
        RING,
        "block.places > own[:, None]",
        "block.places >= own[:, None]",
        (DENSE, ZIGZAG),
        "a token does not see itself",
    ),
    mutant(
        "no-rescaling",
        RING,
        "out = out * shrunk + weights",
        "out = out + weights",
        (DENSE, ZIGZAG),
        "what came first weighs by a maximum that holds no more",
    ),
    mutant(
        "total-not-rescaled",
        RING,
        "total = total * shrunk + weights",
        "total = total + weights",
        (DENSE, ZIGZAG),
        "the sum of exponentials mixes two scales",
    ),
    mutant(
        "travelled-in-vain",
        RING,
        "dk, dv = home if travelling is None else home + travelling",
        "dk, dv = home",
        (DENSE, ZIGZAG),
        "keys and values learn from their own rank's queries alone",
    ),
    mutant(
        "softmax-without-its-sum",
        RING,
        "weights * (owed @ block.v.mT - inner)",
        "weights * (owed @ block.v.mT)",
        (DENSE, ZIGZAG),
        "the softmax's backward forgets that its outputs add up to 1",
    ),
    mutant(
        "heads-by-halves",
        HEADS,
        "    if heads % n:",
        "    if heads < n:",
        NO_CONTEXT,
        "heads that do not divide are cut by chunk, unlike what is received",
    ),
    mutant(
        "exchange-without-mask",
        HEADS,
        "is_causal=True",
        "is_causal=False",
        EXCHANGED,
        "tokens see the future",
    ),
    # ---- experts
    mutant(
        "answers-not-weighed",
        EXPERTS,
        " * routing.weights[..., None]",
        "",
        (FORMULA, MIXTURE),
        "the router has no part in the output, and no gradient",
    ),
    mutant(
        "renormalized",
        EXPERTS,
        "return Routing(experts, weights)",
        "return Routing(experts, weights / weights.sum(-1, keepdim=True))",
        FORMULA,
        "with one expert the weight is always 1, and the router learns nothing",
    ),
    mutant(
        "router-alone",
        ON_RANKS,
        "weight.grad = all_reduce(grad, self.group)",
        "weight.grad = grad",
        MIXTURE,
        "each rank's router learns from its own tokens, and they drift apart",
    ),
    mutant(
        "rows-by-sender",
        ON_RANKS,
        "rows[by_expert], coming",
        "rows, coming",
        MIXTURE,
        "rows go to whichever expert comes next",
    ),
    mutant(
        "rank-without-expert",
        ON_RANKS,
        "if total < n:",
        "if total < 1:",
        NO_EXPERTS,
        "a rank without an expert waits for rows that cannot come",
    ),
    # ---- hybrid sharding
    mutant(
        "nodes-apart",
        HYBRID,
        "receive(i, all_reduce(result, across, donated=True))",
        "receive(i, result)",
        (ONE, UNEVEN),
        "each node trains a model of its own",
    ),
    mutant(
        "sum-across",
        HYBRID,
        "super().backward(loss / self.across.size())",
        "super().backward(loss)",
        ONE,
        "gradients grow with the number of nodes",
    ),
    mutant(
        "tokens-of-a-node",
        HYBRID,
        "count = all_reduce(count, self.across, donated=True)",
        "pass",
        UNEVEN,
        "a sum over all nodes is divided by one node's tokens",
    ),
    mutant(
        "own-beginnings",
        HYBRID,
        "            same_everywhere(model, across)\n",
        "            pass\n",
        (ONE, UNEVEN),
        "the nodes begin with different weights",
    ),
    mutant(
        "any-groups",
        HYBRID,
        "    if shared != {rank}:",
        "    if rank not in shared:",
        CROSSING,
        "gradients are summed twice over some ranks",
    ),
    # ---- the picture
    mutant(
        "dark-forwards",
        FIGURE,
        "fill = LIGHT if forward else INK",
        "fill = INK if forward else LIGHT",
        DRAWN + "backwards_are_dark_and_take_twice_as_long_as_forwards",
        "forwards are drawn as backwards",
    ),
    mutant(
        "idle-in-words",
        FIGURE,
        "idle = end - sum(",
        "idle = steps[-1].end - sum(",
        DRAWN + "the_words_give_each_stage_its_steps_and_its_idle_units",
        "a stage that is done early is not said to be idle",
    ),
]
