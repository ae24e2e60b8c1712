"""Mistakes in course_lib/estimate: bytes miscounted, a table off, a message left out."""

from tests.mutation import Mutant

HERE = "course_lib/estimate/"
BACKWARD = f"{HERE}backward.py"
OFF = "tests/dry/test_estimates.py::test_a_peak_that_was_off"
MEMORY, TRAFFIC, PEAK = f"{HERE}memory.py", f"{HERE}traffic.py", f"{HERE}peak.py"
KEPT, TABLE, SHAPE = f"{HERE}activations.py", f"{HERE}deepspeed.py", f"{HERE}shape.py"
TESTS = "tests/estimate/test_"
FIT, FITS = f"{HERE}fit.py", f"{TESTS}fit.py::test_"
OVER_TP, OVER = f"{HERE}over_tp.py", f"{TESTS}over_tp.py"
RANKS_SEND = f"{OVER}::test_a_rank_sends_what_was_estimated"
UNEVEN = f"{TESTS}activations.py::test_what_every_rank_keeps_of_an_uneven_cut"
HELD = f"{TESTS}memory.py::test_what_is_held_is_what_was_estimated"
OTHERS = f"{TESTS}memory.py::test_other_optimizers_half_precision_and_frozen_parameters"
TIERS = f"{TESTS}memory.py::test_every_tier_holds_what_was_estimated"
SENT = f"{TESTS}traffic.py::test_a_step_sends_what_was_estimated"
ORACLE = f"{TESTS}deepspeed.py::test_deepspeeds_own_functions"
FORWARD = f"{TESTS}activations.py::test_what_a_forward_keeps"
CUT = f"{TESTS}activations.py::test_what_a_cut_forward_keeps"

