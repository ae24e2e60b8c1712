"""Make the installed releases say what has changed since the pages of Transformers 4.37.

`python -m tests.course_lib.peers.then_and_now.probes` prints what each probe hears, as JSON. It
is a process for this purpose, because probes leave state in libraries. No probe needs a network or
an accelerator, and each also tries today's spelling, so that the page cannot praise what is
refused.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
# No rank of a launcher, no GPU, no hub.
ALONE = {"DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
AIO = {"block_size": 262144, "queue_depth": 32, "single_submit": False, "overlap_events": True}
# The words of FSDP1 that the page explains, each set to what it is not by default.
OF_FSDP1 = {
    "backward_prefetch": "backward_pre", "forward_prefetch": True, "limit_all_gathers": True,
    "sync_module_states": True, "use_orig_params": True,
}  # fmt: skip
# Arguments of the Trainer that are gone, with a value, and what takes their place.
GONE_ARGUMENTS: dict[str, tuple[object, dict]] = {
    "evaluation_strategy": ("epoch", {"eval_strategy": "epoch"}),
    "no_cuda": (True, {"use_cpu": True}),
    "warmup_ratio": (0.1, {"warmup_steps": 0.1}),
    "overwrite_output_dir": (True, {}),
    "logging_dir": ("runs", {}),
    "save_safetensors": (False, {}),
    "sharded_ddp": ("simple", {"fsdp": True}),
    "half_precision_backend": ("apex", {"bf16": True}),
    "include_inputs_for_metrics": (True, {"include_for_metrics": ["inputs"]}),
}


def sentences() -> dict[str, str]:
    """What every probe hears, by its name, from a process without ranks."""
    env = {name: value for name, value in os.environ.items() if name not in LAUNCHED} | ALONE
    ran = subprocess.run(
        [sys.executable, "-m", __name__], cwd=ROOT, env=env, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    if ran.returncode:
        raise RuntimeError(ran.stderr)
    return json.loads(ran.stdout)


def refusal(call: Callable[[], object], today: Callable[[], object] = lambda: None) -> str:
    """The exception with which a release ends the call; `today` is the spelling that it takes."""
    today()
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "the call was accepted"


def remarks(call: Callable[[], object]) -> str:
    """The warnings and lines of a log that a release has for a call that succeeds."""
    heard: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    for name in ("transformers", "DeepSpeed", "accelerate"):
        logger = logging.getLogger(name)
        logger.handlers[:], logger.propagate, logger.level = [handler], False, logging.WARNING
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    heard += [f"{entry.category.__name__}: {entry.message}" for entry in caught]
    return " | ".join(heard) or "nothing is said"


def arguments(**more: object):
    from transformers import TrainingArguments

    cpu = {} if "no_cuda" in more else {"use_cpu": True}
    return TrainingArguments(**{"output_dir": "unused", "report_to": [], **cpu, **more})


def fsdp(**config: object) -> dict:
    """What the Trainer hands on to accelerate of this fsdp_config."""
    return dict(arguments(fsdp=True, fsdp_config=config).fsdp_plugin_args)


def translated(words: str, key: str) -> str:
    made: list = []
    said = remarks(lambda: made.append(arguments(fsdp=words).fsdp_plugin_args))
    return f"{said} Handed on: {key}={made[0].get(key)}"


def ds_config(**blocks: object):
    from deepspeed.runtime.config import DeepSpeedConfig

    return DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, **blocks})


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 8, "n_positions": 8}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = models.WordLevel({"<pad>": 0, "<unk>": 1, "yes": 2}, unk_token="<unk>")
    inner = Tokenizer(words)
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>")


def gone(argument: str) -> str:
    value, today = GONE_ARGUMENTS[argument]
    return refusal(lambda: arguments(**{argument: value}), lambda: arguments(**today))


def apex_amp() -> str:
    return refusal(
        lambda: ds_config(amp={"enabled": True, "opt_level": "O1"}),
        lambda: [ds_config(**{name: {"enabled": True}}) for name in ("bf16", "torch_autocast")],
    )


def aio_thread_count() -> str:
    read = ds_config(aio={**AIO, "thread_count": 1, "intra_op_parallelism": 4}).aio_config
    return f"aio is read as {read}"


def fp32_files() -> str:
    from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict

    return refusal(lambda: convert_zero_checkpoint_to_fp32_state_dict("a", output_file="b"))


def mp_size() -> str:
    from deepspeed.inference.config import DeepSpeedInferenceConfig

    return remarks(lambda: DeepSpeedInferenceConfig(mp_size=2))


def torch_launcher() -> str:
    from torch.distributed import launch

    def ask_for_help() -> None:
        with contextlib.suppress(SystemExit):
            launch.main(["--help"])

    return remarks(ask_for_help)


def tokenizer_argument() -> str:
    from torch import nn
    from transformers import Trainer

    def trainer(**more: object):
        return Trainer(nn.Linear(2, 1), arguments(), **more)

    return refusal(lambda: trainer(tokenizer=None), lambda: trainer(processing_class=None))


def compute_loss() -> str:
    """A compute_loss of the page's time in a Trainer of today, and one that takes the new word."""
    import torch
    from transformers import Trainer

    class Then(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False):
            return torch.nn.functional.mse_loss(model(inputs["x"]), inputs["labels"])

    class Now(Then):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return super().compute_loss(model, inputs, return_outputs)

    def train(kind: type[Trainer]) -> None:
        data = [{"x": [1.0, 2.0], "labels": [1.0]}] * 2
        with tempfile.TemporaryDirectory() as folder:
            once = arguments(
                output_dir=folder, max_steps=1, save_strategy="no", remove_unused_columns=False
            )
            kind(torch.nn.Linear(2, 1), once, train_dataset=data).train()

    return refusal(lambda: train(Then), lambda: train(Now))


