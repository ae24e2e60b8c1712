"""DeepSpeed's ZeRO inference: unequal prompts on each rank, dense words from sharded weights."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

from course_lib.inference.with_deepspeed import (
    IN_A_FILE,
    check,
    differences,
    ended,
    streaming,
    write,
    zero_config,
)
from course_lib.ledger import ledger
from course_lib.ways.setting import NotThere
from course_lib.ways.with_deepspeed import has_files, has_fp16, imported
from tests.inference.parts import prompts_of, said
from tests.ways.runs import ENV, needs_all

SIZES = {
    "gpt2": {"n_positions": 32, "n_embd": 20, "n_layer": 2, "n_head": 5, "n_inner": 13},
    "llama": {
        "max_position_embeddings": 32, "hidden_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 10,
    },
}  # fmt: skip
# A table of which each of two ranks' pieces is large enough for a file in 16 bits.
LARGE = {
    "max_position_embeddings": 32, "hidden_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 40,
}  # fmt: skip
ROWS = 16_500


def config_of(family: str, sizes: dict | None = None, vocabulary: int = 37):
    import transformers

    ends = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    return transformers.AutoConfig.for_model(
        family, vocab_size=vocabulary, initializer_range=0.3, **(sizes or SIZES[family]), **ends
    )


def theirs(config, dtype=torch.float32):
    """Of a class of its own, so that it is made whole where an HfDeepSpeedConfig is alive too."""
    import transformers

    torch.manual_seed(5)
    kinds = {"gpt2": transformers.GPT2LMHeadModel, "llama": transformers.LlamaForCausalLM}
    return kinds[config.model_type](config).eval().to(dtype)


def texts(me, cases):
    """Each case: the dense words and DeepSpeed's, with a stop at which ranks end apart."""
    found = []
    for family, offload, precision in cases:
        dtype, config = getattr(torch, precision), config_of(family)
        dense, prompts = theirs(config, dtype), prompts_of(me.rank)[: 1 + me.rank]
        linear = torch.nn.functional.linear
        stop = write(dense, prompts_of(0), 9)[0][len(prompts_of(0)[0]) + 1]
        want = write(dense, prompts, 9, stop=stop)
        with (
            streaming(
                me, lambda c=config, d=dtype: theirs(c, d), offload=offload, precision=precision
            ) as engine,
            ledger() as book,
        ):
            got = write(engine.module, prompts, 9, stop=stop, synced=True)
            held = sum(p.ds_tensor.numel() for p in engine.module.parameters())
            shown = {tuple(p.shape) for p in engine.module.parameters()}
        assert got == want, (family, offload, precision, got, want)
        assert torch.nn.functional.linear is linear
        whole = sum(p.numel() for p in dense.parameters())
        assert shown == {(0,)} and whole / me.world <= held < whole / me.world + 2 * 60
        sent = book.bytes(op="all_gather")
        steps = max(len(t) - len(p) for t, p in zip(got, prompts, strict=True))
        found.append((steps, sent, whole * dense.dtype.itemsize))
    return found


CASES = [(f, o, p) for f in SIZES for o in (None, "cpu") for p in ("float32", "bfloat16")]


@needs_all
@pytest.mark.parametrize(
    ("world", "cases"),
    [
        (2, [("gpt2", None, "float32"), ("llama", "cpu", "float32")]),
        pytest.param(2, CASES, marks=pytest.mark.slow),
        pytest.param(3, CASES[:3] + CASES[-1:], marks=pytest.mark.slow),
    ],
)
def test_every_rank_has_the_dense_words(pool, world, cases):
    every = pool.run(world, texts, cases, timeout=200, env=ENV, alone=True)
    for found in zip(*every, strict=True):
        steps = [one[0] for one in found]
        assert min(steps) < max(steps), "all ranks ended at one word, and nothing was tested"
        for _, sent, whole in found:  # each forward gathers all that other ranks hold
            assert sent >= max(steps) * whole * (world - 1) / world
            assert sent == found[0][1]


def loaded(me, tmp, files):
    """`from_pretrained` under HfDeepSpeedConfig: sharded while it loads; then from files."""
    import transformers

    dtype = torch.bfloat16 if files else torch.float32
    config = config_of("llama", LARGE, ROWS) if files else config_of("llama")
    whole = theirs(config)
    folder, place = f"{tmp}/model", f"{tmp}/files"
    if me.rank == 0:
        whole.save_pretrained(folder)
        os.mkdir(place)
    dist.barrier()
    while_loading = []

    def load():
        made = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        while_loading.extend(hasattr(p, "ds_tensor") and not p.numel() for p in made.parameters())
        return made

    options = {"offload": "nvme", "folder": place} if files else {}
    largest = max(p.numel() for p in whole.parameters())
    precision = "bfloat16" if files else "float32"
    want = write(theirs(config, dtype), prompts_of(me.rank), 6)
    with streaming(me, load, largest=largest, precision=precision, **options) as engine:
        got = write(engine.module, prompts_of(me.rank), 6, synced=True)
        dist.barrier()
        there = sum(len(names) for *_, names in os.walk(place))
        off = differences(engine, dict(whole.named_parameters()))
    assert got == want and while_loading and all(while_loading)
    rounded = {
        name: (p.double() - p.bfloat16().double()).abs().max().item()
        for name, p in whole.named_parameters()
    }
    return there, off, rounded


