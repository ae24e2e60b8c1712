"""Checkpoints that transformers wrote, read by 1 to 4 ranks, and ours, read by transformers.

Its logits are the oracle: equal to 1e-10 in float64, and in float32 to sixteen roundings of the
largest logit. Ranks themselves never import transformers.
"""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from course_lib import ranks
from course_lib.gpt import Config
from course_lib.pretrained import from_pretrained, from_transformers, save, to_transformers
from course_lib.tensor_parallel.conjugates import gather
from tests.course_lib.gpt.test_gpt_transformers import gpt2, in_float64, llama, stirred
from tests.course_lib.pretrained.parts import bits
from tests.course_lib.tensor_parallel.parts import BOUND, close

SIZES = {"vocabulary": 41, "length": 13, "hidden": 24, "layers": 2, "heads": 6, "inner": 13}
CASES = {  # config, bytes of a file, options of parallelize, worlds
    "gpt2": (Config.gpt2(**SIZES), "5GB", {}, (1, 2, 3, 4)),
    "gpt2-untied": (
        Config.gpt2(**SIZES, tied=False, activation="gelu", epsilon=1e-3),
        "9KB", {"multiple_of": 16}, (1, 3, 4),
    ),
    "llama-two": (Config.llama(**SIZES, kv_heads=2, rotary_base=300.0), "9KB", {}, (1, 2, 4)),
    "llama-three": (
        Config.llama(**SIZES, kv_heads=3, bias=True, tied=True, epsilon=1e-3),
        "5GB", {"sequence": True}, (1, 2, 3),
    ),
    "llama-one": (Config.llama(**SIZES, kv_heads=1), "5GB", {}, (3,)),
}  # fmt: skip
WIDE = "gpt2", "llama-two"  # in float32 too
ROUNDINGS = 16 * torch.finfo(torch.float32).eps


def their_model(transformers, config):
    make = gpt2 if config.position == "learned" else llama
    return stirred(make(transformers, config))


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Folders that transformers wrote, the tokens and the logits that belong to them."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    transformers.logging.set_verbosity_error()
    found = {}
    for name, (config, most, options, worlds) in CASES.items():
        folder = tmp_path_factory.mktemp("published") / name
        theirs = their_model(transformers, config)
        theirs.save_pretrained(folder, max_shard_size=most)
        assert (len(list(folder.glob("*.safetensors"))) > 2) == (most == "9KB")
        ids = torch.randint(config.vocabulary, (3, config.length))
        with torch.no_grad():
            narrow = copy.deepcopy(theirs).float()
            single = narrow(input_ids=ids).logits if name in WIDE else None
            logits = in_float64(theirs)(input_ids=ids).logits
        assert logits.std() > 0.1
        found[name] = str(folder), config, ids, logits, single, options, worlds
    return found


def joined(model, ids, config, mesh):
    part = model(ids)  # (b, s, padded/tp)
    table = model.tokens
    widths = [
        min(table.padded, (r + 1) * -(-table.padded // mesh.size(1)))
        - min(table.padded, r * -(-table.padded // mesh.size(1)))
        for r in range(mesh.size(1))
    ]
    assert part.shape[-1] == widths[mesh.get_local_rank("tp")]
    whole = gather(part, mesh.get_group("tp"), -1, widths, after="replicated")
    return whole[..., : config.vocabulary]  # (b, s, v)


@torch.no_grad()
def compared(me, cases):
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    for name, folder, config, ids, logits, single, options in cases:
        model = from_pretrained(folder, mesh, **options)
        assert model.config == config.changed(length=model.config.length)
        close(name, joined(model, ids, config, mesh), logits, BOUND)
        if single is not None:
            model = from_pretrained(folder, mesh, dtype=torch.float32, **options)
            close(f"{name} in float32", joined(model, ids, config, mesh), single, ROUNDINGS)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_logits_of_published_checkpoints(pool, published, world):
    cases = [(name, *case[:-1]) for name, case in published.items() if world in case[-1]]
    assert len(cases) >= 3
    pool.run(world, compared, cases)


def sent_back(me, jobs):
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    for folder, target, options, shard_bytes in jobs:
        save(from_pretrained(folder, mesh, **options), target, mesh, shard_bytes=shard_bytes)


def test_transformers_reads_what_we_write(pool, published, tmp_path):
    """Every number as it was, none missing, none too many; and the same logits."""
    import transformers

    jobs = [
        (folder, str(tmp_path / name), options, 5e9 if i % 2 else 9000)
        for i, (name, (folder, *_, options, worlds)) in enumerate(published.items())
        if 3 in worlds
    ]
    pool.run(3, sent_back, jobs)
    with torch.no_grad():
        for folder, target, _, _ in jobs:
            name = target.rsplit("/", 1)[1]
            _, config, ids, logits, *_ = published[name]
            theirs, told = transformers.AutoModelForCausalLM.from_pretrained(
                target, output_loading_info=True
            )
            assert not any(told.values()), (name, told)
            assert theirs.dtype == torch.float64 and not theirs.training
            close(name, in_float64(theirs)(input_ids=ids).logits, logits, BOUND)
            assert bits(Path(target)) == bits(Path(folder)), name
            assert theirs.config.tie_word_embeddings == config.tied


def test_configs_say_the_same_to_transformers(published):
    """Every trait that their config classes understand, through our config and back."""
    import transformers

    for config in (
        Config.gpt2(**SIZES, epsilon=2e-4, dropout=0.2, attention_dropout=0.3, tied=False),
        Config.gpt2(**SIZES, activation="gelu"),
        Config.llama(**SIZES, kv_heads=2, rotary_base=123.0, attention_dropout=0.3, dropout=0.1),
        Config.llama(**SIZES, bias=True, tied=True, epsilon=1e-3),
    ):
        told = to_transformers(config, torch.float64)
        theirs = transformers.AutoConfig.for_model(**told)
        back = theirs.to_dict()
        assert {key: back.get(key, told[key]) for key in told if key != "dtype"} == {
            key: value for key, value in told.items() if key != "dtype"
        }
        assert from_transformers(back) == config
        assert theirs.num_attention_heads == 6 and theirs.hidden_size == 24
        if config.position == "rotary":
            assert theirs.rope_parameters == {
                "rope_type": "default", "rope_theta": config.rotary_base
            }  # fmt: skip
            assert theirs.num_key_value_heads == config.kv_heads