MUTANTS = [
    # ---- what is held
    Mutant(
        "estimate-padding-forgotten",
        MEMORY,
        'self.between["parameters", tier] += bucket.cut.shard * width',
        "own = sum(p.numel for p in bucket.pieces(self.rank))\n"
        '            self.between["parameters", tier] += own * width',
        (f"{HELD}[4]",),
        "the shard's padding is memory too",
        "T24",
    ),
    Mutant(
        "estimate-counters-forgotten",
        MEMORY,
        "len(trained) * self.rule.counter",
        "0 * len(trained) * self.rule.counter",
        (f"{HELD}[1]", f"{HELD}[2]"),
        "Adam counts its steps in a number of its own for each part",
    ),
    Mutant(
        "estimate-master-forgotten",
        MEMORY,
        "            if away or self.master or (lent",
        "            if away or (lent",
        (OTHERS,),
        "16 bits are trained on a float32 copy, which nobody sees in the model",
        "T25",
    ),
    Mutant(
        "estimate-files-unaligned",
        MEMORY,
        '        self.between["files", "disk"] += layout.nbytes',
        '        self.between["files", "disk"] += own * wide * (1 + self.rule.states)',
        (TIERS,),
        "parts of a file begin at multiples of a page",
    ),
    Mutant(
        "estimate-sixteen",
        MEMORY,
        "    return parameters + gradients + (states + master) * wide / parts",
        "    return parameters + gradients + states * wide / parts",
        (f"{TESTS}memory.py::test_sixteen_bytes_and_what_the_stages_leave_of_them",),
        "the copy in float32 costs 4 of the 16",
    ),
    Mutant(
        "estimate-with-numbers",
        SHAPE,
        "        return without_numbers(model).to(dtype)",
        "        made = without_numbers(model).to(dtype)\n"
        "        made.norm.to_empty(device='cpu')  # of all that could be made, a little\n"
        "        made.norm.weight.data = torch.ones(1 << 20)\n"
        "        return made",
        (f"{TESTS}memory.py::test_no_number_of_a_model_is_needed_and_a_large_one_costs_nothing",),
        "the estimate takes memory like the model itself",
    ),
    Mutant(
        "estimate-any-stage",
        MEMORY,
        "    check_numbers(stage, 1, None)\n",
        "",
        (f"{TESTS}memory.py::test_what_makes_no_sense_is_refused",),
        "a stage that there is not gets an answer",
    ),
    Mutant(
        "estimate-rule-ignored",
        MEMORY,
        "    rule = optimizer if isinstance(optimizer, Rule) else RULES.get(optimizer)",
        '    rule = RULES["adamw"] if isinstance(optimizer, Rule) else RULES.get(optimizer)',
        (f"{TESTS}memory.py::test_a_rule_of_ones_own",),
        "every optimizer is taken for Adam",
    ),
    # ---- what is sent
    Mutant(
        "estimate-stage-2-accumulates-for-nothing",
        TRAFFIC,
        "            times = accumulate if stage == 2 else 1",
        "            times = 1",
        (f"{SENT}[2]",),
        "at stage 2 each micro-batch costs a reduce-scatter",
        "T22",
    ),
    Mutant(
        "estimate-head-gathered-anew",
        TRAFFIC,
        "        if place < len(uses) - 1 and whole > keep:",
        "        if whole > keep:",
        (f"{SENT}[3]",),
        "the last unit of a forward stays for the backward that begins with it",
    ),
    Mutant(
        "estimate-tp-head-forgotten",
        OVER_TP,
        "        table, head = both(wide), both(narrow)",
        "        table, head = both(wide), 0",
        (f"{RANKS_SEND}[2-gpt2]", f"{RANKS_SEND}[3-llama]"),
        "table and head take an all-reduce each",
    ),
    Mutant(
        "estimate-tp-recompute-ignored",
        OVER_TP,
        "    if config.recompute:\n        backward += block\n",
        "",
        (f"{RANKS_SEND}[2-gpt2 run again]", f"{RANKS_SEND}[3-llama of one, run again]"),
        "a forward that is run again sends its messages again",
    ),
    Mutant(
        "estimate-tp-shared-heads-ignored",
        OVER_TP,
        "    backward += _shared_heads(config, n, rank, wide)\n",
        "",
        (
            f"{RANKS_SEND}[2-gpt2 shared, without biases]",
            f"{RANKS_SEND}[2-llama of one, run again]",
        ),
        "key/value heads on several ranks: their gradients are summed over those",
    ),
    Mutant(
        "estimate-tp-shared-bias",
        OVER_TP,
        "if config.bias else 0)\n",
        "if False else 0)\n",
        (f"{RANKS_SEND}[3-gpt2 shared, run again]",),
        "and so are their biases'",
    ),
    Mutant(
        "estimate-tp-even-tokens",
        OVER_TP,
        "rows * cut(length, n)[rank] * config.hidden",
        "rows * length / n * config.hidden",
        (f"{RANKS_SEND}[2-gpt2]", f"{RANKS_SEND}[3-llama]"),
        "the last rank has fewer tokens, and sends otherwise",
    ),
    Mutant(
        "estimate-tp-fused-ignored",
        OVER_TP,
        "        if fused:  #",
        "        if False:  #",
        (f"{RANKS_SEND}[2-llama]",),
        "with the tokens cut, head and loss in one take another message",
    ),
    Mutant(
        "estimate-tp-autocast-ignored",
        OVER_TP,
        "    wide, narrow = width, width if products is None else products",
        "    wide, narrow = width, width",
        (f"{OVER}::test_other_widths_paddings_and_short_sequences",),
        "under autocast what goes into a product is half as wide",
    ),
    Mutant(
        "estimate-tp-anything-goes",
        OVER_TP,
        "    shares(config.heads, config.kv_heads, n)  # refuses heads that cannot be shared out\n",
        "",
        (f"{OVER}::test_what_cannot_be_cut_is_refused",),
        "heads that nobody could share out get an answer",
    ),
    Mutant(
        "estimate-kept-half-a-head",
        KEPT,
        "    heads, kv = share.heads, share.kv_heads\n",
        "    heads, kv = config.heads / tp, config.kv_heads / tp\n",
        (f"{UNEVEN}[2]", f"{UNEVEN}[3]"),
        "a key/value head that is shared is whole on each of its ranks",
    ),
    Mutant(
        "estimate-kept-ids-forgotten",
        KEPT,
        "    looked_up = 9 * tokens if tp > 1 else 0",
        "    looked_up = 0",
        (f"{UNEVEN}[2]", f"{UNEVEN}[3]"),
        "a cut table keeps which of its rows it gave, and for which tokens",
    ),
    Mutant(
        "estimate-kept-fused-ignored",
        KEPT,
        "        logits=0 if fused else round(",
        "        logits=round(",
        (f"{UNEVEN}[2]",),
        "head and loss in one keep no logits",
    ),
    Mutant(
        "estimate-offload-once-a-step",
        TRAFFIC,
        '            found["down"] += own * (accumulate if stage >= 2 else 1)',
        '            found["down"] += own',
        (f"{TESTS}traffic.py::test_offload_carries_what_was_estimated",),
        "from stage 2 on the sum of every micro-batch goes down by itself",
    ),
    # ---- activations and the peak
    Mutant(
        "estimate-joined-heads-forgotten",
        KEPT,
        "    core = tokens * (heads + 2 * kv) * d * width",
        "    core = tokens * heads * d * width",
        (FORWARD, CUT),
        "q, k and v are kept as one product gave them",
    ),
    Mutant(
        "estimate-attention-dropout",
        KEPT,
        "    if config.attention_dropout:",
        "    if config.attention_dropout > 1:",
        (f"{TESTS}activations.py::test_attention_dropout_is_no_part_of_it",),
        "a number that is far too small, without a word",
    ),
    Mutant(
        "estimate-loss-forgotten",
        BACKWARD,
        "        return 2 * logits\n",
        "        return 0\n",
        (f"{TESTS}peak.py::test_the_peak_of_a_step",),
        "the highest point is where the loss's gradient is made",
    ),
    Mutant(
        "estimate-units-brought-back",
        PEAK,
        "        gone = set(self.buckets[: self.sent])\n",
        "        gone = set()\n",
        (f"{TESTS}peak.py::test_the_peak_of_a_step",),
        "a unit that has left is counted to the end of the backward",
    ),
    Mutant(
        "estimate-scatter-in-place",
        BACKWARD,
        "scattered = wide + laid + (wide + stream if whole.sequence else 0)",
        "scattered = wide",
        (f"{OFF}[sequence]",),
        "a reduce-scatter needs what it sends and what arrives side by side",
    ),
    Mutant(
        "estimate-rerun-without-a-peak",
        BACKWARD,
        "if config.recompute and whole.sequence:",
        "if False:",
        (f"{OFF}[sequence]",),
        "the forward that is run again has its messages at the highest point",
    ),
    Mutant(
        "estimate-norms-in-one-step",
        BACKWARD,
        'norms = stream if config.norm == "layer" else (4 + (width < 4)) * NARROW * own * h',
        "norms = stream",
        (f"{OFF}[rms]",),
        "an RMS norm of 16-bit numbers is differentiated in float32, step by step",
    ),
    Mutant(
        "estimate-norm-keeps-sixteen-bits",
        KEPT,
        "tokens * (NARROW + config.hidden * max(width, NARROW))",
        "tokens * (NARROW + config.hidden * width)",
        (f"{TESTS}activations.py::test_what_a_forward_keeps_in_16_bits",),
        "an RMS norm keeps a float32 copy of 16-bit numbers",
    ),
    Mutant(
        "estimate-one-rank-sums-a-copy",
        "course_lib/collectives/direct.py",
        "if n > 1 and (buffer.is_cuda or not uses_gloo(buffer, group)):",
        "if n == 1 or buffer.is_cuda or not uses_gloo(buffer, group):",
        (f"{OFF}[alone]",),
        "a rank alone has its gradients three times at the end of a backward",
    ),
    # ---- DeepSpeed's table
    Mutant(
        "estimate-table-sixteen",
        TABLE,
        "    away = (STATES if offload_param else UPDATE) if offload_optimizer else 0",
        "    away = UPDATE if offload_optimizer else 0",
        (ORACLE, f"{TESTS}deepspeed.py::test_the_documented_table"),
        "18 where the parameters go too, 16 where they stay",
    ),
    Mutant(
        "estimate-stage-2-over-nodes",
        TABLE,
        "    return int(params * BUILT * gpus * room), HALF * params",
        "    return int(params * BUILT * gpus * nodes * room), HALF * params",
        (ORACLE,),
        "a host builds the model once for each of its own processes",
    ),
    Mutant(
        "estimate-half-gradient",
        TABLE,
        "GRADIENT = 4 ",
        "GRADIENT = 2 ",
        (f"{TESTS}deepspeed.py::test_what_a_parameter_costs_adds_up",),
        "the update reads its gradient in float32",
    ),
    Mutant(
        "estimate-overlap-one-bucket",
        TABLE,
        "    return int((reduce_bucket + other) * HALF * OVERLAP)",
        "    return int(reduce_bucket * HALF * OVERLAP)",
        (f"{TESTS}deepspeed.py::test_numbers_inside_a_config",),
        "there are two buckets",
    ),
    Mutant(
        "estimate-tied-twice",
        SHAPE,
        "    return Shape(sum(p.numel() for p in model.parameters()), most)",
        "    every = [p for m in model.modules() for p in m.parameters(recurse=False)]\n"
        "    return Shape(sum(p.numel() for p in every), most)",
        (f"{TESTS}deepspeed.py::test_a_tied_head_counts_once",),
        "a shared parameter is counted for each of its names",
    ),
    Mutant(
        "estimate-joined-layer",
        SHAPE,
        "            own = own // sum(rows) * max(rows)",
        "            own = own",
        (f"{TESTS}deepspeed.py::test_the_shape_of_a_config_is_that_of_the_hugging_face_model",),
        "our gate and up are one product, a checkpoint's are two layers",
    ),
    Mutant(
        "estimate-architecture-always",
        SHAPE,
        '        named = getattr(transformers, (keys.get("architectures") or [""])[0], None)',
        "        named = transformers.T5EncoderModel",
        (f"{TESTS}deepspeed.py::test_the_documented_model_from_its_config_alone",),
        "half of the documented model",
    ),
    Mutant(
        "estimate-no-model-type",
        SHAPE,
        "    if kind is None:",
        "    if kind == 0:",
        (f"{TESTS}deepspeed.py::test_a_config_that_is_none_is_refused",),
        "a file that is no config gets a message about transformers",
    ),
    # ---- typed
    Mutant(
        "estimate-prints-beside-json",
        "course_lib/cli/estimate.py",
        '        print(json.dumps({"rows": [row.as_dict() for row in table], "stages": stages}))\n'
        "        return\n",
        '        print(json.dumps({"rows": [row.as_dict() for row in table], "stages": stages}))\n',
        (f"{TESTS}deepspeed.py::test_the_command_gives_one_document",),
        "the table follows the document",
    ),
    Mutant(
        "estimate-rounded-table",
        "course_lib/cli/estimate.py",
        'f"{row.cpu_gb:.2f}", f"{row.gpu_gb:.2f}"',
        'f"{row.cpu_gb:.1f}", f"{row.gpu_gb:.1f}"',
        (f"{TESTS}deepspeed.py::test_the_command_for_people_shows_every_digit",),
        "the last digit is missing",
    ),
    Mutant(
        "estimate-wrong-use-is-1",
        "course_lib/cli/estimate.py",
        "        raise typer.Exit(2) from None",
        "        raise typer.Exit(1) from None",
        (f"{TESTS}deepspeed.py::test_wrong_use_ends_with_2_and_the_reason",),
        "a wrong call looks like a finding",
    ),
    # ---- where it fits
    Mutant(
        "estimate-card-in-gib",
        FIT,
        "if self.gpu <= card * GIGA]",
        "if self.gpu <= card * UNIT]",
        (f"{FITS}a_card_is_counted_in_its_own_gb",),
        "79 GiB are more than the 80 GB that a card is sold by",
    ),
    Mutant(
        "estimate-stage-2-half-gradients",
        FIT,
        "        gradients = HALF if stage < 2 else 0",
        "        gradients = HALF",
        (f"{FITS}every_way_is_what_the_exact_count_says",),
        "from stage 2 on the backward's own gradients are gone once they are summed",
    ),
    Mutant(
        "estimate-host-of-one-rank",
        FIT,
        "_up(host * params) * gpus",
        "_up(host * params)",
        (f"{FITS}every_way_is_what_the_exact_count_says[4]",),
        "a host has the shards of all its ranks",
    ),
    Mutant(
        "estimate-shared-heads-cut",
        FIT,
        "    joined = (share.heads + 2 * share.kv_heads) * config.head_size\n",
        "    joined = (config.heads + 2 * config.kv_heads) * config.head_size // tp\n",
        (f"{FITS}the_parameters_of_a_rank[2]", f"{FITS}the_parameters_of_a_rank[3]"),
        "key/value heads that ranks share are whole on each of them",
    ),
    Mutant(
        "estimate-billions-of-two",
        FIT,
        '"B": 9,',
        '"B": 12,',
        (f"{FITS}numbers_as_people_write_them",),
        "7B are 7e9, not 7e12",
    ),
    Mutant(
        "estimate-tp-taken-for-granted",
        "course_lib/cli/estimate.py",
        "        fit.check_ranks(gpus, nodes, tp)\n",
        "",
        (f"{FITS}wrong_calls_end_with_2_and_a_sentence",),
        "three ranks of eight",
    ),
    Mutant(
        "estimate-command-recompute-ignored",
        "course_lib/cli/estimate.py",
        "known.changed(recompute=recompute, attention_dropout=0.0)",
        "known.changed(attention_dropout=0.0)",
        (f"{FITS}recompute_and_sequence_take_fewer_bytes",),
        "an option without an effect",
    ),
]
