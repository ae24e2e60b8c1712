"""Mistakes in course_lib/zero: partition, buckets, shards, stages 0 to 2."""

from tests.support.mutation import Mutant

ZERO = "course_lib/zero/"
PARTITION, BUCKETS, SHARDS = f"{ZERO}partition.py", f"{ZERO}buckets.py", f"{ZERO}shards.py"
HOME = f"{ZERO}optimizer_home.py"
DDP, STAGE1, STAGE2 = f"{ZERO}ddp.py", f"{ZERO}stage1.py", f"{ZERO}stage2.py"
STAGES = "tests/course_lib/zero/test_stages.py::"
ONE = f"{STAGES}test_a_stage_is_one_process"
CUT = "tests/course_lib/zero/test_partition.py::"
EVERY = f"{CUT}test_every_number_lies_in_one_place"
THROUGH = f"{CUT}test_boxes_go_through_a_cut_by_tensor_parallelism"
GRADIENTS = "tests/course_lib/zero/test_gradients.py::"
TORCHS = f"{GRADIENTS}test_data_parallel_is_torchs"
BROKEN = f"{GRADIENTS}test_after_a_broken_step_the_next_is_right"
POISON = f"{GRADIENTS}test_nobody_reads_a_buffer_after_its_use"
UNDER = f"{GRADIENTS}test_buckets_leave_under_the_backward"
SHARDING = "tests/course_lib/zero/test_sharding.py::"
HELD = f"{SHARDING}test_what_is_held_to_the_byte"
BOUNDED = f"{SHARDING}test_bounded_buckets_at_stage_2"
BY_HAND = f"{ZERO}by_hand.py"
IN_FIVE_STEPS = (
    "tests/course_lib/zero/test_by_hand.py::"
    "test_five_steps_are_those_of_one_process_and_of_the_engine[2-2-tied-momentum]",
)

