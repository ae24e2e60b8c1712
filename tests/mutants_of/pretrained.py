"""Mistakes in course_lib/pretrained/, what is stored: headers, reads, names, configs."""

from tests.mutation import Mutant

READER, CONFIG, LOAD, SAVE, BYTES, THEIRS = (
    f"tests/pretrained/test_{name}.py::test_"
    for name in ("reader", "config", "load", "save", "bytes", "transformers")
)
LIES, EVERY_SPAN = (
    READER + "a_file_that_lies_is_refused",
    READER + "every_span_of_one_file_and_of_two",
)
COST, INDEX = READER + "what_a_read_costs", READER + "an_index_that_points_nowhere"
ALIGNED = READER + "headers_that_we_write_are_those_that_are_read"
BACK, PUBLISHED = CONFIG + "there_and_back", CONFIG + "files_as_they_were_published"
TRAIT, MIX = (
    CONFIG + "a_trait_that_we_lack_is_refused_by_name",
    CONFIG + "a_mix_of_both_families_is_neither",
)
OWN, BARE = LOAD + "every_rank_gets_its_own", LOAD + "a_dense_model_and_names_without_a_prefix"
BAD = LOAD + "a_bad_checkpoint_is_refused_and_the_model_stays_as_it_was"
ONE_BAD, DTYPES = (
    LOAD + "what_is_wrong_on_one_rank_stops_all",
    LOAD + "dtypes_and_frozen_parameters",
)
TIED, HUB = LOAD + "a_head_that_is_tied_and_stored_too", LOAD + "a_name_on_the_hub"
ROUND = SAVE + "one_rank_to_four_to_two_to_one_bit_by_bit"
PLANNED, HOLDS = SAVE + "files_are_planned_by_size", SAVE + "no_rank_holds_more_than_a_tensor"
FULL = SAVE + "a_full_disk_leaves_the_old_checkpoint_and_every_rank_hears_of_it"
PLACE = SAVE + "a_new_checkpoint_takes_the_old_ones_place_and_other_files_stay"
QUARTER = BYTES + "a_rank_of_four_reads_a_quarter"
LOGITS, WRITES = (
    THEIRS + "logits_of_published_checkpoints",
    THEIRS + "transformers_reads_what_we_write",
)


def wrong(file: str):
    def make(name: str, old: str, new: str, test: str, why: str, trap=None) -> Mutant:
        path = f"course_lib/pretrained/{file}.py"
        return Mutant(f"pretrained-{name}", path, old, new, (test,), why, trap)

    return make


header, reader = wrong("header"), wrong("reader")
names, config = wrong("names"), wrong("config")

