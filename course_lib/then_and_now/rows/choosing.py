"""Rows of the DeepSpeed page: the configuration, its stages and what to choose.

Lesson 13.
"""

from __future__ import annotations

from course_lib.then_and_now.probes import deepspeed as probes
from course_lib.then_and_now.row import CHANGED, RUN, Row

ENGINE = "tests/then_and_now/test_engine.py::"
CONFIG = "tests/deepspeed_config/"
ROWS = (
    Row(
        "configuration: file, dict, one for several runs",
        "TrainingArguments(deepspeed=…) takes a JSON file or a dict; with `auto` one file serves "
        "several runs.",
        RUN,
        "The same: neither the dict nor the file is changed, and each run fills in its own.",
        ("tests/then_and_now/test_trainer_zero.py::test_one_config_serves_several_runs",),
    ),
    Row(
        "auto, and who resolves it",
        "The Trainer puts its arguments where the file says `auto`.",
        RUN,
        "The same, three sizes from the model's hidden size among them. Without the Trainer "
        "it is not resolved: DeepSpeed takes a default, or keeps the text.",
        (
            f"{CONFIG}test_auto.py::test_the_trainer_resolves_the_same",
            f"{CONFIG}test_auto.py::test_nobody_resolves_without_the_trainer",
            "course_lib.deepspeed_config.auto:resolve",
        ),
    ),
    Row(
        "values that must agree with the arguments",
        "Batch sizes, learning rate and the like must be the same in the file and in the "
        "arguments, or training fails in ways that are hard to see.",
        RUN,
        "The Trainer ends with a list of the mismatches it knows; ds-check names both sides of "
        "each, before anything runs.",
        (
            f"{CONFIG}test_auto.py::test_conflicts_name_both_sides",
            "course_lib.cli.ds_check:ds_check",
        ),
    ),
    Row(
        "stages 0, 1, 2 and 3",
        "Nothing sharded; optimizer states; gradients too; parameters too.",
        RUN,
        "The same. Ours and DeepSpeed's lose alike at 1, 2 and 3; stage 0 is data parallelism.",
        (
            "tests/zero/test_peers.py::test_a_stage_loses_as_deepspeeds",
            "tests/zero/test_stages.py",
            "notebooks/09_sixteen_bytes_and_zero_1.ipynb § The engine",
        ),
    ),
    Row(
        "stage 2 in full",
        "overlap_comm trades memory for speed (4.5 times the bucket), bucket sizes trade it back, "
        "offload moves the states, round_robin_gradients speeds up offload's copies.",
        RUN,
        "All of these keys train the same losses. The bytes of the buckets are forecast by "
        "ds-check.",
        (
            f"{ENGINE}test_every_option_of_the_pages_examples_trains_the_same",
            f"{CONFIG}test_memory.py::test_buckets_times_four_and_a_half",
        ),
    ),
    Row(
        "stage 2 in full",
        "offload_optimizer.device cpu.",
        CHANGED,
        "Older examples write cpu_offload: true. It is still read, with a remark; ds-check names "
        "the section.",
        (),
        probes.cpu_offload_key,
        "cpu_offload is deprecated use offload_optimizer",
    ),
    Row(
        "stage 3 in full",
        "pin_memory for faster copies; live parameters and reuse distance bound what stays whole; "
        "persistence keeps small ones whole; sub_group_size bounds an update; "
        "stage3_gather_16bit_weights_on_model_save gathers what is saved.",
        RUN,
        "All of these keys train the same losses.",
        (
            f"{ENGINE}test_every_option_of_the_pages_examples_trains_the_same",
            f"{CONFIG}test_memory.py::test_what_may_stay_whole_at_stage_3",
        ),
    ),
    Row(
        "NVMe (ZeRO-Infinity)",
        "At stage 3 optimizer states and parameters may lie in files on an NVMe disk.",
        RUN,
        "Our engine does it on any disk and changes no bit. DeepSpeed needs libaio and a "
        "compiler; where its accelerator has no fp16, its files hold fp32 parameters as bf16.",
        (
            "tests/zero_offload/test_same.py::test_offload_changes_no_bit",
            "tests/ways/test_matrix.py::test_deepspeeds_files_round_what_ours_keep",
            "notebooks/12_offload_and_estimators.ipynb § On real ranks",
        ),
    ),
    Row(
        "aio tuning",
        "The aio block (block_size, queue_depth, thread_count, single_submit, overlap_events) is "
        "tuned by a script in DeepSpeed's sources.",
        CHANGED,
        "DeepSpeed 0.19.8 ignores thread_count without a word: the key is intra_op_parallelism, "
        "and the script is the command ds_nvme_tune.",
        (),
        probes.aio_thread_count,
        "'intra_op_parallelism': 1",
    ),
    Row(
        "stage 2 against stage 3 in speed",
        "Stage 3 is slower, as it gathers parameters. A persistence threshold above 6·h² and no "
        "offload of parameters bring it near stage 2.",
        RUN,
        "The bytes that a stage must send are counted; the time is a ratio in `course bench "
        "zero`, with deepspeed-2, deepspeed-3 and deepspeed-3-strict beside ours.",
        (
            "tests/estimate/test_traffic.py::test_a_step_sends_what_was_estimated",
            "tests/test_benchmarks_zero.py::test_deepspeed_trains_the_same_model",
        ),
    ),
    Row(
        "ready examples for stages 2 and 3",
        "Two complete files, with `auto` and with numbers.",
        RUN,
        "DeepSpeed reads ours without a word, and ds-check finds nothing in them; `course "
        "ladder` writes a file for each rung.",
        (
            f"{CONFIG}test_valid.py::test_deepspeed_reads_ours",
            f"{CONFIG}test_settings.py::test_deepspeed_parses_every_rung_without_a_word",
        ),
    ),
    Row(
        "choosing stage and offload: the ladder",
        "From batch 1 and gradient checkpointing over each stage and its offload down to NVMe, "
        "until it fits; then the batch up, and back up for speed.",
        RUN,
        "`course ladder` walks it for a model and a machine; the first rung that fits trains "
        "and the one before does not.",
        (
            "tests/estimate/test_ladder.py::test_the_first_that_fits_trains_and_the_one_before_does_not",
            "course_lib.cli.ladder:ladder",
        ),
    ),
)
