"""Rows of the Trainer's page: arguments, losses, checkpoints, logging, seeds, devices.

Lesson 13.
"""

from __future__ import annotations

from course_lib.then_and_now.probes import trainer as probes
from course_lib.then_and_now.row import CHANGED, RUN, Row

HERE = "tests/then_and_now/test_trainer.py::"
ZERO = "tests/then_and_now/test_trainer_zero.py::"
ROWS = (
    Row(
        "arguments and callbacks",
        "TrainingArguments hold every setting; a TrainerCallback is told of each event and may "
        "end the run.",
        RUN,
        "The same.",
        (f"{HERE}test_a_callback_is_told_and_can_end_the_run",),
    ),
    Row(
        "arguments and callbacks",
        'evaluation_strategy="epoch".',
        CHANGED,
        "transformers 5 has no such argument: eval_strategy, beside save_strategy.",
        (),
        probes.evaluation_strategy,
        "unexpected keyword argument 'evaluation_strategy'",
    ),
    Row(
        "arguments and callbacks",
        "warmup_ratio=0.1.",
        CHANGED,
        "Gone: warmup_steps takes a number below 1 as a share of the steps.",
        ("tests/deepspeed_config/test_auto.py::test_arguments_that_are_none_are_refused",),
        probes.warmup_ratio,
        "unexpected keyword argument 'warmup_ratio'",
    ),
    Row(
        "arguments and callbacks",
        "logging_dir for TensorBoard's files.",
        CHANGED,
        "Gone: TensorBoard reads TENSORBOARD_LOGGING_DIR.",
        (),
        probes.logging_dir,
        "unexpected keyword argument 'logging_dir'",
    ),
    Row(
        "compute_loss",
        "A Trainer of one's own overrides compute_loss(model, inputs, return_outputs=False).",
        CHANGED,
        "It is called with num_items_in_batch as well, the tokens of all micro-batches: a method "
        "that does not take it ends the run. compute_loss_func needs no class.",
        (),
        probes.compute_loss_signature,
        "unexpected keyword argument 'num_items_in_batch'",
    ),
    Row(
        "compute_metrics",
        "compute_metrics gets all predictions and labels after each evaluation.",
        RUN,
        "The same.",
        (f"{HERE}test_metrics_are_of_all_that_was_predicted",),
    ),
    Row(
        "compute_metrics",
        "include_inputs_for_metrics=True adds the inputs.",
        CHANGED,
        'Gone: include_for_metrics=["inputs"], which may name the loss too.',
        (),
        probes.inputs_for_metrics,
        "unexpected keyword argument 'include_inputs_for_metrics'",
    ),
    Row(
        "the tokenizer of a Trainer",
        "Trainer(tokenizer=tokenizer), which pads batches and is saved with the model.",
        CHANGED,
        "The argument is processing_class: a tokenizer, an image processor or a processor.",
        (),
        probes.tokenizer_argument,
        "unexpected keyword argument 'tokenizer'",
    ),
    Row(
        "checkpoints: save, resume",
        "save_strategy and save_steps write checkpoints; train(resume_from_checkpoint=…) goes on "
        "from one.",
        RUN,
        "The same: the losses go on as without the break.",
        (
            f"{HERE}test_a_run_goes_on_where_a_checkpoint_ends",
            f"{ZERO}test_resume_and_best_model",
        ),
    ),
    Row(
        "checkpoints: save, resume",
        "overwrite_output_dir=True to begin again in a folder that is not empty.",
        CHANGED,
        "Gone: a folder is written to as it is, and nothing is resumed unless it is asked for.",
        (),
        probes.overwrite_output_dir,
        "unexpected keyword argument 'overwrite_output_dir'",
    ),
    Row(
        "checkpoints: save, resume",
        "save_safetensors=False for files of pickle.",
        CHANGED,
        "Gone: weights are saved as safetensors.",
        (),
        probes.save_safetensors,
        "unexpected keyword argument 'save_safetensors'",
    ),
    Row(
        "save_total_limit and load_best_model_at_end",
        "save_total_limit keeps the newest, and the best where load_best_model_at_end is set.",
        RUN,
        "The same: of four checkpoints the best and the last stay.",
        (
            f"{HERE}test_two_checkpoints_stay_and_the_best_is_one_of_them",
            f"{ZERO}test_resume_and_best_model",
        ),
    ),
    Row(
        "logging levels, one or all ranks",
        "log_level for the first rank, log_level_replica for the others, log_on_each_node for "
        "the first of every node.",
        RUN,
        "The same.",
        (f"{ZERO}test_ddps_arguments_and_who_logs",),
    ),
    Row(
        "randomness",
        "seed and data_seed; full_determinism asks torch for deterministic algorithms.",
        RUN,
        "The same: a seed gives the same losses, another one others.",
        (f"{HERE}test_seeds_decide_a_run",),
    ),
    Row(
        "choosing devices",
        "CUDA_VISIBLE_DEVICES picks GPUs and their order, CUDA_DEVICE_ORDER how they are "
        "counted; the deepspeed launcher takes --include instead.",
        RUN,
        "The same for --include and --exclude; where neither is given, the launcher of 0.19.8 "
        "also reads CUDA_VISIBLE_DEVICES.",
        (
            "tests/then_and_now/test_devices.py::test_include_and_exclude_pick_devices",
            "tests/test_ranks.py::test_choose",
        ),
    ),
    Row(
        "choosing devices: the CPU",
        "no_cuda=True trains on the CPU.",
        CHANGED,
        "use_cpu=True. Under several ranks it is needed even where there is no GPU: without it "
        "each rank believes that it is alone.",
        (),
        probes.no_cuda,
        "unexpected keyword argument 'no_cuda'",
    ),
    Row(
        "DDP's arguments",
        "ddp_find_unused_parameters, ddp_bucket_cap_mb, ddp_broadcast_buffers, ddp_backend.",
        RUN,
        "All reach torch's DistributedDataParallel; ddp_static_graph has joined them.",
        (f"{ZERO}test_ddps_arguments_and_who_logs",),
    ),
    Row(
        "auto_find_batch_size",
        "auto_find_batch_size=True makes the batch smaller after each out-of-memory error.",
        RUN,
        "The same. Under ZeRO-3 it is refused.",
        (
            f"{HERE}test_a_batch_that_does_not_fit_is_made_smaller",
            f"{ZERO}test_what_the_trainer_refuses_under_zero",
        ),
    ),
    Row(
        "fp16 and bf16 full evaluation",
        "fp16_full_eval and bf16_full_eval evaluate with all weights in 16 bits.",
        RUN,
        "The same, on a CPU too.",
        (f"{HERE}test_evaluation_may_be_all_in_sixteen_bits",),
    ),
)