MUTANTS = [
    header(
        "header-unbounded",
        "if length > LONGEST or length > size - 8:",
        "if length > 1 << 70:",
        LIES + "[a header without end]",
        "a header as long as its file says",
    ),
    header(
        "overlap-read",
        "if slot.start != at:",
        "if slot.start > at:",
        LIES + "[an overlap]",
        "two tensors share bytes",
    ),
    header(
        "gap-read",
        "if slot.start != at:",
        "if slot.start < at:",
        LIES + "[a gap]",
        "bytes between tensors",
    ),
    header(
        "truncation-read",
        "    if at > size:\n",
        "    if at > size + 100:\n",
        LIES + "[cut off]",
        "a file that is cut off is found when it is read",
    ),
    header(
        "size-unchecked",
        "if stop - start != needed:",
        "if stop - start > needed:",
        LIES + "[another size]",
        "offsets that leave a tensor too little",
    ),
    header(
        "true-is-a-size",
        "type(number) is not int or",
        "not isinstance(number, int) or",
        LIES + "[true]",
        "a shape of [true, 6]",
    ),
    header(
        "names-twice",
        "if len(found) < len(pairs):",
        "if False:",
        LIES + "[a name twice]",
        "the last of two tensors of one name counts",
    ),
    header(
        "unaligned",
        "sorted(tensors, key=lambda name: -tensors[name][0].itemsize)",
        "tensors",
        ALIGNED,
        "a float32 may begin at an odd byte",
    ),
    reader(
        "whole-rows-read",
        "at = slot.start + row * size * inner + start * inner",
        "at = slot.start + row * size * inner",
        EVERY_SPAN,
        "every rank reads the first columns",
    ),
    reader(
        "read-row-by-row",
        "if run == size * inner:",
        "if False:",
        COST,
        "whole rows cost a read each",
    ),
    reader(
        "short-read-kept",
        "done += got\n",
        "done += len(view)\n",
        EVERY_SPAN,
        "what one read does not bring is left out",
    ),
    reader(
        "reads-all",
        "        slot, file = self.slots[name], self.files[name]\n",
        "        slot, file = self.slots[name], self.files[name]\n"
        "        os.pread(file, slot.stop - slot.start, slot.start)\n",
        QUARTER + "[llama]",
        "each rank reads whole tensors to keep a part",
    ),
    reader(
        "index-leads-away",
        "or Path(file).name != file or",
        "or",
        INDEX + "[no file's name]",
        "an index reads files of other folders",
    ),
    reader(
        "index-unchecked",
        "if named is not None and named != slots.keys():",
        "if named is not None and named - slots.keys():",
        INDEX + "[a tensor left out]",
        "files of two saves are mixed",
    ),
    reader(
        "left-open",
        "        except BaseException:\n            self.close()\n            raise",
        "        except BaseException:\n            raise",
        LIES + "[cut off]",
        "a refused file stays open",
    ),
    names(
        "conv1d-as-linear",
        'conv1d = kind == "gpt2" and len(shape) == 2',
        "conv1d = False",
        LOGITS + "[1]",
        "GPT-2's weights are read as if they were not transposed",
    ),
    names(
        "up-before-gate",
        '["mlp.gate_proj", "mlp.up_proj"]',
        '["mlp.up_proj", "mlp.gate_proj"]',
        LOGITS + "[2]",
        "gate and up change places; every shape is right",
    ),
    names(
        "thirds-of-qkv",
        'if inner == "attention.qkv" and len(theirs) == 3:',
        "if False:",
        LOGITS + "[2]",
        "q, k and v are taken to be equally long",
        "T13",
    ),
    names(
        "offset-forgotten",
        "yield part, a - first, b - first, at + a - start",
        "yield part, a - first, b - first, at",
        OWN + "[1]",
        "of two tensors in one span, the second is put where the first is",
    ),
    names(
        "padding-is-words",
        "_joined([(layer.start, min(layer.stop, layer.vocabulary))])",
        "_joined([(layer.start, layer.stop)])",
        ROUND,
        "rows of no word are saved, or read",
        "T9",
    ),
    names(
        "masks-not-known",
        r'"gpt2": re.compile(r"h\.\d+\.attn\.(masked_)?bias"),',
        r'"gpt2": re.compile(r"h\.\d+\.attn\.masked_bias"),',
        BARE,
        "older files of GPT-2 are refused for their masks",
    ),
    names(
        "prefix-demanded",
        'return prefix if any(name.startswith(prefix) for name in names) else ""',
        "return prefix",
        BARE,
        "a checkpoint of the model without its head is not read",
    ),
    wrong("sketch")(
        "sketch-first-part",
        "shape[dim] = sum(part.shape[dim] for part in parts)",
        "shape[dim] = parts[0].shape[dim]",
        OWN + "[2]",
        "q, k and v joined are as long as q on meta",
    ),
    config(
        "gpt2-without-biases",
        "    if not config.bias:\n",
        "    if False:\n",
        MIX,
        "a model without biases is saved as a GPT-2, which has some",
    ),
    config(
        "epsilon-dropped",
        '        epsilon=keys.get("rms_norm_eps", 1e-6),\n',
        "",
        BACK,
        "the norm's epsilon is our default",
    ),
    config(
        "old-base-dropped",
        'new if new is not None else keys.get("rope_theta", 10000.0)',
        "new if new is not None else 10000.0",
        PUBLISHED,
        "the rotary base of transformers 4's files is not seen",
    ),
    config(
        "new-base-dropped",
        'new = (keys.get("rope_parameters") or {}).get("rope_theta")',
        "new = None",
        PUBLISHED,
        "the rotary base of transformers 5's files is not seen",
    ),
    config(
        "scaling-dropped",
        'if kind != "default" or nested',
        "if nested",
        TRAIT,
        "scaled rotary positions are taken for plain ones",
    ),
    config(
        "traits-dropped",
        "if keys.get(key, plain) != plain:",
        "if False:",
        TRAIT,
        "what the model lacks is left out without a word",
    ),
    config(
        "checkpoint-over-model",
        "return {**ends, **more, **shared, **own}",
        "return {**ends, **shared, **own, **more}",
        CONFIG + "further_keys_are_kept_and_the_model_has_the_last_word",
        "the old config.json stays with a model that has changed",
    ),
    config(
        "untied-said-tied",
        '"tie_word_embeddings": config.tied',
        '"tie_word_embeddings": True',
        WRITES,
        "transformers ties a head that has weights of its own",
        "T17",
    ),
]
