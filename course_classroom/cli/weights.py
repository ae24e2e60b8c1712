"""`course weights`: a checkpoint's weights as a Hugging Face folder, from DeepSpeed's or ours.

What zero_to_fp32.py is used for, tensor by tensor; nothing that a pickle names is run. Lesson 14.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from course_classroom.cli.base import Json, app, stop


@app.command()
def weights(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="A DeepSpeed checkpoint, a folder of `course train`, or a Hugging Face folder.",
        ),
    ],
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.")],
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, bfloat16 or float16. Without it float32; of a plain Hugging Face folder "
            "as it is.",
            show_default=False,
        ),
    ] = None,
    shard_size: Annotated[
        str, typer.Option(help="The most in a file, in 10^9 bytes: 5, 5GB, 2GiB, 500MB.")
    ] = "5GB",
    config: Annotated[
        Path | None,
        typer.Option(
            help="The model's config.json, where none lies beside the checkpoint: it comes along, "
            "and gives the weights of course_lib's GPT the names that transformers knows.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a checkpoint's weights as safetensors that transformers reads.

    From DeepSpeed's stages 1, 2 and 3 and from our runs these are the float32
    master copies, wherever there are some. One tensor at a time is on the host;
    OUT appears whole or not at all. DeepSpeed need not be installed.
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
        print(f"  {name} is {of}, which is written once")
    if "config.json" not in files:
        print("  without a config.json: none lies beside the checkpoint; name one with --config")
    for note in about["notes"]:
        print(f"  {note}")
