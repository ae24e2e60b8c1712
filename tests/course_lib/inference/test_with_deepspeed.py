"""DeepSpeed's ZeRO inference: unequal prompts on each rank, dense words from sharded weights."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course_lib.inference.with_deepspeed import streaming, write
from course_lib.ledger import ledger
from tests.course_lib.inference.parts import prompts_of
from tests.course_lib.peers.ways.runs import ENV, needs_all

SIZES = {
    "gpt2": {"n_positions": 32, "n_embd": 20, "n_layer": 2, "n_head": 5, "n_inner": 13},
    "llama": {
        "max_position_embeddings": 32, "hidden_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 10,
    },
}  # fmt: skip


def config_of(family: str):
    import transformers

    ends = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    return transformers.AutoConfig.for_model(
        family, vocab_size=37, initializer_range=0.3, **SIZES[family], **ends
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


def loaded(me, tmp):
    """`from_pretrained` under HfDeepSpeedConfig: sharded while it loads."""
    import transformers

    whole = theirs(config_of("llama"))
    if me.rank == 0:
        whole.save_pretrained(tmp)
    dist.barrier()
    while_loading = []

    def load():
        made = transformers.AutoModelForCausalLM.from_pretrained(tmp)
        while_loading.extend(hasattr(p, "ds_tensor") and not p.numel() for p in made.parameters())
        return made

    with streaming(me, load) as engine:
        got = write(engine.module, prompts_of(me.rank), 6, synced=True)
    return got == write(whole, prompts_of(me.rank), 6), while_loading


@needs_all
@pytest.mark.slow
def test_a_folder_is_loaded_in_shards(pool, tmp_path):
    for same, while_loading in pool.run(2, loaded, str(tmp_path), timeout=100, env=ENV, alone=True):
        assert same and while_loading and all(while_loading)


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
