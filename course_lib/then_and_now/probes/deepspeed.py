"""What DeepSpeed says today to the spellings of the 4.37 page.

A config is read by DeepSpeed's own parser, without ranks. Lesson 13.
"""

from __future__ import annotations

from course_lib.then_and_now.asking import left_as_found, refusal, remark


def apex_amp_block() -> str:
    """The `amp` block of NVIDIA Apex; the blocks that took its place are read."""
    said = refusal(lambda: _read({"amp": {"enabled": True, "opt_level": "O1"}}))
    with left_as_found():
        _read({"bf16": {"enabled": True}})
        _read({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}})
    return said


def gather_fp16_weights() -> str:
    """Stage 3's key for whole 16-bit weights, under the name that it had with fp16 alone."""
    return remark(lambda: _read(_stage_3(stage3_gather_fp16_weights_on_model_save=True)))


def cpu_offload_key() -> str:
    """`cpu_offload: true`, which older examples carry, beside the section offload_optimizer."""
    return remark(lambda: _read({"zero_optimization": {"stage": 2, "cpu_offload": True}}))


def aio_thread_count() -> str:
    """What DeepSpeed makes of the page's aio block: it names no thread_count any more."""
    page = {
        "block_size": 262144,
        "queue_depth": 32,
        "thread_count": 1,
        "single_submit": False,
        "overlap_events": True,
    }
    with left_as_found():
        read = _read({"aio": page}).aio_config
        more = _read({"aio": {**page, "intra_op_parallelism": 4}}).aio_config
    if "thread_count" in read or more["intra_op_parallelism"] != 4:
        return f"aio keeps thread_count: {read}"
    return f"aio is read as {read}"


def fp32_files_argument() -> str:
    """The offline conversion's second argument, which was a file and is a folder."""
    from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict

    return refusal(
        lambda: convert_zero_checkpoint_to_fp32_state_dict(
            "a_checkpoint", output_file="pytorch_model.bin"
        ),
        TypeError,
    )


def inference_mp_size() -> str:
    """DeepSpeed-Inference's number of ranks, under the name of the page's time."""
    from deepspeed.inference.config import DeepSpeedInferenceConfig

    return remark(lambda: DeepSpeedInferenceConfig(mp_size=2))


def old_import() -> str:
    """`transformers.deepspeed`, from which the page imports HfDeepSpeedConfig."""
    import importlib

    said = refusal(lambda: importlib.import_module("transformers.deepspeed"), ImportError)
    from transformers.integrations import HfDeepSpeedConfig

    return f"{said}; {HfDeepSpeedConfig.__name__} comes from transformers.integrations"


def torch_launcher() -> str:
    """`python -m torch.distributed.launch`."""
    from torch.distributed import launch

    def ask_for_help() -> None:
        try:
            launch.main(["--help"])
        except SystemExit:
            return

    return remark(ask_for_help)


def _stage_3(**keys: object) -> dict:
    return {"zero_optimization": {"stage": 3, **keys}}


def _read(config: dict):
    from deepspeed.runtime.config import DeepSpeedConfig

    return DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, **config})
