"""Mistakes in the other parts of the course that carry the number of a trap."""

from tests.support.mutation import Mutant

MUTANTS = [
    Mutant(
        "agreement-never-refused",
        "course_lib/collectives/agreement.py",
        "    if others:\n",
        "    if False:\n",
        (
            "tests/course_lib/test_agreement.py::test_a_value_that_differs_is_refused_on_all_ranks[2-0"
            "-other0-1-0]",
        ),
        "ranks with different arguments go on as if they were the same",
        "T20",
    ),
    Mutant(
        "agreement-rank-that-differs-raises-alone",
        "course_lib/collectives/agreement.py",
        "    if others:\n",
        "    if dist.get_rank() in others:\n",
        (
            "tests/course_lib/test_agreement.py::test_a_value_that_differs_is_refused_on_all_ranks[2-0"
            "-other0-1-0]",
        ),
        "the others wait for a rank that has given up",
        "T35",
    ),
    Mutant(
        "agreement-own-error-alone",
        "course_lib/collectives/agreement.py",
        "    if reports:\n        rank, text",
        "    if False:\n        rank, text",
        (
            "tests/course_lib/test_agreement.py::test_a_body_that_fails_on_one_rank_raises_on_all[2-0]",
        ),
        "ranks on which all went well go on alone",
        "T35",
    ),
    Mutant(
        "agreement-first-axis-heard",
        "course_lib/collectives/agreement.py",
        "    for group in groups:\n        gathered",
        "    for group in groups[:1]:\n        gathered",
        ("tests/course_lib/test_agreement.py::test_every_rank_hears_who_says_what[4-2]",),
        "what one replica meets the others never hear",
        "T35",
    ),
    Mutant(
        "any-source-unrefereed",
        "course_classroom/ranks/calls.py",
        "    if operation is None:\n",
        "    if operation is None or (operation.verb == 'recv' and not operation.peer):\n",
        (
            "tests/course_classroom/test_any_source.py::test_a_receive_that_no_rank_sends_to_ends_at_once",
        ),
        "a rank waits inside gloo, where nobody can free it",
        "T30",
    ),
    Mutant(
        "any-source-arrival-not-posted",
        "course_classroom/ranks/referee.py",
        "        if id(work) in self._arriving:\n",
        "        if False:\n",
        (
            "tests/course_classroom/test_any_source.py::test_messages_from_any_rank_arrive_and_lat"
            "er_ones_are_counted_right[2]",
        ),
        "the sender waits for a receive that has long come",
        "T30",
    ),
    Mutant(
        "any-source-arrival-not-counted",
        "course_classroom/ranks/any_source.py",
        "        self.counts[key] += 1\n        return key, self.counts[key]",
        "        return key, self.counts[key] + 1",
        (
            "tests/course_classroom/test_any_source.py::test_messages_from_any_rank_arrive_and_lat"
            "er_ones_are_counted_right[2]",
        ),
        "the next message is taken for the one before",
        "T30",
    ),
    Mutant(
        "direct-from-the-same-side",
        "course_lib/collectives/direct.py",
        "to, source = (rank + j) % n, (rank - j) % n",
        "to, source = (rank + 1) % n, (rank - 1) % n",
        (
            "tests/course_lib/test_collectives_direct.py::test_direct_forms_are_the_verbs[3-sync]",
            "tests/course_lib/test_collectives_direct.py::test_direct_forms_are_the_verbs[4-async]",
        ),
        "every round goes to the next neighbour; with two ranks nobody sees it",
        "T29",
    ),
    Mutant(
        "direct-own-left-out",
        "course_lib/collectives/direct.py",
        "return arrived[0].add_(pieces[rank])",
        "return arrived[0]",
        ("tests/course_lib/test_collectives_direct.py::test_direct_forms_are_the_verbs[2-sync]",),
        "a rank's own part is not in the sum",
        "T2",
    ),
    Mutant(
        "direct-sum-in-the-buffer",
        "course_lib/collectives/direct.py",
        "return arrived[0].add_(pieces[rank])",
        "return pieces[rank].add_(arrived[0])",
        ("tests/course_lib/test_collectives_direct.py::test_direct_forms_are_the_verbs[2-async]",),
        "the caller's buffer holds the sum, and is kept alive by it",
        "T1",
    ),
    Mutant(
        "direct-not-awaited",
        "course_lib/collectives/direct.py",
        "        for work in self._works:\n            work.wait()",
        "        for work in self._works[:1]:\n            work.wait()",
        ("tests/course_lib/test_collectives_direct.py::test_direct_forms_are_the_verbs[4-async]",),
        "the first neighbour's numbers are there, and the others' perhaps",
        "T33",
    ),
    Mutant(
        "direct-books-the-whole",
        "course_lib/collectives/direct.py",
        'with verb("all_gather", own, group, sizes=[own.nbytes] * n):',
        'with verb("all_gather", buffer, group, sizes=[own.nbytes] * n):',
        (
            "tests/course_lib/test_collectives_direct.py::test_direct_forms_are_the_verbs[2-sync]",
            "tests/course_lib/test_collectives_direct.py::test_direct_forms_are_the_verbs[3-async]",
        ),
        "the ledger books n times what is sent",
    ),
    Mutant(
        "direct-rounds-in-16-bits",
        "course_lib/collectives/direct.py",
        "wide = torch.promote_types(buffer.dtype, torch.float32)",
        "wide = buffer.dtype",
        ("tests/course_lib/test_collectives_direct.py::test_sixteen_bits_are_rounded_once",),
        "small numbers are lost beside a large one, one by one",
        "T27",
    ),
    Mutant(
        "direct-any-shape",
        "course_lib/collectives/direct.py",
        "if buffer.dim() != 1 or buffer.numel() % n or not buffer.is_contiguous():",
        "if buffer.numel() % n:",
        ("tests/course_lib/test_collectives_direct.py::test_what_is_no_flat_buffer_is_refused",),
        "a matrix is taken for a flat buffer, or dies in a view",
    ),
    Mutant(
        "classroom-max-passes-as-sum",
        "course_classroom/ranks/calls.py",
        'words = op + (f"({reduction})" if reduction else',
        'words = op + ("(sum)" if reduction else',
        (
            "tests/course_classroom/test_hangs.py::test_ranks_that_disagree_are_told_at_once_and_k"
            "eep_their_group[sum-against-max]",
        ),
        "a sum that meets a maximum is wrong without a word",
        "T35",
    ),
    Mutant(
        "classroom-a-late-call-lost",
        "course_classroom/ranks/board.py",
        "                if at > newest:",
        "                if at < 0:",
        (
            "tests/course_classroom/test_board.py::test_a_call_that_is_posted_while_the_list_is_re"
            "ad_is_found_the_next_time",
        ),
        "a call posted while the board is read is skipped, and its rank waited for until the end",
        "T35",
    ),
    Mutant(
        "classroom-handles-not-watched",
        "course_classroom/ranks/seat.py",
        "with listening(referee), referee:",
        "with referee:",
        (
            "tests/course_classroom/test_hangs.py::test_ranks_that_wait_for_each_other_are_freed_b"
            "efore_the_deadline",
        ),
        "two ranks that both receive wait inside gloo, where nobody can free them",
        "T30",
    ),
    Mutant(
        "classroom-dead-groups-usable",
        "course_classroom/ranks/seat.py",
        "isinstance(group, dist.ProcessGroup) and group.group_name in dead",
        "False",
        (
            "tests/course_classroom/test_hangs.py::test_what_holds_a_dead_group_is_named_and_says_"
            "so_when_used",
        ),
        "a group from before a failure is used after it",
        "T35",
    ),
    Mutant(
        "classroom-ranks-outlive-the-notebook",
        "course_classroom/ranks/rank.py",
        "    while os.getppid() == parent:",
        "    while True:",
        (
            "tests/course_classroom/test_cluster.py::test_no_rank_survives_the_sigkill_of_its_notebook",
        ),
        "ranks stay behind when the notebook is killed",
        "T35",
    ),
    Mutant(
        "classroom-consequence-first",
        "course_classroom/ranks/hangs.py",
        '_ORDER = ["died", "raised", "stuck", "interrupted", "transport", "waited", '
        '"unanswered", "ok"]',
        '_ORDER = ["waited", "died", "raised", "stuck", "interrupted", "transport", '
        '"unanswered", "ok"]',
        ("tests/course_classroom/test_cluster.py::test_an_error_on_one_rank_keeps_all_variables",),
        "the rank that waited hides the one that failed",
        "T35",
    ),
    Mutant(
        "classroom-deadlock-of-all-unseen",
        "course_classroom/ranks/hangs.py",
        "        if before != self._waiting:",
        "        if True:",
        ("tests/course_classroom/test_hangs.py::test_two_groups_in_another_order",),
        "ranks that wait for each other use up the whole deadline",
        "T30",
    ),
    Mutant(
        "data-trouble-kept-to-itself",
        "course_lib/data/prepare.py",
        "            problem = error\n",
        "            raise\n",
        ("tests/course_lib/test_data.py::test_what_fails_on_one_rank_is_raised_on_all",),
        "rank 0 stops, and the others wait for it",
        "T30",
    ),
    Mutant(
        "data-by-world-rank",
        "course_lib/data/batches.py",
        '        group = axis(dp, "dp")\n        return group.rank(), group.size()',
        "        return dp.get_rank(), dp.size()",
        (
            "tests/course_lib/test_data_batches.py::test_tp_ranks_take_the_same_rows_and_dp_ranks_diff"
            "erent_ones",
        ),
        "tp ranks of one model get different rows",
        "T20",
    ),
    Mutant(
        "data-padding-counts",
        "course_lib/data/batches.py",
        "targets = torch.where(counts, ids[:, 1:], IGNORED)",
        "targets = ids[:, 1:]",
        (
            "tests/course_lib/test_data_batches.py::test_an_epoch_has_each_row_once_and_every_target_o"
            "nce[False]",
        ),
        "the first words of the next document are targets",
        "T19",
    ),
    Mutant(
        "data-position-forgotten",
        "course_lib/data/batches.py",
        "        self._epoch, self._position = epoch, position\n",
        "        self._epoch = epoch\n",
        (
            "tests/course_lib/test_data_batches.py::test_a_run_goes_on_with_exactly_the_next_rows_on_a"
            "ny_number_of_dp_ranks",
        ),
        "a run that goes on begins the epoch again",
        "T32",
    ),
    Mutant(
        "ds-check-unknown-passes",
        "course_lib/peers/deepspeed_config/rules/unknown.py",
        '        elif key is None and not section.get("open"):',
        '        elif key is None and section.get("strict"):',
        (
            "tests/course_lib/peers/deepspeed_config/test_broken.py::test_the_mistake_is_found_and_nothing_e"
            "lse[british spelling]",
            "tests/course_lib/peers/deepspeed_config/test_broken.py::test_the_mistake_is_found_and_nothing_e"
            "lse[a letter too few]",
        ),
        "at the top level DeepSpeed itself says nothing",
        "T34",
    ),
    Mutant(
        "ds-check-texts-are-numbers",
        "course_lib/peers/deepspeed_config/kinds.py",
        "        return Verdict(False, checked, number, number)",
        "        return Verdict(True, checked, number, number)",
        (
            "tests/course_lib/peers/deepspeed_config/test_kinds.py::test_a_key_outside_the_models_keeps_what"
            "_it_is_given[kind7-1e-4-False-False-0.0001]",
        ),
        "a text is no number where no model converts it",
        "T34",
    ),
    Mutant(
        "ds-check-auto-of-everybody",
        "course_lib/peers/deepspeed_config/rules/autos.py",
        "    if dotted in TRAINERS:\n        return",
        "    if dotted:\n        return",
        (
            "tests/course_lib/peers/deepspeed_config/test_broken.py::test_the_mistake_is_found_and_nothing_e"
            "lse[auto of no program]",
            "tests/course_lib/peers/deepspeed_config/test_broken.py::test_the_mistake_is_found_and_nothing_e"
            "lse[auto that is a default]",
        ),
        "the Trainer fills in some keys and no others",
        "T34",
    ),
    Mutant(
        "ds-check-last-one-wins",
        "course_lib/peers/deepspeed_config/json_reader.py",
        "            if path in reading.places:",
        "            if path in reading.places and not above:",
        (
            "tests/course_lib/peers/deepspeed_config/test_broken.py::test_the_mistake_is_found_and_nothing_e"
            "lse[twice]",
            "tests/course_lib/peers/deepspeed_config/test_source.py::test_a_key_given_twice_is_told_at_its_s"
            "econd_place",
        ),
        "JSON lets the last one win, silently",
        "T34",
    ),
    Mutant(
        "estimate-padding-forgotten",
        "course_lib/estimate/memory.py",
        'self.between["parameters", tier] += bucket.cut.shard * width',
        'self.between["parameters", tier] += own * width',
        ("tests/course_lib/estimate/test_memory.py::test_what_is_held_is_what_was_estimated[4]",),
        "the shard's padding is memory too",
        "T24",
    ),
    Mutant(
        "estimate-master-forgotten",
        "course_lib/estimate/memory.py",
        "            if zero.master or (home",
        "            if (home",
        (
            "tests/course_lib/estimate/test_memory.py::test_other_optimizers_half_precision_and_frozen"
            "_parameters",
        ),
        "16 bits are trained on a float32 copy, which nobody sees in the model",
        "T25",
    ),
    Mutant(
        "estimate-stage-2-accumulates-for-nothing",
        "course_lib/estimate/traffic.py",
        "    sums = accumulate if stage >= 2 else 1",
        "    sums = accumulate if stage == 3 else 1",
        ("tests/course_lib/estimate/test_traffic.py::test_a_step_sends_what_was_estimated[2]",),
        "at stage 2 each micro-batch costs a reduce-scatter",
        "T22",
    ),
    Mutant(
        "estimate-one-rank-sums-a-copy",
        "course_lib/collectives/direct.py",
        "if n > 1 and (buffer.is_cuda or not uses_gloo(buffer, group)):",
        "if n == 1 or buffer.is_cuda or not uses_gloo(buffer, group):",
        ("tests/course_lib/dry/test_estimates.py::test_a_peak_that_was_off[alone]",),
        "a rank alone has its gradients three times at the end of a backward",
    ),
    Mutant(
        "generate-own-words-alone",
        "course_lib/generate.py",
        "        if self.group is not None:\n            pairs",
        "        if False:\n            pairs",
        (
            "tests/course_lib/test_generate_cut.py::test_a_cut_model_takes_the_words_of_the_whole_one["
            "3-config4-False-1]",
        ),
        "every rank writes a text of its own words",
        "T30",
    ),
    Mutant(
        "generate-nobody-asks",
        "course_lib/generate.py",
        "    if group is not None:  # first",
        "    if False:  # first",
        (
            "tests/course_lib/test_generate_cut.py::test_what_differs_or_cannot_be_is_refused_on_every_rank",
        ),
        "ranks with different prompts mix two texts, or wait for each other",
        "T20",
    ),
    Mutant(
        "gpt-misspelt-key-dropped",
        "course_lib/gpt/config.py",
        '            raise ValueError(f"a config has no key {key!r}',
        '            print(f"a config has no key {key!r}',
        ("tests/course_lib/test_gpt.py::test_a_config_that_cannot_be_is_refused",),
        "a misspelt key is no more than a remark",
        "T34",
    ),
    Mutant(
        "gpt-queries-that-do-not-share-out",
        "course_lib/gpt/config.py",
        "if self.heads % self.kv_heads:",
        "if self.heads < self.kv_heads:",
        ("tests/course_lib/test_gpt.py::test_a_config_that_cannot_be_is_refused",),
        "6 heads over 4 key/value heads",
        "T13",
    ),
    Mutant(
        "gpt-joining-weights-large",
        "course_lib/gpt/model.py",
        "scale = (2 * self.config.layers) ** -0.5 if joins else 1.0",
        "scale = 1.0",
        ("tests/course_lib/test_gpt.py::test_start",),
        "the residual grows with the number of layers",
        "T15",
    ),
    Mutant(
        "gpt-tied-by-value",
        "course_lib/gpt/model.py",
        "self.head.weight = self.tokens.weight",
        "self.head.weight.copy_(self.tokens.weight)",
        ("tests/course_lib/test_gpt.py::test_a_tied_head_gets_both_gradients_and_stays_tied",),
        "the head starts like the table and then goes its own way",
        "T17",
    ),
    Mutant(
        "gpt-recompute-new-masks",
        "course_lib/gpt/model.py",
        "checkpoint(block, x, use_reentrant=False)",
        "checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)",
        ("tests/course_lib/test_gpt.py::test_recomputed_is_stored_bit_by_bit",),
        "the recomputed block drops other elements",
        "T14",
    ),
    Mutant(
        "gpt-kv-heads-not-saved",
        "course_lib/gpt/model.py",
        "wide = (config.heads + 2 * config.kv_heads) * config.head_size",
        "wide = 3 * config.heads * config.head_size",
        ("tests/course_lib/test_gpt.py::test_parameters_are_those_of_published_models",),
        "grouped queries keep all keys and values",
        "T13",
    ),
    Mutant(
        "gpt-rms-float32-for-all",
        "course_lib/gpt/model.py",
        "wide = x if x.dtype == torch.float64 else x.float()",
        "wide = x.float()",
        ("tests/course_lib/test_gpt_transformers.py::test_llama_with_its_own_norm",),
        "float64 goes through float32, and no bound of 1e-10 can hold",
        "T28",
    ),
    Mutant(
        "ground-ranks-outlive-pytest",
        "tests/support/pool_worker.py",
        "                os._exit(1)",
        "                return",
        ("tests/house/test_pool_leftovers.py::test_nothing_outlives_a_killed_pytest",),
        "a rank that waits in a collective stays for good when pytest is killed",
        "T35",
    ),
    Mutant(
        "ground-first-in-time-is-first",
        "tests/support/failures.py",
        "key=lambda f: (f.consequence, f.seconds, f.rank)",
        "key=lambda f: (f.rank, f.seconds)",
        ("tests/house/test_pool.py::test_the_cause_comes_first_and_at_once",),
        "rank 0's lost connection hides the error on the rank that began it",
        "T35",
    ),
    Mutant(
        "ground-one-seed-for-all-ranks",
        "tests/support/pool_worker.py",
        "seed_all(seed + 7919 * self.rank)",
        "seed_all(seed)",
        ("tests/house/test_pool.py::test_seeds_differ_by_rank_and_repeat",),
        "all ranks draw the same numbers, and a collective that does nothing looks right",
        "T29",
    ),
    Mutant(
        "ground-hang-looks-green",
        "tests/support/strict_notebooks.py",
        'if TIMED_OUT in (getattr(report, "wasxfail", "") or ""):',
        "if False:",
        (
            "tests/notebooks/test_canaries.py::test_fails_for_its_own_reason[hang]",
            "tests/notebooks/test_canaries.py::test_fails_for_its_own_reason[hang_that_looks_green]",
        ),
        "cells after a timeout are expected to fail, and a hang ends green",
        "T36",
    ),
    Mutant(
        "ground-threads-fail-unseen",
        "tests/support/kernel_watch.py",
        "        threading.excepthook = excepthook",
        "        pass",
        ("tests/notebooks/test_canaries.py::test_fails_for_its_own_reason[thread_raises]",),
        "an exception in a thread leaves its cell green",
        "T36",
    ),
    Mutant(
        "ground-magics-unread-in-cells-for-ranks",
        "tests/support/notebook_lint.py",
        "return faults_of_source(words[2]) if",
        "return [] if",
        (
            "tests/notebooks/test_notebook_rules.py::"
            "test_what_may_not[%%ranks 0\\n\\n%foo-uses %foo;]",
        ),
        "what stands inside a %%ranks cell is read by nobody",
        "T36",
    ),
    Mutant(
        "harness-06-gradients-not-compared",
        "course_lessons/lesson_05/harness.py",
        'f"{name}\'s gradient")\n            compared += 1',
        'f"{name}\'s gradient") if compared > 99 else None\n            compared += 1',
        (
            "tests/course_classroom/test_harness_06_to_08.py::test_a_block_with_sharded_tokens_is_"
            "held_to_every_gradient_and_to_its_last_weights",
        ),
        "a norm without its sum is called by another name",
        "T16",
    ),
    Mutant(
        "harness-06-losses-of-shares",
        "course_lessons/lesson_05/harness.py",
        "losses.append(n * loss.item())",
        "losses.append(loss.item())",
        (
            "tests/course_classroom/test_harness_06_to_08.py::test_the_losses_of_all_ranks_average"
            "_to_one_that_falls",
        ),
        "a rank's share is printed as a loss",
        "T19",
    ),
    Mutant(
        "harness-07-no-token-ignored",
        "course_lessons/lesson_07/harness.py",
        "    ids[2:, 6:], targets[2:, 6:] = 0, -100\n",
        "",
        (
            "tests/course_classroom/test_harness_06_to_08.py::test_a_batch_has_ignored_tokens_and_"
            "something_to_learn",
        ),
        "the lesson's bug has no token to go wrong with",
        "T8",
    ),
    Mutant(
        "harness-08-query-heads-for-all",
        "course_lessons/lesson_08/harness.py",
        "    block = h * (q + 2 * kv) + q * h",
        "    block = h * 3 * q + q * h",
        (
            "tests/course_classroom/test_harness_06_to_08.py::test_the_formula_of_what_a_rank_hold"
            "s_is_that_of_the_model[2-llama]",
        ),
        "the formula gives a Llama as many key/value heads as query heads",
        "T13",
    ),
    Mutant(
        "ladder-wire-of-one-micro-batch",
        "course_lib/estimate/time/costs.py",
        "self._line(must_bytes, times)",
        "self._line(must_bytes, 1)",
        (
            "tests/course_lib/estimate/test_ladder.py::test_a_rung_holds_saves_and_costs_what_the_forms_say",
        ),
        "from stage 2 on every micro-batch is sent",
        "T22",
    ),
    Mutant(
        "lent-nothing-moves",
        "course_lib/zero/offload/host.py",
        "        return HostStore(self.device)\n",
        "        return None\n",
        ("tests/course_lib/estimate/test_memory.py::test_every_tier_holds_what_was_estimated",),
        "a shard that stays on the device",
    ),
    Mutant(
        "lent-a-view",
        "course_lib/zero/offload/host.py",
        "        super().__init__(master=True)  # a copy in any case",
        "        super().__init__(master=master)  # a copy in any case",
        ("tests/course_lib/zero/offload/test_same.py::test_offload_changes_no_bit[3-lent]",),
        "what was updated never comes back to the shard",
    ),
    Mutant(
        "ledger-even-cut-assumed",
        "course_lib/ledger/calls.py",
        "    return tensors, rows[group.rank()] * row",
        "    return tensors, payload // group.size()",
        (
            "tests/course_lib/ledger/test_ledger_verbs.py::test_raw_calls_are_read_whatever_their_form",
        ),
        "an uneven piece is booked as an even one",
        "T29",
    ),
    Mutant(
        "ledger-ends-when-issued",
        "course_lib/ledger/flight.py",
        "        future.add_done_callback(tell)",
        "        tell()",
        (
            "tests/course_lib/ledger/test_ledger_book.py::test_a_span_lasts_as_long_as_the_call_is_under_way",
        ),
        "an asynchronous call seems to end when it starts: no overlap is ever seen",
        "T33",
    ),
    Mutant(
        "ledger-labels-run-on",
        "course_lib/collectives/call.py",
        "        _label.reset(token)",
        "        pass",
        ("tests/course_lib/ledger/test_ledger_book.py::test_a_label_tells_messages_apart",),
        "what follows a labelled message bears its label",
    ),
    Mutant(
        "ledger-sum-of-rounded-thirds",
        "course_lib/ledger/book.py",
        "parts = (Fraction(round(getattr(r, column) * r.ranks), r.ranks) for r in records)",
        "parts = (Fraction(getattr(r, column)) for r in records)",
        (
            "tests/course_lib/ledger/test_ledger_book.py::test_questions_are_answered_exactly_and_unkn"
            "own_names_refused",
        ),
        "three thirds add up to a little less than one",
        "T28",
    ),
    Mutant(
        "l11-a-seed-names-engines",
        "course_lib/zero/stage3/together.py",
        'torch.tensor([int.from_bytes(os.urandom(7), "big")], device=device_of(group))',
        "torch.randint(1 << 56, (1,), device=device_of(group))",
        ("tests/course_lib/zero/test_stage3.py::test_a_seed_does_not_make_two_engines_one",),
        "two engines after one seed ask under one name, and hear what the other's ranks had asked",
        "T30",
    ),
    Mutant(
        "l12-copy-does-not-wait",
        "course_lib/zero/offload/copies.py",
        "    copying.wait_stream(computing)  # what was asked",
        "    pass  # what was asked",
        (
            "tests/course_lib/zero/offload/test_copies.py::test_the_copy_is_asked_for_first_and_waits_"
            "and_is_waited_for",
        ),
        "a copy overwrites what an earlier product still reads",
    ),
    Mutant(
        "l12-hidden-of-the-longer",
        "course_lib/zero/offload/copies.py",
        "saved / min(self.copy, self.products)",
        "saved / max(self.copy, self.products)",
        ("tests/course_lib/zero/offload/test_copies.py::test_how_much_is_hidden",),
        "a copy that is wholly hidden is called hidden in part",
    ),
    Mutant(
        "l12-measured-without-a-gpu",
        "course_lib/zero/offload/copies.py",
        '    if device.type != "cuda":',
        '    if device.type == "meta":',
        ("tests/course_lib/zero/offload/test_copies.py::test_without_a_gpu_nothing_is_measured",),
        "a machine without a GPU claims a time",
    ),
    Mutant(
        "loss-refused-alone",
        "course_lib/tensor_parallel/loss_checks.py",
        "strict=True)):\n        raise RefusedHere(message)",
        "strict=True)):\n        raise ValueError(message)",
        (
            "tests/course_lib/tensor_parallel/test_loss_checks.py::test_what_one_rank_refuses_is_refus"
            "ed_on_all[2]",
        ),
        "one rank raises, and the others wait for it in the first sum",
    ),
    Mutant(
        "loss-own-tokens-refused-alone",
        "course_lib/tensor_parallel/loss_checks.py",
        "            raise RefusedHere(message)",
        "            raise ValueError(message)",
        (
            "tests/course_lib/tensor_parallel/test_loss_checks.py::test_what_one_rank_refuses_is_refus"
            "ed_on_all[2]",
        ),
        "of fewer tokens than ranks, the rank that has them all waits for the others",
    ),
    Mutant(
        "loss-infinite-is-refused",
        "course_lib/tensor_parallel/loss_checks.py",
        "    if reports:  # none where",
        "    if reports or refusal is None:  # none where",
        (
            "tests/course_lib/tensor_parallel/test_loss_checks.py::test_what_one_rank_refuses_is_refus"
            "ed_on_all[2]",
        ),
        "logits that are infinite are taken for another rank's refusal",
    ),
    Mutant(
        "misuse-pickled",
        "course_lib/tensor_parallel/on_ranks.py",
        "    def __reduce_ex__(self, protocol: int):\n        refuse_to_pickle(self)\n",
        "",
        (
            "tests/course_lib/tensor_parallel/test_misuse.py::test_copies_and_averages_work_and_files_"
            "are_refused[2-sequence]",
        ),
        "torch.save(model) speaks of a ProcessGroup, and not of what to do",
    ),
    Mutant(
        "misuse-copy-is-pickling",
        "course_lib/tensor_parallel/on_ranks.py",
        "    def __copy__(self):",
        "    def copied(self):",
        (
            "tests/course_lib/tensor_parallel/test_misuse.py::test_copies_and_averages_work_and_files_"
            "are_refused[2-sequence]",
        ),
        "a shallow copy goes by the road of a file, and is refused",
    ),
    Mutant(
        "misuse-tokens-shared",
        "course_lib/tensor_parallel/sequence.py",
        "made = memo[id(self)] = Tokens(self.group)",
        "made = memo[id(self)] = self",
        (
            "tests/course_lib/tensor_parallel/test_misuse.py::test_copies_and_averages_work_and_files_"
            "are_refused[2-sequence]",
        ),
        "a copy of the model tells the first one how long the sequence is",
    ),
    Mutant(
        "misuse-mesh-for-a-group",
        "course_lib/collectives/call.py",
        "    except (AttributeError, TypeError):\n        raise TypeError(",
        "    except ZeroDivisionError:\n        raise TypeError(",
        (
            "tests/course_lib/tensor_parallel/test_misuse.py::test_what_is_handed_over_by_mistake_is_named",
        ),
        "a mesh for a group ends in an AttributeError",
    ),
    Mutant(
        "misuse-whole-numbers-as-activations",
        "course_lib/tensor_parallel/on_ranks.py",
        "    if not x.is_floating_point():",
        "    if False:",
        (
            "tests/course_lib/tensor_parallel/test_misuse.py::test_what_is_handed_over_by_mistake_is_named",
        ),
        "ids in a linear layer are told to become another dtype",
    ),
    Mutant(
        "misuse-ids-of-any-kind",
        "course_lib/tensor_parallel/embedding.py",
        "    if kind not in (torch.int64, torch.int32):",
        "    if False:",
        (
            "tests/course_lib/tensor_parallel/test_misuse.py::test_what_is_handed_over_by_mistake_is_named",
        ),
        "activations as ids fail inside torch",
    ),
    Mutant(
        "misuse-function-hides-its-file",
        "course_lib/tensor_parallel/__init__.py",
        "    cross_entropy as vocabulary_parallel_cross_entropy,\n)\n",
        "    cross_entropy,\n)\n\nvocabulary_parallel_cross_entropy = cross_entropy\n",
        (
            "tests/course_lib/tensor_parallel/test_misuse.py::test_the_names_that_a_port_needs_are_exp"
            "orted_and_no_file_is_hidden",
        ),
        "`from course_lib.tensor_parallel import cross_entropy` is no longer the file",
    ),
    Mutant(
        "mlp-fused-cut-straight",
        "course_lib/tensor_parallel/mlp.py",
        "        rows = [(start, stop), (inner + start, inner + stop)]  # of gate, and "
        "of up the same",
        "        rows = [(2 * start, 2 * stop)]",
        (
            "tests/course_lib/tensor_parallel/test_mlp.py::test_a_column_of_up_lies_beside_its_own_gate[2]",
            "tests/course_lib/tensor_parallel/test_mlp.py::test_the_mlp_is_the_dense_one_and_sends_one"
            "_sum_each_way[3-None]",
        ),
        "the first rank gets gates alone, the last one ups; every shape fits",
        "T13",
    ),
    Mutant(
        "mlp-message-between",
        "course_lib/tensor_parallel/mlp.py",
        "        mlp.up = ColumnParallelLinear.from_dense(mlp.up, group, "
        "overlap=overlap)\n"
        "    mlp.down = RowParallelLinear.from_dense(mlp.down, group)",
        "        mlp.up = ColumnParallelLinear.from_dense(\n"
        "            mlp.up, group, overlap=overlap, gather_output=True\n"
        "        )\n"
        '    joined = mlp.activation != "swiglu"\n'
        "    mlp.down = RowParallelLinear.from_dense(mlp.down, group, "
        "split_input=joined)",
        (
            "tests/course_lib/tensor_parallel/test_mlp.py::test_the_mlp_is_the_dense_one_and_sends_one"
            "_sum_each_way[2-None]",
        ),
        "joined and cut again: every number is right, and two messages are for nothing",
        "T4",
    ),
    Mutant(
        "parallelize-copies-unchecked",
        "course_lib/tensor_parallel/parallelize.py",
        "    check_replicas(model, group)\n    attention",
        "    attention",
        (
            "tests/course_lib/tensor_parallel/test_parallelize.py::test_what_cannot_be_cut_is_refused_"
            "before_anything_is_changed",
        ),
        "each rank brings another model, and the parts of no model train together",
        "T15",
    ),
    Mutant(
        "parallelize-only-the-sum",
        "course_lib/collectives/agreement.py",
        ".mul_(odd[: bits.numel()]).mul_(0x9E3779B1)",
        ".mul_(0x9E3779B1)",
        (
            "tests/course_lib/tensor_parallel/test_parallelize.py::test_copies_that_differ_are_found_and_named",
        ),
        "numbers that have changed places have the same sum",
        "T15",
    ),
    Mutant(
        "parallelize-shared-heads-unchecked",
        "course_lib/tensor_parallel/parallelize.py",
        "    for holders, named in shared.values():",
        "    for holders, named in []:",
        (
            "tests/course_lib/tensor_parallel/test_parallelize.py::test_a_shared_head_that_drifts_is_f"
            "ound_and_named",
        ),
        "a key/value head held twice becomes two heads, and nothing says so",
        "T13",
    ),
    Mutant(
        "parallelize-other-layers-elsewhere",
        "course_lib/tensor_parallel/parallelize.py",
        "    if len(set(counts.tolist())) > 1:",
        "    if False:",
        (
            "tests/course_lib/tensor_parallel/test_parallelize.py::test_a_model_with_other_layers_is_r"
            "efused_in_words",
        ),
        "ranks with other configs end in an abort of gloo",
        "T15",
    ),
    Mutant(
        "parallelize-row-bias-forgotten",
        "course_lib/tensor_parallel/parallelize.py",
        '                isinstance(module, RowParallelLinear) and name == "weight"',
        "                isinstance(module, RowParallelLinear)",
        (
            "tests/course_lib/tensor_parallel/test_parallelize.py::test_copies_that_differ_are_found_and_named",
        ),
        "the bias of a row-parallel layer is a copy, and nobody looks at it",
        "T16",
    ),
    Mutant(
        "parallelize-attention-left-whole",
        "course_lib/tensor_parallel/parallelize.py",
        "        shard_attention(block.attention, group, holders=holders, overlap=overlap)\n",
        "",
        (
            "tests/course_lib/tensor_parallel/test_parallelize.py::test_a_block_sends_two_sums_forward"
            "_and_two_backward[gpt2-2]",
        ),
        "the attention is computed whole on every rank: right, and for nothing",
        "T4",
    ),
    Mutant(
        "pretrained-thirds-of-qkv",
        "course_lib/pretrained/names.py",
        "    if len(stored) == 3:",
        "    if False:",
        (
            "tests/course_lib/pretrained/test_transformers.py::test_logits_of_published_checkpoints[2]",
        ),
        "q, k and v are taken to be equally long",
        "T13",
    ),
    Mutant(
        "pretrained-padding-is-words",
        "course_lib/pretrained/names.py",
        "_joined([(layer.start, min(layer.stop, layer.vocabulary))])",
        "_joined([(layer.start, layer.stop)])",
        (
            "tests/course_lib/pretrained/test_save.py::test_one_rank_to_four_to_two_to_one_bit_by_bit",
        ),
        "rows of no word are saved, or read",
        "T9",
    ),
    Mutant(
        "pretrained-untied-said-tied",
        "course_lib/pretrained/config.py",
        'own |= {"model_type": kind,',
        'own |= {"tie_word_embeddings": True, "model_type": kind,',
        (
            "tests/course_lib/pretrained/test_transformers.py::test_transformers_reads_what_we_write",
        ),
        "transformers ties a head that has weights of its own",
        "T17",
    ),
    Mutant(
        "pretrained-tie-cut",
        "course_lib/pretrained/load.py",
        "                if old not in made:",
        "                if True:",
        ("tests/course_lib/pretrained/test_load.py::test_every_rank_gets_its_own[2]",),
        "a tied head becomes a second parameter",
        "T17",
    ),
    Mutant(
        "pretrained-padding-left",
        "course_lib/pretrained/load.py",
        "parameter[piece.length :] = 0.0",
        "parameter[piece.length :] += 0.0",
        ("tests/course_lib/pretrained/test_load.py::test_every_rank_gets_its_own[3]",),
        "rows of no word keep what was there",
        "T9",
    ),
    Mutant(
        "pretrained-all-in-memory",
        "course_lib/pretrained/save.py",
        "writer.put(name, numbers)",
        "writer.put(name, numbers), vars(writer).setdefault('kept', []).append(numbers)",
        ("tests/course_lib/pretrained/test_save.py::test_no_rank_holds_more_than_a_tensor",),
        "what has been written is kept",
        "T31",
    ),
    Mutant(
        "ranks-no-loopback",
        "course_lib/ranks.py",
        'os.environ.setdefault("GLOO_SOCKET_IFNAME", name)',
        "pass",
        (
            "tests/course_lib/test_ranks_loopback.py::test_gloo_listens_on_loopback_whatever_the_host_"
            "name[as-shipped]",
        ),
        "gloo listens on the address of the host's name, open to the network",
        "T35",
    ),
    Mutant(
        "ranks-group-without-timeout",
        "course_lib/ranks.py",
        "return dist.new_group(members, timeout=timedelta(seconds=timeout))",
        "return dist.new_group(members)",
        (
            "tests/course_lib/test_ranks.py::test_a_group_of_some_ranks",
            "tests/course_lib/test_ranks.py::test_a_groups_timeout_ends_a_wait",
            "tests/course_lib/test_ranks.py::test_the_mesh[2-2]",
        ),
        "a rank that waits in a group of its own waits for torch's half hour",
        "T30",
    ),
    Mutant(
        "ranks-mesh-transposed",
        "course_lib/ranks.py",
        "grid = torch.arange(me.world).view(dp, tp)",
        "grid = torch.arange(me.world).view(tp, dp).t()",
        ("tests/course_lib/test_ranks.py::test_the_mesh[2-2]",),
        "tensor parallelism crosses nodes: ranks far apart share a tp group",
        "T29",
    ),
    Mutant(
        "tokenizers-rows-of-the-old-cut",
        "course_lib/tensor_parallel/resize.py",
        "start, stop = span(padded, *size_and_rank(group)) if is_cut else (0, padded)",
        "start, stop = (table.start, table.stop) if is_cut else (0, padded)",
        (
            "tests/course_lib/tensor_parallel/test_resize.py::test_every_layout_has_the_rows_of_one_process[3]",
        ),
        "the cut moves with the vocabulary",
    ),
    Mutant(
        "tokenizers-mean-of-own-rows",
        "course_lib/tensor_parallel/resize.py",
        "wide.mean(0) + NEAR",
        "weight.detach().double().mean(0) + NEAR",
        (
            "tests/course_lib/tensor_parallel/test_resize.py::test_every_layout_has_the_rows_of_one_process[3]",
        ),
        "new rows depend on how many ranks there are",
    ),
    Mutant(
        "tokenizers-shrinks-below-use",
        "course_lib/tensor_parallel/resize.py",
        "(used is None or used > vocabulary)",
        "used is None",
        (
            "tests/course_lib/tensor_parallel/test_resize.py::test_fewer_words_are_refused_while_ids_name_them",
        ),
        "ids without a row",
    ),
    Mutant(
        "layouts-stage-0-always",
        "course_lib/train/program.py",
        "stage=options.stage, mesh=mesh, precision",
        "stage=0, mesh=mesh, precision",
        (
            "tests/course_lib/train/test_layouts.py::test_all_stages_and_offloads_make_the_same_steps[most]",
        ),
        "the stage that was typed is not the one that runs",
        "T34",
    ),
    Mutant(
        "layouts-tokens-of-this-rank",
        "course_lib/train/program.py",
        "tokens=batch.count / divisor)",
        "tokens=batch.total / divisor)",
        ("tests/course_lib/train/test_layouts.py::test_replicas_change_neither_loss_nor_gradient",),
        "a sum is divided by every token once a rank",
        "T19",
    ),
    Mutant(
        "layouts-offload-of-parameters-forgotten",
        "course_lib/train/checks.py",
        "    if options.stage == 3 and options.offload_parameters:\n",
        "    if options.stage == 4:\n",
        ("tests/course_lib/train/test_options.py::test_what_the_engine_is_told_to_offload",),
        "at stage 3 the parameters stay on the device",
        "T34",
    ),
    Mutant(
        "layouts-mean-of-this-replica",
        "course_lib/train/text.py",
        "return every.loss / every.tokens if every.tokens else None",
        "return total / count if every.tokens else None",
        ("tests/course_lib/train/test_text.py::test_a_validation_is_the_mean_over_all_replicas",),
        "each replica has a validation loss of its own",
        "T19",
    ),
    Mutant(
        "program-misspelt-taken",
        "course_lib/train/options.py",
        "    if unknown:\n",
        "    if unknown is None:\n",
        (
            "tests/course_lib/train/test_options.py::"
            "test_a_wrong_call_is_refused_by_name[not an option]",
            "tests/course_lib/train/test_options.py::"
            "test_a_wrong_call_is_refused_by_name[a word of its own]",
        ),
        "a default stays in place without a word",
        "T34",
    ),
    Mutant(
        "program-every-rank-says-it",
        "course_lib/train/entry.py",
        "        if rank == 0:\n            _line(str(error))\n",
        "        _line(str(error))\n",
        ("tests/course_lib/train/test_options.py::test_under_a_launcher_rank_0_alone_says_it[1]",),
        "a hundred ranks print a hundred lines",
        "T35",
    ),
    Mutant(
        "program-masks-by-the-past",
        "course_lib/train/program.py",
        '                seed_all(mix(options.seed, done), replica=mesh.get_group("dp").rank())\n',
        "                if not done:\n                    seed_all(options.seed)\n",
        (
            "tests/course_lib/train/test_program.py::test_a_rank_killed_in_a_step_costs_the_steps_sinc"
            "e_the_last_checkpoint",
        ),
        "masks after going on are others than without the stop",
        "T32",
    ),
    Mutant(
        "program-handler-alone",
        "course_lib/train/stop.py",
        "                os._exit(128 + number[0])\n",
        "                pass\n",
        ("tests/course_lib/train/test_program.py::test_a_second_signal_ends_it_at_once",),
        "a rank that waits for a hung neighbour cannot be ended",
        "T35",
    ),
    Mutant(
        "program-cause-of-the-last",
        "course_lib/train/launch.py",
        "rank, code = (causes or failed)[0]",
        "rank, code = failed[-1]",
        (
            "tests/course_lib/train/test_folder.py::test_the_cause_is_told_in_whatever_order_ranks_end",
        ),
        "whoever ended last is told as the cause",
        "T35",
    ),
    Mutant(
        "compile-without-a-reason",
        "course_lib/tensor_parallel/uncompiled.py",
        "    function._torchdynamo_disable_msg = REASON",
        "    function._torchdynamo_disable_msg = None",
        (
            "tests/course_lib/tensor_parallel/test_compile.py::test_a_loss_inside_of_a_compiled_functi"
            "on_is_the_plain_one",
        ),
        "fullgraph=True is refused, and nobody learns why",
    ),
    Mutant(
        "compile-looks-into-the-loss",
        "course_lib/tensor_parallel/uncompiled.py",
        "    *(cross_entropy, head_cross_entropy),\n",
        "    head_cross_entropy,\n",
        (
            "tests/course_lib/tensor_parallel/test_compile.py::test_a_loss_inside_of_a_compiled_functi"
            "on_is_the_plain_one",
        ),
        "torch.compile takes the loss apart, and ranks break their graphs at different places",
    ),
    Mutant(
        "compile-looks-into-gathering",
        "course_lib/tensor_parallel/uncompiled.py",
        "*(sequence_plan.ScatteringEmbedding, sequence_plan.GatheringHead)",
        "sequence_plan.GatheringHead",
        (
            "tests/course_lib/tensor_parallel/test_compile.py::test_a_compiled_model_is_the_plain_one[True]",
        ),
        "the embedding is taken apart up to its message",
    ),
]