@needs_all
@pytest.mark.slow
def test_a_folder_is_loaded_in_shards(pool, tmp_path):
    for there, off, _ in pool.run(
        2, loaded, str(tmp_path), False, timeout=100, env=ENV, alone=True
    ):
        assert there == 0 and set(off.values()) == {0.0}


@needs_all
@pytest.mark.slow
@pytest.mark.skipif(
    torch.cuda.is_available() or not has_files(), reason="async_io is not there, or this is a GPU"
)
def test_parameters_in_files_are_bfloat16_and_the_words_those_of_the_dense_model_in_it(
    pool, tmp_path
):
    for there, off, rounded in pool.run(
        2, loaded, str(tmp_path), True, timeout=250, env=ENV, alone=True
    ):
        assert there == 2 * 2  # the table and the head, a file on each of two ranks
        assert off == rounded and max(off.values()) > 1e-4


def test_the_config_streams_unit_by_unit():
    zero = zero_config()["zero_optimization"]
    assert zero["stage"] == 3 and "offload_param" not in zero
    assert zero["stage3_max_live_parameters"] == 0 == zero["stage3_param_persistence_threshold"]
    config = zero_config(offload="nvme", folder="/tmp", largest=7, precision="bfloat16")
    assert config["bf16"] == {"enabled": True} and IN_A_FILE == 1024**2
    param = config["zero_optimization"]["offload_param"]
    assert param["device"] == "nvme" and param["nvme_path"] == "/tmp" and param["buffer_size"] == 7


def test_a_text_ends_with_its_first_stop_after_the_prompt():
    assert ended([4, 1, 2, 4, 4, 4], 2, 4) == [4, 1, 2, 4]
    assert ended([4, 1, 2], 2, 4) == [4, 1, 2] and ended([4, 1, 4], 2, None) == [4, 1, 4]


@needs_all
def test_what_deepspeed_would_make_something_else_of_is_refused(tmp_path):
    def refused(error=ValueError, **changes):
        options = {"offload": "nvme", "folder": tmp_path, "largest": 9, "precision": "bfloat16"}
        return said(error, check, **{**options, **changes})

    assert "offload='disk' is none of" in refused(offload="disk")
    assert "precision='float16' is none of" in refused(precision="float16")
    assert "is missing, and DeepSpeed would make it" in refused(folder=tmp_path / "none")
    assert "None is missing" in refused(folder=None)
    assert "pass largest=" in refused(largest=0)
    if has_files() and not has_fp16():
        words = refused(NotThere, precision="float32")
        assert "as bfloat16" in words and "precision='bfloat16'" in words


def rounds(me, tmp):
    """What DeepSpeed itself makes of a float32 model in files: the reason of the refusal."""
    from course_lib.ways.launched import launched, quiet

    with launched(me), quiet():
        deepspeed = imported()
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        model = theirs(config_of("llama", LARGE, 2 * ROWS))
        largest = max(p.numel() for p in model.parameters())
        engine, *_ = deepspeed.initialize(
            model=model, config=zero_config(offload="nvme", folder=tmp, largest=largest)
        )
        words = said(RuntimeError, engine, torch.tensor([[1, 2]]))
        engine.destroy()
    return words


@needs_all
@pytest.mark.slow
@pytest.mark.skipif(
    torch.cuda.is_available() or not has_files(), reason="async_io is not there, or this is a GPU"
)
def test_deepspeed_makes_bfloat16_of_a_float32_model_in_files(pool, tmp_path):
    (words,) = pool.run(1, rounds, str(tmp_path), timeout=250, env=ENV, alone=True)
    assert "dtype" in words and "BFloat16" in words and "float" in words


def apart(me):
    """Rank 0's row ends at once; without synced_gpus rank 1 gathers on by itself."""
    config = config_of("llama")
    dense = theirs(config)
    stop = write(dense, [[1]], 1)[0][1]
    other = next([p] for p in range(37) if stop not in write(dense, [[p]], 6)[0][1:])
    with streaming(me, lambda: theirs(config)) as engine:
        write(engine.module, [[1]] if me.rank == 0 else [other], 6, stop=stop, synced=False)


@needs_all
@pytest.mark.slow
def test_without_synced_gpus_a_rank_waits_inside_deepspeeds_gather(pool):
    words = pool.raises(2, apart, timeout=60, env=ENV, alone=True)
    assert words[0] is None and "RuntimeError" in words[1]
