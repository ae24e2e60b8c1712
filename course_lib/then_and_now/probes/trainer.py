"""What the Trainer and its arguments say today to the spellings of the 4.37 pages.

Each probe also tries the new spelling, so that a row cannot praise what is refused. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Callable

from course_lib.then_and_now.asking import folder, left_as_found, refusal, remark


def evaluation_strategy() -> str:
    return _renamed({"evaluation_strategy": "epoch"}, {"eval_strategy": "epoch"})


def no_cuda() -> str:
    return _renamed({"no_cuda": True}, {"use_cpu": True})


def warmup_ratio() -> str:
    return _renamed({"warmup_ratio": 0.1}, {"warmup_steps": 0.1})


def overwrite_output_dir() -> str:
    return _renamed({"overwrite_output_dir": True}, {})


def logging_dir() -> str:
    return _renamed({"logging_dir": "runs"}, {})


def save_safetensors() -> str:
    return _renamed({"save_safetensors": False}, {})


def sharded_ddp() -> str:
    return _renamed({"sharded_ddp": "simple"}, {"fsdp": True})


def apex_backend() -> str:
    return _renamed({"half_precision_backend": "apex"}, {"bf16": True})


def inputs_for_metrics() -> str:
    new = {"include_for_metrics": ["inputs"]}
    return _renamed({"include_inputs_for_metrics": True}, new)


def gradient_checkpointing() -> str:
    """The argument's old name is still taken, with a remark."""

    def old() -> None:
        made = _arguments({"gradient_checkpointing": True})
        if not made.activation_checkpointing:
            raise ValueError("gradient_checkpointing no longer switches anything on")

    return remark(old)


def tokenizer_argument() -> str:
    """`Trainer(tokenizer=…)`, which is processing_class now."""
    from transformers import Trainer

    with folder() as path:
        said = refusal(lambda: Trainer(_linear(), _arguments({}, path), tokenizer=None), TypeError)
        with left_as_found():
            Trainer(_linear(), _arguments({}, path), processing_class=None)
    return said


def compute_loss_signature() -> str:
    """A compute_loss of the page's time in a Trainer of today, and one that takes the new word."""
    from transformers import Trainer

    class Then(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False):
            return _loss(model, inputs, return_outputs)

    class Now(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return _loss(model, inputs, return_outputs)

    def train(kind: type[Trainer]) -> None:
        with folder() as path:
            once = {"max_steps": 1, "save_strategy": "no", "disable_tqdm": True}
            data = [{"x": [1.0, 2.0], "labels": [1.0]}] * 2
            once["remove_unused_columns"] = False
            kind(_linear(), _arguments(once, path), train_dataset=data).train()

    said = refusal(lambda: train(Then), TypeError)
    with left_as_found():
        train(Now)
    return said


def fp32_precision() -> str:
    """tf32's switch in torch: two spellings, which do not mix."""
    import torch

    matmul, before = torch.backends.cuda.matmul, torch.backends.cuda.matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        return f"matmul.fp32_precision is {matmul.fp32_precision!r}"
    finally:
        matmul.fp32_precision = before


def _renamed(old: dict, new: dict) -> str:
    """The refusal of an argument, where today's spelling is taken."""
    said = refusal(lambda: _arguments(old), TypeError)
    with left_as_found():
        _arguments(new)
    return said


def _arguments(more: dict, path: str = "unused"):
    from transformers import TrainingArguments

    cpu = {} if "no_cuda" in more else {"use_cpu": True}
    return TrainingArguments(output_dir=path, report_to=[], **{**cpu, **more})


def _linear():
    from torch import nn

    return nn.Linear(2, 1)


def _loss(model: Callable, inputs: dict, with_outputs: bool):
    import torch

    outputs = model(inputs["x"])
    loss = torch.nn.functional.mse_loss(outputs, inputs["labels"])
    return (loss, outputs) if with_outputs else loss