MUTANTS = [
    # ---- by hand
    Mutant(
        "by-hand-sum-for-mean",
        BY_HAND,
        "        piece = reduce_scatter(gradients, self.group) / self.n",
        "        piece = reduce_scatter(gradients, self.group)",
        IN_FIVE_STEPS,
        "a rate that grows with the ranks, which Adam would hide",
    ),
    Mutant(
        "by-hand-set-for-added",
        BY_HAND,
        "piece if self.own.grad is None else self.own.grad + piece",
        "piece",
        IN_FIVE_STEPS,
        "a step learns from its last micro-batch alone",
    ),
    # ---- partition
    Mutant(
        "zero-tied-twice",
        PARTITION,
        "        if parameter in seen or not parameter.requires_grad or not parameter.numel():",
        "        if not parameter.requires_grad or not parameter.numel():",
        (f"{CUT}test_frozen_tied_and_empty_parameters_have_no_place_or_one",),
        "a parameter that is named twice is trained twice",
        "T17",
    ),
    Mutant(
        "zero-frozen-are-sent",
        PARTITION,
        "        if parameter in seen or not parameter.requires_grad or not parameter.numel():",
        "        if parameter in seen or not parameter.numel():",
        (f"{CUT}test_frozen_tied_and_empty_parameters_have_no_place_or_one",),
        "what is not trained is sent and held as if it were",
        "T21",
    ),
    Mutant(
        "zero-piece-from-the-buckets-start",
        PARTITION,
        "Piece(slot, start - slot.start, stop - slot.start, start - first)",
        "Piece(slot, start - slot.start, stop - slot.start, start)",
        (f"{EVERY}[dtypes0-1048576-3]",),
        "a shard's pieces are looked for where they lie in the whole bucket",
        "T24",
    ),
    Mutant(
        "zero-boxes-of-the-first-span-alone",
        PARTITION,
        "            hits.append((begin + a - first, b - a))",
        "            hits.append((begin + a, b - a))",
        (f"{THROUGH}[spans2-0]",),
        "what lies in the second range of a cut tensor is looked for in the wrong rows",
    ),
    # ---- buckets
    Mutant(
        "zero-sends-as-they-fill",
        BUCKETS,
        "            if len(self._came[self._sent]) < self._expected[self._sent]:\n"
        "                return\n"
        "            self._send_next()",
        "            self._send_next()",
        (f"{ONE}[0-plain]", f"{ONE}[2-plain]"),
        "a bucket leaves with the first gradient that comes, and lacks the others",
        "T21",
    ),
    Mutant(
        "zero-engines-live-for-ever",
        BUCKETS,
        "        self.gradients, self.i, self.j = weakref.ref(gradients), i, j",
        "        self.gradients, self.i, self.j = lambda: gradients, i, j",
        (
            "tests/course_lib/zero/test_stages.py::test_an_engine_that_nobody_needs_is_gone[0]",
            "tests/course_lib/zero/test_stages.py::test_an_engine_that_nobody_needs_is_gone[3]",
        ),
        "every engine that was ever made keeps its model, its buffers and its groups",
    ),
    Mutant(
        "zero-sends-at-the-end",
        BUCKETS,
        "        if self.sync:\n            self._send_full()",
        "        if self.sync and False:\n            self._send_full()",
        (f"{UNDER}[0-0]", f"{UNDER}[2-0]", BOUNDED),
        "every number is right, and nothing overlaps with the backward",
    ),
    Mutant(
        "zero-unused-keeps-the-last",
        BUCKETS,
        "                self.partition.buckets[i].view(self.buffers[i], slot).zero_()",
        "                pass",
        (f"{ONE}[0-unused on one rank]", f"{ONE}[1-unused on one rank]"),
        "where no gradient came, the bucket still holds that of an earlier step",
        "T21",
    ),
    Mutant(
        "zero-used-here-alone",
        BUCKETS,
        "            self.used = {p for p, flag in zip(every, flags, strict=False) if flag}",
        "            self.used = set(self._own)",
        (f"{ONE}[0-unused on one rank]", f"{ONE}[2-unused on one rank]"),
        "a rank that did not use a parameter leaves it as it was, while the others train it",
        "T21",
    ),
    Mutant(
        "zero-earlier-micro-batch-forgotten",
        BUCKETS,
        "            elif slot.parameter.grad is not None:  # from an earlier backward pass",
        "            elif False:",
        (f"{ONE}[0-unused in a micro-batch]", f"{ONE}[1-unused in a micro-batch]"),
        "what only an earlier micro-batch used is overwritten with zeros",
        "T22",
    ),
    Mutant(
        "zero-accumulation-overwrites",
        BUCKETS,
        "        if begins_at(slot.parameter.grad) != begins_at(view):\n"
        "            view.copy_(slot.parameter.grad)\n"
        "            slot.parameter.grad = view",
        "        view.copy_(slot.parameter.grad)\n        slot.parameter.grad = None",
        (f"{ONE}[0-accumulated]", f"{ONE}[1-four]"),
        "the bucket holds the last micro-batch alone",
        "T22",
    ),
    Mutant(
        "zero-no-sync-not-safe",
        BUCKETS,
        "        try:\n            yield\n        finally:\n            self.sync = before",
        "        yield\n        self.sync = before",
        (f"{GRADIENTS}test_after_an_error_inside_no_sync_gradients_are_sent_again",),
        "after an error inside no_sync no gradient is ever sent again",
        "T21",
    ),
    Mutant(
        "zero-broken-backward-counts",
        BUCKETS,
        "        self._task = None\n        self._drop()\n        if not",
        "        if not",
        (f"{BROKEN}[0-backward]", f"{BROKEN}[2-backward]"),
        "a backward that broke off goes on receiving while the next one runs",
    ),
    Mutant(
        "zero-nested-backward",
        BUCKETS,
        "        if nested():",
        "        if False:",
        (f"{GRADIENTS}test_a_backward_inside_a_backward_is_refused[0]",),
        "the end of an inner backward is taken for the end of all, and zeros are sent",
    ),
    # ---- ddp
    Mutant(
        "zero-ddp-sum-for-mean",
        DDP,
        "buffer.div_(self.group.size())",
        "buffer",
        (f"{TORCHS}[2]", f"{TORCHS}[3]"),
        "the gradients are summed and not averaged",
        "T19",
    ),
    Mutant(
        "zero-ddp-divides-afterwards",
        DDP,
        "        return super().send(i, buffer.div_(self.group.size()))",
        "        return super().send(i, buffer)\n\n"
        "    def receive(self, i: int, result: Tensor) -> None:\n"
        "        super().receive(i, result)\n"
        "        self.buffers[i].div_(self.group.size())",
        (f"{GRADIENTS}test_a_mean_does_not_overflow_where_the_sum_would",),
        "in 16 bits the sum overflows before it is divided",
        "T27",
    ),
    Mutant(
        "zero-ddp-own-weights",
        DDP,
        "        tensor.copy_(broadcast(tensor.detach(), group))",
        "        broadcast(tensor.detach(), group)",
        (f"{TORCHS}[2]",),
        "each rank begins with weights of its own",
        "T15",
    ),
    # ---- shards and stages 1 and 2
    Mutant(
        "zero-gather-sends-itself",
        SHARDS,
        "all_gather(buffer, self.group, async_op=True)",
        "all_gather(buffer.copy_(bucket.shard(buffer, 0).repeat(self.group.size())), "
        "self.group, async_op=True)",
        (f"{ONE}[1-plain]", f"{ONE}[2-plain]"),
        "every rank hands out the first shard, which it has not updated",
        "T23",
    ),
    Mutant(
        "zero-gather-not-awaited",
        SHARDS,
        "        while under_way:\n            under_way.popleft().wait()",
        "        under_way.clear()",
        (f"{POISON}[1-0]",),
        "the next forward reads parameters that are still on their way",
        "T33",
    ),
    Mutant(
        "zero-master-of-zeros-width",
        HOME,
        "        return [nn.Parameter(view.float() if self.copied else view) for view in views]",
        "        return [nn.Parameter(view) for view in views]",
        ("tests/course_lib/zero/test_precision.py::test_tiny_steps_add_up_in_the_master[1]",),
        "the optimizer works on the 16 bits, where small steps are lost",
        "T25",
    ),
    Mutant(
        "zero-master-not-brought-back",
        SHARDS,
        "            if self.home.copied:\n"
        "                for piece, part in own:\n"
        "                    piece.of(shard).copy_(part, non_blocking=True)",
        "            if False:\n"
        "                for piece, part in own:\n"
        "                    piece.of(shard).copy_(part, non_blocking=True)",
        ("tests/course_lib/zero/test_precision.py::test_tiny_steps_add_up_in_the_master[1]",),
        "the masters are trained, and the model never hears of it",
        "T25",
    ),
    Mutant(
        "zero-1-first-shard-for-all",
        STAGE1,
        "        self.partition.buckets[i].shard(self.buffers[i], self.group.rank()).copy_(result)",
        "        self.partition.buckets[i].shard(self.buffers[i], 0).copy_(result)",
        (f"{ONE}[1-plain]",),
        "the sums are written where the first rank's shard lies",
        "T23",
    ),
    Mutant(
        "zero-2-keeps-its-gradients",
        STAGE2,
        "        self.buffers[i] = None  # the message in progress holds it",
        "        pass",
        (f"{HELD}[2-2-between steps]", f"{HELD}[2-2-gradients alive]"),
        "every number is right, and the whole gradients stay: stage 1 with more messages",
        "T23",
    ),
    Mutant(
        "zero-2-parameters-keep-theirs",
        STAGE2,
        "            slot.parameter.grad = None",
        "            pass",
        (BOUNDED,),
        "a gradient that has left is added to once more",
        "T22",
    ),
    Mutant(
        "zero-2-last-micro-batch-alone",
        HOME,
        "            part.grad = new if part.grad is None else part.grad.add_(new)",
        "            part.grad = new",
        (f"{ONE}[2-accumulated]", f"{ONE}[3-four]"),
        "accumulation overwrites",
        "T22",
    ),
    Mutant(
        "zero-2-used-in-the-last-alone",
        STAGE2,
        "            self.so_far |= self.used",
        "            self.so_far = set(self.used)",
        (f"{ONE}[2-unused in a micro-batch]", f"{ONE}[3-unused in a micro-batch]"),
        "what only an earlier micro-batch used is left out",
        "T22",
    ),
    Mutant(
        "zero-2-used-for-ever",
        STAGE2,
        "        self.so_far.clear()",
        "        pass",
        (f"{ONE}[2-unused now and then]",),
        "what was used once is trained on zeros ever after",
        "T21",
    ),
]