def fp32_precision() -> str:
    import torch

    torch.backends.cuda.matmul.fp32_precision = "tf32"
    return f"matmul.fp32_precision is {torch.backends.cuda.matmul.fp32_precision!r}"


def loaded_in(bits: int) -> str:
    """An argument of from_pretrained itself, and what its config has by default."""
    from transformers import BitsAndBytesConfig, GPT2LMHeadModel

    name, default = f"load_in_{bits}bit", {8: "llm_int8_threshold", 4: "bnb_4bit_quant_type"}[bits]
    with tempfile.TemporaryDirectory() as folder:
        gpt2().save_pretrained(folder)
        said = refusal(lambda: GPT2LMHeadModel.from_pretrained(folder, **{name: True}))
    return f"{said}; {default} is {getattr(BitsAndBytesConfig(**{name: True}), default)}"


def lost(kind: str, **keys: object) -> str:
    """Keys that a quantization config takes in silence, and keeps nowhere."""
    import transformers

    made: list = []
    said = remarks(lambda: made.append(getattr(transformers, kind)(bits=4, **keys)))
    kept = [name for name in keys if name in made[0].to_dict()]
    return f"{kind} keeps {kept} of {sorted(keys)}; {said}"


def pad_to_max_length() -> str:
    made: list = []
    said = remarks(lambda: made.append(tokenizer()("yes", pad_to_max_length=True, max_length=8)))
    now = tokenizer()("yes", padding="max_length", max_length=8)["input_ids"]
    return f"{len(made[0]['input_ids'])} token where {len(now)} were asked for; {said}"


def additional_special_tokens() -> str:
    made = tokenizer()
    made.add_special_tokens({"additional_special_tokens": ["<sep>"]})
    said = refusal(lambda: made.additional_special_tokens)
    return f"{said}; extra_special_tokens is {made.extra_special_tokens}"


def of_transformers(name: str):
    """`Class.attribute` of transformers."""
    value = importlib.import_module("transformers")
    for part in name.split("."):
        value = getattr(value, part)
    return value


