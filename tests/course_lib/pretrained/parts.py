"""What the tests of checkpoints share: models full of odd bits, files as safetensors sees them."""

from __future__ import annotations

import json
import struct

import torch
from safetensors.torch import load_file, save_file

from course_lib.gpt import GPT, Config
from course_lib.pretrained import save
from tests.course_lib.tensor_parallel.parts import randomized

SIZES = {"vocabulary": 41, "length": 13, "layers": 2}
GPT2 = Config.gpt2(**SIZES, hidden=20, heads=5, inner=13)
LLAMA = Config.llama(**SIZES, hidden=24, heads=6, kv_heads=2, inner=10)  # 3 ranks cannot share it
THREE = LLAMA.changed(kv_heads=3, bias=True, tied=True)


def model_of(config, label="weights", dtype=torch.float64):
    return randomized(GPT(config), label).to(dtype)


def odd_bits(model):
    """Numbers that arithmetic does not leave alone, all over the model: −0, NaN, the smallest."""
    generator = torch.Generator().manual_seed(4)
    odd = torch.tensor([-0.0, float("nan"), float("inf"), 1e-45, -1e-40])
    with torch.no_grad():
        for p in model.parameters():
            flat = p.view(-1)
            at = torch.randint(len(flat), (max(1, len(flat) // 5),), generator=generator)
            flat[at] = odd[torch.randint(5, at.shape, generator=generator)].to(p.dtype)
    return model


def written(config, folder, **options):
    """A folder with a checkpoint, from this library; other tests hold that against transformers."""
    save(model_of(config), folder, **options)
    return folder


def change(folder, edit, name="model.safetensors"):
    """Let `edit` change the dict of tensors of a file, and write it back."""
    tensors = {key: x.clone() for key, x in load_file(folder / name).items()}
    edit(tensors)
    save_file(tensors, folder / name, metadata={"format": "pt"})


def change_json(folder, edit, name="config.json"):
    told = json.loads((folder / name).read_text())
    edit(told)
    (folder / name).write_text(json.dumps(told))


def raw(header, data=b""):
    """The bytes of a file with this header, whatever it says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def bits(folder):
    """Name to (dtype, shape, bytes) of every tensor of a folder, as safetensors reads them."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, x in load_file(file).items():
            assert name not in found, f"{name} is written twice"
            found[name] = x.dtype, tuple(x.shape), x.view(torch.uint8).numpy().tobytes()
    return found


def whole(folder):
    """Everything in a folder: path to bytes."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}
