"""One run in six ways: dense, course_lib, DeepSpeed, FSDP2, and the Trainer over the last two.

In reading order: setting, workload, evidence, loop, dense, ours, ds_config, launched,
with_deepspeed, with_fsdp2, trainer_run, with_trainer, asked, every, expected. Transformers and
DeepSpeed are imported where they are used. Lesson 13.
"""