PROBES: dict[str, Callable[[], str]] = {
    "torch_launcher": torch_launcher,
    "cpu_offload": lambda: remarks(
        lambda: ds_config(zero_optimization={"stage": 2, "cpu_offload": True})
    ),
    "aio_thread_count": aio_thread_count,
    "fp32_precision": fp32_precision,
    "tf32": lambda: refusal(lambda: arguments(tf32=True)),
    "apex_amp": apex_amp,
    "gather_fp16_weights": lambda: remarks(
        lambda: ds_config(
            zero_optimization={"stage": 3, "stage3_gather_fp16_weights_on_model_save": True}
        )
    ),
    "fp32_files": fp32_files,
    "mp_size": mp_size,
    "gradient_checkpointing": lambda: remarks(lambda: arguments(gradient_checkpointing=True)),
    "old_import": lambda: refusal(
        lambda: importlib.import_module("transformers.deepspeed"),
        lambda: of_transformers("integrations.HfDeepSpeedConfig"),
    ),
    **{name: lambda name=name: gone(name) for name in GONE_ARGUMENTS},
    "compute_loss": compute_loss,
    "tokenizer_argument": tokenizer_argument,
    "full_shard": lambda: translated("full_shard auto_wrap", "reshard_after_forward"),
    "shard_grad_op": lambda: translated("shard_grad_op auto_wrap", "reshard_after_forward"),
    "offload": lambda: translated("full_shard offload", "cpu_offload"),
    "fsdp1": lambda: remarks(lambda: fsdp(version=1)),
    "hybrid_shard": lambda: refusal(lambda: arguments(fsdp="hybrid_shard")),
    "no_shard": lambda: refusal(lambda: arguments(fsdp="no_shard")),
    "wrap_by_size": lambda: f"handed on: {fsdp(min_num_params=2000)}",
    "wrap_by_class": lambda: refusal(
        lambda: arguments(fsdp=True, fsdp_transformer_layer_cls_to_wrap="GPT2Block"),
        lambda: fsdp(transformer_layer_cls_to_wrap=["GPT2Block"])["transformer_cls_names_to_wrap"],
    ),
    "words_of_fsdp1": lambda: (
        f"handed on with version 2: {sorted({*OF_FSDP1} & {*fsdp(**OF_FSDP1)})}; "
        f"with version 1: {sorted({*OF_FSDP1} & {*fsdp(**OF_FSDP1, version=1)})}"
    ),
    "awq_fused_modules": lambda: lost("AwqConfig", do_fuse=True, fuse_max_seq_len=512),
    "gptq_exllama": lambda: lost("GPTQConfig", use_exllama=False),
    "load_in_8bit": lambda: loaded_in(8),
    "load_in_4bit": lambda: loaded_in(4),
    "dequantize": lambda: refusal(lambda: gpt2().dequantize()),
    "two_classes": lambda: (
        "BertTokenizer is BertTokenizerFast: "
        f"{of_transformers('BertTokenizer') is of_transformers('BertTokenizerFast')}"
    ),
    "encode_plus": lambda: refusal(lambda: tokenizer().encode_plus("yes")),
    "batch_encode_plus": lambda: refusal(lambda: tokenizer().batch_encode_plus(["yes"])),
    "pad_to_max_length": pad_to_max_length,
    "additional_special_tokens": additional_special_tokens,
    "use_auth_token": lambda: refusal(lambda: tokenizer().push_to_hub("a/b", use_auth_token="no")),
    "feature_extractor": lambda: refusal(lambda: of_transformers("CLIPFeatureExtractor")),
    "as_target_processor": lambda: refusal(
        lambda: of_transformers("Wav2Vec2Processor.as_target_processor")
    ),
}


def main() -> None:
    """Print one JSON document: what each probe hears, in one line."""
    heard = {}
    with contextlib.redirect_stdout(sys.stderr):
        import accelerate.state
        import deepspeed  # noqa: F401  it says once which accelerator it has found

        for name, probe in PROBES.items():
            accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
            # Python 3.13 adds a suggestion to what it says of an argument.
            heard[name] = re.sub(r"\. Did you mean .*", "", " ".join(probe().split()))
    json.dump(heard, sys.stdout)


if __name__ == "__main__":
    main()
