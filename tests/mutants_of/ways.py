"""Mistakes in the six ways: bytes that nobody counts, a way that is another, a mean of another."""

from tests.mutation import Mutant

HERE = "course_lib/ways/"
WAYS = "tests/ways/test_ways.py::test_every_stage_has_one_curve_and_is_what_it_says"
REFUSED = "tests/ways/test_ways.py::test_a_setting_that_no_way_has_is_refused"
DIFFERENT = "tests/ways/test_differences.py::test_"

MUTANTS = [
    Mutant(
        "ways-trainer-not-cut",
        f"{HERE}with_trainer.py",
        "            model = sharded(model, mesh, workload, setting)\n",
        "",
        (WAYS,),
        "a Trainer whose model nobody cuts is DDP's, and the curve is the same",
    ),
    Mutant(
        "ways-each-rank-a-gpu",
        f"{HERE}launched.py",
        "me.local_rank if gpu is None else gpu",
        "me.local_rank",
        ("tests/ways/test_ways.py::test_ranks_that_share_a_gpu_are_told_its_number",),
        "where two ranks share one GPU, DeepSpeed asks for a second one",
    ),
    Mutant(
        "ways-fsdp2-never-reshards",
        f"{HERE}with_fsdp2.py",
        '"reshard_after_forward": setting.stage == 3}',
        '"reshard_after_forward": False}',
        (WAYS,),
        "then stage 3 gathers once a micro-batch and not twice",
    ),
    Mutant(
        "ways-deepspeed-at-stage-0",
        f"{HERE}ds_config.py",
        'zero: dict = {"stage": setting.stage}',
        'zero: dict = {"stage": min(setting.stage, 2)}',
        (WAYS,),
        "a stage that is not asked for shows in what is held",
    ),
    Mutant(
        "ways-masters-not-counted",
        f"{HERE}with_deepspeed.py",
        '            *getattr(optimizer, "fp32_partitioned_groups_flat", ()),\n',
        "",
        (WAYS,),
        "a master copy is no bucket",
    ),
    Mutant(
        "ways-norms-counted-as-traffic",
        f"{HERE}evidence.py",
        'if r.op != "all_reduce" or r.payload > SMALL]',
        "]",
        (WAYS,),
        "a few numbers that ranks agree on are no gradients",
    ),
    Mutant(
        "ways-one-ranks-loss",
        f"{HERE}loop.py",
        "    return (all_reduce(mine, dist.group.WORLD) / me.world).tolist()",
        "    return mine.tolist()",
        (WAYS,),
        "a rank's own loss is over its own rows",
    ),
    Mutant(
        "ways-rows-by-rank",
        f"{HERE}workload.py",
        "batch = self.workload.batch_of(step, micro, rank)",
        "batch = self.workload.batch_of(step, rank, micro)",
        (
            "tests/ways/test_ways.py::test_a_dataloader_reads_the_batches_of_the_loop_in_their_order",
        ),
        "a sampler deals micro-batches to ranks in turn",
    ),
    Mutant(
        "ways-uneven-is-even",
        f"{HERE}workload.py",
        "            labels[torch.arange(self.length) >= ends[:, None]] = -100\n",
        "            pass\n",
        (f"{DIFFERENT}unequal_tokens_are_weighed_by_the_trainer_alone",),
        "over equal tokens all means are one",
    ),
    Mutant(
        "ways-first-label-counted",
        f"{HERE}workload.py",
        "        labels[:, 0] = -100  # nothing predicts it, and the Trainer would count it\n",
        "",
        (f"{DIFFERENT}the_trainer_counts_a_label_that_gpt2_does_not_predict",),
        "the Trainer counts it for GPT-2 and divides by one too many",
    ),
    Mutant(
        "ways-asked-on-cpu",
        f"{HERE}asked.py",
        '"deepspeed": for_trainer(workload, setting), "use_cpu": False}',
        '"deepspeed": for_trainer(workload, setting)}',
        (f"{DIFFERENT}what_the_trainer_on_a_cpu_does_not_cut",),
        "with use_cpu=True each Trainer knows of the other",
    ),
    Mutant(
        "ways-state-left-behind",
        f"{HERE}launched.py",
        "        AcceleratorState._reset_state(reset_partial_state=True)\n",
        "",
        ("tests/ways/test_ways.py::test_nothing_that_a_way_has_set_is_met_by_the_next",),
        "a way must not meet what the one before has left in Accelerate",
    ),
    Mutant(
        "ways-offload-at-stage-0",
        f"{HERE}setting.py",
        "        if self.offload is not None and self.stage == 0:",
        "        if self.offload is not None and self.stage == 9:",
        (REFUSED,),
        "at stage 0 there is no part to move",
    ),
]
