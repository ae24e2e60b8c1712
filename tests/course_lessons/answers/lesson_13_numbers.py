"""Answers to `read_config` of lesson 13: by hand, and misread in likely ways."""

from __future__ import annotations

NUMBERS = {  # by hand, from the config that the question prints
    "batch": 4 * 8 * 2,
    "clipping": 1.0,
    "buckets, GB": 3.6,
    "reduce_bucket_size": 1_048_576,
    "stage3_prefetch_bucket_size": 943_718,
    "stage3_param_persistence_threshold": 10_240,
    "reduce_bucket_size, own loop": 500_000_000,
    "stage, misspelt": 0,
    "misspellings that raise": 1,
}
# What is written in one field, and the name under which it is refused.
MISREAD = [
    ("batch", 32, "one GPU's batch"),
    ("batch", 8, "accumulation forgotten"),
    ("batch", 4, "a micro-batch"),
    ("batch", 128, "ranks counted twice"),
    ("clipping", 0.3, "what the author meant"),
    ("clipping", 0, "no clipping"),
    ("buckets, GB", 0.8, "overlap costs nothing"),
    ("buckets, GB", 0.4, "overlap costs nothing"),
    ("buckets, GB", 1.8, "half of it"),
    ("buckets, GB", 7.2, "float32"),
    ("buckets, GB", 0.9, "only elements"),
    ("buckets, GB", 3.6e9 / 2**30, "GiB"),
    ("reduce_bucket_size", 1024, "hidden size, not its square"),
    ("reduce_bucket_size", 2_097_152, "bytes"),
    ("reduce_bucket_size", 5e8, "DeepSpeed's default"),
    ("reduce_bucket_size", 943_718, "the share of the prefetch"),
    ("reduce_bucket_size", 2e8, "value from the file"),
    ("stage3_prefetch_bucket_size", 1_048_576, "full bucket"),
    ("stage3_prefetch_bucket_size", 5e7, "DeepSpeed's default"),
    ("stage3_prefetch_bucket_size", 921, "hidden size, not its square"),
    ("stage3_param_persistence_threshold", 1_048_576, "persistence of a matrix"),
    ("stage3_param_persistence_threshold", 10_485_760, "squared"),
    ("stage3_param_persistence_threshold", 1024, "one vector"),
    ("stage3_param_persistence_threshold", 1e5, "DeepSpeed's default"),
    ("reduce_bucket_size, own loop", 1_048_576, "auto not resolved"),
    ("reduce_bucket_size, own loop", 5e7, "the prefetch's default"),
    ("reduce_bucket_size, own loop", 1e9, "bytes"),
    ("reduce_bucket_size, own loop", 0, "no bucket"),
    ("reduce_bucket_size, own loop", 2.5e8, "over the GPUs"),
    ("stage, misspelt", 2, "what the author meant"),
    ("stage, misspelt", 3, "what the author meant"),
    ("stage, misspelt", 1, "a default above zero"),
    ("misspellings that raise", 3, "all of them raise"),
    ("misspellings that raise", 2, "two of them raise"),
    ("misspellings that raise", 0, "none of them raises"),
]

RIGHT: dict = {"read_config": {"by hand": NUMBERS}}
WRONG: dict = {
    "read_config": {
        f"{field} {value:g}": ({**NUMBERS, field: value}, called)
        for field, value, called in MISREAD
    }
}
