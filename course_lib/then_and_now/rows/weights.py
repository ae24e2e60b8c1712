"""Rows of the DeepSpeed page: weights in and out, large models, inference, trouble.

Lesson 13.
"""

from __future__ import annotations

from course_lib.then_and_now.probes import deepspeed as probes
from course_lib.then_and_now.probes import trainer
from course_lib.then_and_now.row import CHANGED, OUTSIDE, RUN, Row

WEIGHTS = "tests/then_and_now/test_weights.py::"
LARGE = "tests/then_and_now/test_large_models.py::"
OUT = f"{WEIGHTS}test_sixteen_bits_and_float32_on_the_way_and_afterwards"
LIVE = f"{LARGE}test_the_config_object_has_to_live_while_a_model_is_loaded"
GENERATE = f"{LARGE}test_with_synced_gpus_ranks_go_on_until_the_last_has_its_text"
ROWS = (
    Row(
        "weights out: 16 bits from stage 3",
        "stage3_gather_16bit_weights_on_model_save: true, or what is saved is of no use.",
        RUN,
        "The same: without it save_16bit_model returns False and writes nothing.",
        (OUT,),
    ),
    Row(
        "weights out: 16 bits from stage 3",
        "Files of the time call it stage3_gather_fp16_weights_on_model_save.",
        CHANGED,
        "Still read, with a remark that names today's key, "
        "stage3_gather_16bit_weights_on_model_save.",
        (),
        probes.gather_fp16_weights,
        "stage3_gather_fp16_weights_on_model_save is deprecated",
    ),
    Row(
        "weights out: fp32 online",
        "load_state_dict_from_zero_checkpoint(model, folder) after training, or "
        "get_fp32_state_dict_from_zero_checkpoint(folder); the model leaves DeepSpeed's hands.",
        RUN,
        "The same, bit by bit; lazy_mode reads a tensor only when it is used.",
        (OUT,),
    ),
    Row(
        "weights out: fp32 offline",
        "python zero_to_fp32.py . pytorch_model.bin beside the checkpoint, without GPUs.",
        CHANGED,
        "The second argument is a folder, for a model in several files: output_file is "
        "output_dir. The script still lies beside the checkpoint, and is run here.",
        (OUT,),
        probes.fp32_files_argument,
        "unexpected keyword argument 'output_file'",
    ),
    Row(
        "resume and best model under ZeRO",
        "Trainer.train(resume_from_checkpoint=…) and load_best_model_at_end, for which a stage-3 "
        "checkpoint holds all states.",
        RUN,
        "Both work on two ranks at stages 2 and 3: the losses go on as without the break, and the "
        "best model's weights are its checkpoint's.",
        ("tests/then_and_now/test_trainer_zero.py::test_resume_and_best_model",),
    ),
    Row(
        "building large models",
        "deepspeed.zero.Init round the constructor, or from_pretrained under a stage-3 "
        "configuration: no rank ever holds the whole model.",
        RUN,
        "Both shard while the model is made: a rank holds its shards and nothing more.",
        (LIVE, "notebooks/11_zero_3_a_promise.ipynb § A model that no rank ever holds whole"),
    ),
    Row(
        "gathering parameters",
        "with deepspeed.zero.GatheredParameters(parameters, modifier_rank=0): whole ones, to be "
        "read, or written by one rank.",
        RUN,
        "The same. What is written without a modifier_rank is lost, without a word.",
        (LIVE,),
    ),
    Row(
        "placeholders",
        "A parameter printed as tensor([1.]) is a placeholder, its true shape in ds_shape.",
        RUN,
        "In DeepSpeed 0.19.8 every placeholder has size 0 and prints as tensor([]); ds_shape, "
        "ds_numel and ds_status tell the rest.",
        (LIVE,),
    ),
    Row(
        "ZeRO inference",
        "Stage 3 without optimizer, to evaluate a model that fits no GPU; lower stages do not "
        "help.",
        RUN,
        "The same; the Trainer refuses to predict under another stage, and says so.",
        (
            "tests/then_and_now/test_trainer_zero.py::test_what_the_trainer_refuses_under_zero",
            GENERATE,
        ),
    ),
    Row(
        "DeepSpeed-Inference",
        "Another library beside ZeRO inference: deepspeed.init_inference(mp_size=…) with tensor "
        "parallelism and kernels of its own.",
        CHANGED,
        "init_inference is there; mp_size is tensor_parallel.tp_size. Tensor parallelism for "
        "inference is lesson 08's generation over a tensor-parallel model.",
        ("tests/test_generate_cut.py::test_a_cut_model_takes_the_words_of_the_whole_one",),
        probes.inference_mp_size,
        "mp_size is deprecated use tensor_parallel.tp_size",
    ),
    Row(
        "memory estimator",
        "estimate_zero3_model_states_mem_needs_all_live(model, …) prints bytes for each choice of "
        "offload, of model states alone.",
        RUN,
        "The documented table to the last digit, and DeepSpeed's own functions beside ours.",
        (
            "tests/estimate/test_deepspeed.py::test_the_documented_table",
            "tests/estimate/test_deepspeed.py::test_deepspeeds_own_functions",
        ),
    ),
    Row(
        "gradient checkpointing: torch's against DeepSpeed's",
        "transformers' models use torch's; the block activation_checkpointing of the file does "
        "nothing for them.",
        RUN,
        "The same, counted: under DeepSpeed's block a layer runs once a step, under torch's twice.",
        (
            "tests/then_and_now/test_engine.py::"
            "test_deepspeeds_checkpointing_does_nothing_for_these_models",
        ),
    ),
    Row(
        "gradient checkpointing: torch's against DeepSpeed's",
        "TrainingArguments(gradient_checkpointing=True).",
        CHANGED,
        "transformers 5.23 calls it activation_checkpointing; the old name goes in version 6.",
        (),
        trainer.gradient_checkpointing,
        "`gradient_checkpointing` is deprecated",
        since="transformers 5.23",
    ),
    Row(
        "filing an issue",
        "Whole configuration, command line, versions (ds_report, transformers env), and whether "
        "it also fails without DeepSpeed.",
        OUTSIDE,
        "Good advice, and nothing to run. `course doctor` reports what this course stands on.",
        ("Transformers: DeepSpeed, Troubleshoot", "DeepSpeed: Contributing"),
    ),
    Row(
        "killed at start",
        "A process that ends without a traceback has met the host's limit of memory: estimate "
        "what offload takes.",
        RUN,
        "The same; the host's bytes are part of every estimate, and a killed rank is named.",
        (
            "tests/estimate/test_fit.py::test_every_way_is_what_the_exact_count_says",
            "tests/launchers/test_failures.py::test_a_rank_is_killed_under_every_launcher",
        ),
    ),
    Row(
        "NaN or OVERFLOW",
        "A model trained in bf16 overflows in fp16: losses are NaN. An OVERFLOW at every step "
        "with a scale that falls to 1: no scale was found.",
        RUN,
        "The same, on ranks: a NaN stops all and is named, and after overflows a scale is found.",
        (
            "tests/zero/test_precision.py::test_a_nan_stops_all_ranks_and_is_named",
            "tests/zero/test_precision.py::test_after_overflows_a_scale_is_found",
            "tests/deepspeed_config/test_overflow_log.py::test_a_run_in_float16_is_read_from_its_log",
            "notebooks/13_deepspeed_and_the_trainer.ipynb § fp16's loss scale, and its log",
        ),
    ),
    Row(
        "without the Trainer: HfDeepSpeedConfig",
        "HfDeepSpeedConfig(config), made before the model and kept alive, for from_pretrained to "
        "shard while it loads.",
        RUN,
        "The same. transformers keeps a weak reference: without yours the model is loaded whole, "
        "without a word.",
        (LIVE,),
    ),
    Row(
        "without the Trainer: HfDeepSpeedConfig",
        "Imported from transformers.deepspeed in older examples.",
        CHANGED,
        "That module is gone: from transformers.integrations import HfDeepSpeedConfig.",
        (),
        probes.old_import,
        "No module named 'transformers.deepspeed'",
    ),
    Row(
        "custom inference script",
        "A script of its own: HfDeepSpeedConfig, the model, deepspeed.initialize, generate with "
        "synced_gpus, each rank another prompt.",
        RUN,
        "The same steps, on two ranks.",
        (GENERATE,),
    ),
    Row(
        "generate with synced_gpus",
        "generate(…, synced_gpus=True) at stage 3, or the rank that ends first leaves the others "
        "waiting.",
        RUN,
        "The same: ranks with texts of unlike length take equally many forwards. Where nothing is "
        "said, transformers 5 decides by itself.",
        (GENERATE,),
    ),
    Row(
        "running the integration's own tests",
        "RUN_SLOW=1 pytest tests/deepspeed in a clone of transformers, on two GPUs.",
        OUTSIDE,
        "Their tests come with their sources, not with the package, and ask for GPUs; this "
        "course's own tests hold both releases on two CPU ranks.",
        ("Transformers: Contribute, Testing",),
    ),
)
