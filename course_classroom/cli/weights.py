"""The `course weights` command, which writes a checkpoint's weights as a Hugging Face folder.

Unlike zero_to_fp32.py, it works tensor by tensor and never runs code from a pickle. Lesson 14.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from course_classroom.cli.base import Json, app, stop


@app.command()
def weights(
    source: Annotated[Path, typer.Argument(metavar="IN",
        help="Folder to read: a DeepSpeed checkpoint, a run of `course train`, or a Hugging Face "
        "model.")],
    folder: Annotated[Path, typer.Argument(metavar="OUT",
        help="Folder to which the safetensors files are written.")],
    dtype: Annotated[str | None, typer.Option(show_default=False,
        help="Dtype of the written weights: float32, bfloat16 or float16. The default is "
        "float32, but weights of a Hugging Face folder keep their dtype.")] = None,
    shard_size: Annotated[str, typer.Option(
        help="Maximum size of each file: a number in GB (10^9 bytes), such as 5, or a value with a "
        "unit, such as 500MB.")] = "5GB",
    config: Annotated[Path | None, typer.Option(show_default=False,
        help="The model's config.json, for a checkpoint that does not contain it. It is copied to "
        "OUT, and the weights of course_lib's GPT are renamed as Transformers expects.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Write a checkpoint's weights as safetensors that Transformers reads.

    For DeepSpeed stages 1 to 3 and for runs of `course train`, the float32 master
    weights are written if there are any. Only one tensor at a time is in host
    memory. OUT is complete or does not exist. DeepSpeed is not required.
    """
    from course_lib.checkpoint.weights import DTYPES, convert
    from course_lib.peers.deepspeed_config.walk import nbytes
    from course_lib.pretrained.header import CheckpointError

    try:
        if dtype is not None and dtype not in DTYPES:
            raise ValueError(f"--dtype {dtype} is none of {', '.join(DTYPES)}")
        most = nbytes(shard_size, "--shard-size")
    except ValueError as error:
        stop(error, command="weights")
    try:
        report = convert(source, folder, dtype=dtype, shard_bytes=most, config=config)
    except (CheckpointError, OSError) as error:
        stop(error, 2 if isinstance(error, FileNotFoundError) else 1, "weights")
    if as_json:
        print(json.dumps(report))
        return
    about, files = report["source"], report["files"]
    shards = sum(name.endswith(".safetensors") for name in files)
    where = {
        "deepspeed": "DeepSpeed {release}, stage {stage}, {ranks} ranks, step {step}",
        "course": "course train, step {step}",
        "huggingface": "a Hugging Face folder",
    }[about["kind"]].format(**about)
    print(f"{report['folder']}: from {where}")
    kinds = " and ".join(report["dtypes"])
    print(
        f"  {report['tensors']} tensors, {report['bytes']:,} bytes, {kinds}, "
        f"in {shards} file{'s'[: shards != 1]}"
    )
    for name, of in report["tied"].items():
        print(f"  {name} is the same tensor as {of}, which is written once")
    if "config.json" not in files:
        print("  without a config.json, because the checkpoint has none (add it with --config)")
    for note in about["notes"]:
        print(f"  {note}")
