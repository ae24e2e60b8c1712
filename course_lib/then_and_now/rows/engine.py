"""Rows of the DeepSpeed page: optimizer, scheduler, precision, batch, clipping.

Lesson 13.
"""

from __future__ import annotations

from course_lib.then_and_now.probes import deepspeed, trainer
from course_lib.then_and_now.row import CHANGED, RUN, Row

ENGINE = "tests/then_and_now/test_engine.py::"
CONFIG = "tests/deepspeed_config/"
ROWS = (
    Row(
        "optimizer: DeepSpeed's, the Trainer's, foreign ones",
        "AdamW of the file, or the Trainer's where the file names none; what DeepSpeed has not "
        "tried needs zero_allow_untested_optimizer, and with offload "
        "zero_force_ds_cpu_optimizer: false.",
        RUN,
        "The same, and each refusal names its key.",
        (f"{ENGINE}test_a_foreign_optimizer_has_to_be_asked_for",),
    ),
    Row(
        "scheduler",
        "WarmupLR is constant_with_warmup, WarmupDecayLR is linear; LRRangeTest and OneCycle are "
        "DeepSpeed's alone.",
        RUN,
        "The same; WarmupCosineLR has joined them.",
        (
            "tests/deepspeed_config/test_schedules.py::test_every_update_has_deepspeed_s_rate",
            "notebooks/13_deepspeed_and_the_trainer.ipynb § Schedules: one name, another curve",
        ),
    ),
    Row(
        "fp32 and tf32",
        "fp32 needs fp16 switched off; on Ampere and later torch computes in tf32 by itself, and "
        "tf32 = True or False decides.",
        CHANGED,
        "fp32 is the default. torch has the word fp32_precision for each operation ('ieee', "
        "'tf32'), of which allow_tf32 is the older spelling; TrainingArguments(tf32=True) is "
        "refused where there is no such GPU.",
        ("tests/then_and_now/test_probes.py::test_tf32_needs_a_gpu",),
        trainer.fp32_precision,
        "matmul.fp32_precision is 'tf32'",
    ),
    Row(
        "fp16 with dynamic loss scale",
        "fp16.enabled with loss_scale 0, a window of 1000, an initial power of 16, hysteresis 2 "
        "and a least scale of 1.",
        RUN,
        "Our engine's scale is DeepSpeed's, step by step. DeepSpeed itself refuses fp16 on a CPU: "
        '"Type fp16 is not supported on your device."',
        (
            "tests/zero/test_precision.py::test_the_scale_is_deepspeeds",
            "tests/zero/test_precision.py::test_after_overflows_a_scale_is_found",
            f"{ENGINE}test_a_cpu_has_bf16_and_no_fp16",
        ),
    ),
    Row(
        "bf16 and its accumulation",
        "bf16 needs no scale; gradients are accumulated in bf16 as well, which loses bits.",
        RUN,
        "The same by default; data_types.grad_accum_dtype says fp32. Ours accumulates in float32.",
        (
            f"{ENGINE}test_a_cpu_has_bf16_and_no_fp16",
            "tests/zero/test_precision.py::test_the_stages_agree_in_half_precision",
        ),
    ),
    Row(
        "Apex amp block",
        "An `amp` block hands the model to NVIDIA Apex.",
        CHANGED,
        "DeepSpeed 0.19.8 refuses the block and names fp16, bf16 and torch_autocast.",
        (),
        deepspeed.apex_amp_block,
        "Apex AMP integration has been removed",
    ),
    Row(
        "Apex amp block",
        'The Trainer\'s half_precision_backend="apex" sets it.',
        CHANGED,
        "transformers 5 has no such argument; bf16=True or fp16=True is torch's own autocast.",
        (),
        trainer.apex_backend,
        "unexpected keyword argument 'half_precision_backend'",
    ),
    Row(
        "communication data type",
        "communication_data_type is the dtype in which gradients are reduced.",
        RUN,
        "The same: what crosses has the dtype of the key.",
        (f"{ENGINE}test_the_communication_data_type_is_what_crosses",),
    ),
    Row(
        "batch size and accumulation",
        "train_batch_size = world · micro-batch · gradient accumulation steps, `auto` or numbers.",
        RUN,
        "The same; the third follows from two, and three that disagree are refused.",
        (
            "tests/test_checks_13_deepspeed.py::test_the_triple_is_deepspeed_s",
            "course_lib.deepspeed_config.rules.batch",
        ),
    ),
    Row(
        "clipping",
        "gradient_clipping is the Trainer's max_grad_norm where it says `auto`.",
        RUN,
        "The same; without the key DeepSpeed clips at 1.0, so that no clipping is 0.0.",
        (
            "tests/zero/test_peers.py::test_a_stage_loses_as_deepspeeds",
            f"{CONFIG}test_auto.py::test_the_trainer_resolves_the_same",
        ),
    ),
)
