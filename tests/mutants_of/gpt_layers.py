"""Mistakes in the layers of course_lib/gpt/: norm, positions, attention, MLP, cache."""

from tests.mutation import Mutant

OURS, THEIRS = "tests/test_gpt.py::", "tests/test_gpt_transformers.py::"

FUTURE = OURS + "test_nobody_reads_the_future"
WRITTEN_OUT = OURS + "test_attention_written_out_head_by_head"
ROTARY = OURS + "test_rotary_positions_turn_pairs_and_know_distances_alone"
GROUPED = OURS + "test_grouped_queries_are_heads_with_copied_keys_and_values"
FEWER = OURS + "test_attention_serves_a_rank_with_fewer_heads"
PUBLISHED = OURS + "test_parameters_are_those_of_published_models"
MLP = OURS + "test_mlp"
RMS = OURS + "test_rms_norm"
DROPOUT = OURS + "test_where_dropout_happens"
BFLOAT16 = OURS + "test_bfloat16_runs_and_is_near"
CACHE = OURS + "test_with_a_cache_pieces_are_the_whole"
LLAMA = THEIRS + "test_llama[one-kv-tied]"
OWN_NORM = THEIRS + "test_llama_with_its_own_norm"


def model(name: str, old: str, new: str, test: str, why: str, trap=None) -> Mutant:
    return Mutant(f"gpt-{name}", "course_lib/gpt/model.py", old, new, (test,), why, trap)


MUTANTS = [
    model(
        "reads-the-future",
        "is_causal=True",
        "is_causal=False",
        FUTURE,
        "a token sees the one that it should predict",
    ),
    model(
        "values-for-keys",
        "q, k, v = (part.view",
        "q, v, k = (part.view",
        WRITTEN_OUT,
        "rows of qkv are read as q, v, k",
    ),
    model(
        "heads-fixed-by-hidden",
        "return self.out(y.transpose(1, 2).flatten(2))",
        "return self.out(y.transpose(1, 2).reshape(x.shape))",
        FEWER,
        "a rank that holds some of the heads cannot run the dense code",
    ),
    model(
        "kv-heads-not-saved",
        "wide = (config.heads + 2 * config.kv_heads) * config.head_size",
        "wide = 3 * config.heads * config.head_size",
        PUBLISHED,
        "grouped queries keep all keys and values",
        "T13",
    ),
    model(
        "grouped-queries-refused",
        "dropout_p=p, is_causal=True, enable_gqa=shared",
        "dropout_p=p, is_causal=True",
        GROUPED,
        "fewer key/value heads are not served",
        "T13",
    ),
    model(
        "neighbours-turned",
        "first, second = x.to(wide).chunk(2, dim=-1)",
        "first, second = x.to(wide).unflatten(-1, (-1, 2)).unbind(-1)",
        ROTARY,
        "pairs of neighbours, as another family of weights has them",
    ),
    model(
        "turned-backwards",
        "first * cos - second * sin, second * cos + first * sin",
        "first * cos + second * sin, second * cos - first * sin",
        ROTARY,
        "the angle's sign",
    ),
    model(
        "values-of-one-base",
        "self.rotary_base = config.rotary_base",
        "self.rotary_base = 10000.0",
        LLAMA,
        "the config's base is not read",
    ),
    model(
        "keys-not-turned",
        "rotate(k, self.rotary_base, first)",
        "k",
        WRITTEN_OUT,
        "queries alone know where they stand",
    ),
    model(
        "rms-in-bfloat16",
        "wide = x if x.dtype == torch.float64 else x.float()",
        "wide = x",
        RMS,
        "a mean of squares in eight bits",
    ),
    model(
        "rms-epsilon-outside",
        "torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)",
        "1 / (wide.square().mean(-1, keepdim=True).sqrt() + self.epsilon)",
        RMS,
        "epsilon is added to the root",
    ),
    model(
        "rms-float32-for-all",
        "wide = x if x.dtype == torch.float64 else x.float()",
        "wide = x.float()",
        OWN_NORM,
        "float64 goes through float32, and no bound of 1e-10 can hold",
        "T28",
    ),
    model(
        "rms-stays-wide",
        "(wide * scale).to(x.dtype)",
        "(wide * scale)",
        BFLOAT16,
        "a bfloat16 model computes in float32 from the first norm on",
    ),
    model(
        "gate-for-up",
        "gate, up = self.gate_up(x)",
        "up, gate = self.gate_up(x)",
        MLP,
        "the wrong half is bent",
    ),
    model(
        "one-gelu-for-all",
        'approximate = "tanh" if self.activation == "gelu_tanh" else "none"',
        'approximate = "tanh"',
        MLP,
        "the exact GELU is approximated",
    ),
    model(
        "one-dropout-for-both",
        "Heads(config.attention_dropout)",
        "Heads(config.dropout)",
        DROPOUT,
        "the residual's probability is used inside heads",
        "T14",
    ),
    model(
        "heads-drop-in-eval",
        "p = self.dropout if self.training else 0.0",
        "p = self.dropout",
        DROPOUT,
        "evaluation is random",
    ),
    model(
        "cache-every-token-first",
        "first = 0 if past is None else past.first",
        "first = 0",
        CACHE,
        "with a cache each piece is turned as if it came first",
    ),
    model(
        "cache-sees-too-little",
        ".tril(known - new)",
        ".tril()",
        CACHE,
        "a new token sees the oldest ones alone",
    ),
    model(
        "cache-backwards",
        "torch.cat((self.k, k), dim=2)",
        "torch.cat((k, self.k), dim=2)",
        CACHE,
        "new keys come before the old ones",
    ),
]
