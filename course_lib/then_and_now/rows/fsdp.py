"""Rows of the Trainer's page: FSDP word by word, generation, compilation.

FSDP's words are read here by the Trainer's arguments; on a CPU the Trainer trains with DDP, in
silence, whatever they say. Lesson 13.
"""

from __future__ import annotations

from course_lib.then_and_now.probes import fsdp as probes
from course_lib.then_and_now.probes import trainer
from course_lib.then_and_now.row import CHANGED, OUTSIDE, RUN, Row

WORDS = "handed on with version 2: []"
FSDP2 = "tests/deepspeed_config/test_settings.py::test_fsdp2s_lines_shard_as_they_say"
ROWS = (
    Row(
        "FSDP: full_shard",
        'fsdp="full_shard auto_wrap": parameters, gradients and states are sharded.',
        CHANGED,
        "fsdp=True is FSDP2, and settings stand in fsdp_config; the words are still translated, "
        "full_shard to reshard_after_forward true. It runs on accelerators alone; without the "
        "Trainer, fully_shard runs here.",
        (FSDP2, "tests/zero/test_peers.py::test_every_stage_loses_as_fsdp2"),
        probes.full_shard,
        "Handed on: {'reshard_after_forward': True}",
    ),
    Row(
        "FSDP: full_shard",
        "fsdp_config describes FSDP1, the only one there was.",
        CHANGED,
        "version 2 is the default; version 1 is deprecated, and was to go in 5.20.",
        (),
        probes.fsdp1,
        "FSDP1 (`fsdp_config['version'] = 1`) is deprecated",
    ),
    Row(
        "FSDP: full_shard",
        "FairScale's --sharded_ddp was its forerunner.",
        CHANGED,
        "The argument is gone; fsdp=True takes its place.",
        (),
        trainer.sharded_ddp,
        "unexpected keyword argument 'sharded_ddp'",
    ),
    Row(
        "FSDP: shard_grad_op",
        'fsdp="shard_grad_op": gradients and states are sharded, as at stage 2.',
        CHANGED,
        "Translated to reshard_after_forward false: parameters are sharded too, and whole from the "
        "forward to the backward.",
        (FSDP2,),
        probes.shard_grad_op,
        "Handed on: {'reshard_after_forward': False}",
    ),
    Row(
        "FSDP: hybrid",
        "hybrid_shard and hybrid_shard_zero2 shard within a node and replicate across nodes.",
        CHANGED,
        "hybrid_shard is refused with version 2. fully_shard itself does it on a mesh of two axes.",
        (
            "notebooks/appendix_e4_other_axes.ipynb § "
            "Hybrid sharding (HSDP): shard inside a node, replicate across",
        ),
        probes.hybrid_shard,
        "`fsdp=hybrid_shard` is only available with FSDP1",
    ),
    Row(
        "FSDP: hybrid",
        "no_shard is DDP under FSDP's name.",
        CHANGED,
        "Refused with version 2: leave fsdp out.",
        (),
        probes.no_shard,
        "`fsdp=no_shard` is only available with FSDP1",
    ),
    Row(
        "FSDP: offload",
        'fsdp="full_shard offload" keeps shards and the update on the host.',
        CHANGED,
        "Translated to fsdp_config's cpu_offload; in torch it is CPUOffloadPolicy.",
        (),
        probes.offload,
        "Handed on: {'cpu_offload': True}",
    ),
    Row(
        "FSDP: auto-wrap by size",
        "fsdp_config's min_num_params makes a unit of what is larger.",
        CHANGED,
        "Alone it does nothing: units are by class, unless auto_wrap_policy says SIZE_BASED_WRAP.",
        (),
        probes.wrap_by_size,
        "'auto_wrap_policy': 'TRANSFORMER_BASED_WRAP'",
    ),
    Row(
        "FSDP: auto-wrap by class",
        "fsdp_transformer_layer_cls_to_wrap names the class of a unit.",
        CHANGED,
        "No argument any more but transformer_layer_cls_to_wrap in fsdp_config; where it is "
        "missing, the model's own _no_split_modules count.",
        (),
        probes.wrap_by_class,
        "handed on: GPT2Block",
    ),
    Row(
        "FSDP: prefetch",
        "backward_prefetch and forward_prefetch gather the next unit early.",
        CHANGED,
        "Read with version 1 alone, and dropped without a word with version 2, which prefetches "
        "by itself. Lesson 11 asks ahead by hand.",
        ("notebooks/11_zero_3_a_promise.ipynb § Prefetch: asking ahead",),
        probes.words_of_fsdp1,
        WORDS,
    ),
    Row(
        "FSDP: limit_all_gathers",
        "limit_all_gathers holds back the host when too many gathers are under way.",
        CHANGED,
        "Dropped without a word with version 2, which has no such word.",
        (),
        probes.words_of_fsdp1,
        WORDS,
    ),
    Row(
        "FSDP: use_orig_params",
        "use_orig_params keeps the model's own parameters, for frozen ones in a unit.",
        CHANGED,
        "Dropped without a word with version 2: parameters are DTensors under their own names.",
        ("tests/zero/test_peers.py::test_every_stage_loses_as_fsdp2",),
        probes.words_of_fsdp1,
        WORDS,
    ),
    Row(
        "FSDP: sync_module_states",
        "sync_module_states sends rank 0's weights to all, so that one rank loads the file.",
        CHANGED,
        "Dropped without a word with version 2; cpu_ram_efficient_loading takes its place.",
        (),
        probes.words_of_fsdp1,
        WORDS,
    ),
    Row(
        "FSDP: XLA",
        "fsdp_config's xla: true, with xla_fsdp_settings, for TPUs.",
        OUTSIDE,
        "The keys are still read; they need torch_xla and a TPU.",
        ("Transformers: FullyShardedDataParallel", "PyTorch/XLA: FSDP"),
    ),
    Row(
        "Seq2SeqTrainer",
        "predict_with_generate evaluates by generation, under ZeRO-3 as well.",
        RUN,
        "The same, with a T5 made from a config. predict keeps the samples that fill up the last "
        "batch: keep as many predictions as there were inputs.",
        ("tests/then_and_now/test_trainer_zero.py::test_a_t5_answers_under_stage_3",),
    ),
    Row(
        "torch.compile",
        "torch_compile=True, with torch_compile_backend and torch_compile_mode.",
        RUN,
        "The same losses, here with the backend that generates no code.",
        ("tests/then_and_now/test_trainer.py::test_a_compiled_model_is_the_same_model",),
    ),
)
