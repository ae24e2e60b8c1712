"""One run, six ways: dense, ours, DeepSpeed's, FSDP2's, and the Trainer's over each of the two.

In the order of reading: setting, workload, evidence, loop, dense, ours, ds_config, launched,
with_deepspeed, with_fsdp2, trainer_run, with_trainer, asked, every, expected. Transformers and
DeepSpeed are imported where they are used. Lesson 13.
"""
