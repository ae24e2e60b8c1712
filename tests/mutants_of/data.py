"""Mistakes in course_lib/data/: the text and its tokens, one rank that prepares, who gets which."""

from tests.mutation import Mutant

TEXT, ROWS = "tests/test_data.py::test_", "tests/test_data_batches.py::test_"
OWN = TEXT + "the_text_is_the_librarys_own_and_the_same_each_time"
SOURCES = TEXT + "only_sources_of_the_library_itself_are_taken_in_the_order_of_their_names"
SIZE = TEXT + "the_vocabulary_has_exactly_so_many_words_and_divides_badly"
REACH = TEXT + "a_vocabulary_out_of_reach_is_refused"
BACK = TEXT + "every_text_comes_back_letter_by_letter"
PRINT = TEXT + "the_fingerprint_is_of_all_that_matters"
PROCESS = TEXT + "another_process_makes_the_same_corpus"
MISSING = TEXT + "a_missing_package_is_named_with_the_extra"
AGAIN = TEXT + "what_is_kept_is_used_again_and_is_no_pickle"
DAMAGED = TEXT + "a_damaged_folder_is_made_anew_with_a_word"
OTHER = TEXT + "a_folder_of_another_text_or_size_is_made_anew_with_a_word"
FULL = TEXT + "a_failure_while_keeping_leaves_what_was_there"
HEARD = TEXT + "one_rank_prepares_and_all_hold_the_same[3]"
FAILS = TEXT + "what_fails_on_one_rank_is_raised_on_all"

MESH = ROWS + "tp_ranks_take_the_same_rows_and_dp_ranks_different_ones"
UNION = ROWS + "the_whole_batch_is_the_same_for_every_number_of_dp_ranks"
EPOCH = ROWS + "an_epoch_has_each_row_once_and_every_target_once"
RESUME = ROWS + "a_run_goes_on_with_exactly_the_next_rows_on_any_number_of_dp_ranks"
STATE = ROWS + "a_state_of_other_data_or_settings_is_refused"
REFUSED = ROWS + "what_cannot_be_shared_out_is_refused"
PIECE = ROWS + "one_piece_of_tokens_and_another_device"
TOLD = ROWS + "ranks_that_follow_different_orders_are_told"


def wrong(file: str):
    def make(name: str, old: str, new: str, tests: str | tuple, why: str, trap=None) -> Mutant:
        tests = (tests,) if isinstance(tests, str) else tests
        return Mutant(f"data-{name}", f"course_lib/data/{file}.py", old, new, tests, why, trap)

    return make


text, once, rows = wrong("corpus"), wrong("prepare"), wrong("batches")

MUTANTS = [
    text("all-of-it", "len(raw) > room", "False", (OWN, SOURCES), "the limit is passed by a file"),
    text(
        "cut-in-a-word",
        'raw.rfind(b"\\n", 0, room) + 1 if',
        "room if",
        (OWN, SOURCES),
        "the last document ends in the middle of a line, or of a letter",
    ),
    text(
        "tests-too",
        'folder.startswith("test")',
        "False",
        SOURCES,
        "tests are part of the text, and some are in other encodings",
    ),
    text(
        "installed-too",
        '("site-packages", "dist-packages", "__pycache__")',
        '("dist-packages", "__pycache__")',
        SOURCES,
        "what is installed differs from machine to machine",
    ),
    text(
        "as-the-disk-has-them",
        "key=lambda file: file.relative_to(root).as_posix()",
        "key=lambda file: -file.stat().st_size",
        SOURCES,
        "documents come in another order than that of their names",
    ),
    text(
        "by-hash",
        "key=lambda file: file.relative_to(root).as_posix()",
        "key=lambda file: hash(str(file))",
        PROCESS,
        "every process has an order of its own",
    ),
    text("even-vocabulary", "VOCABULARY = 2039", "VOCABULARY = 2040", SIZE, "every cut is even"),
    text(
        "any-size",
        "if tokenizer.get_vocab_size() != vocabulary:",
        "if False:",
        REACH,
        "a smaller vocabulary than asked for, without a word",
    ),
    text(
        "some-bytes-are-no-word",
        "initial_alphabet=sorted(made_of.pre_tokenizers.ByteLevel.alphabet()),",
        "initial_alphabet=[],",
        BACK,
        "a letter that the training text lacks disappears",
    ),
    text(
        "a-space-before",
        "ByteLevel(add_prefix_space=False)",
        "ByteLevel(add_prefix_space=True)",
        BACK,
        "every text comes back with a space before it",
    ),
    text(
        "letters-end-a-document",
        "tokenizer.encode_special_tokens = True",
        "tokenizer.encode_special_tokens = False",
        BACK,
        "a document that speaks of the end is cut in two",
    ),
    text("no-end", "[*one.ids, end]", "[*one.ids]", BACK, "documents run into one another"),
    text(
        "starts-are-ends",
        "lengths.cumsum(0) - lengths, tokenizer",
        "lengths.cumsum(0), tokenizer",
        BACK,
        "a document begins where the next one does",
    ),
    text(
        "fingerprint-of-tokens-alone",
        "for numbers in (self.tokens, self.starts):",
        "for numbers in (self.tokens,):",
        PRINT,
        "other documents of the same tokens look the same",
    ),
    text(
        "fingerprint-without-tokenizer",
        "hashlib.sha256(self.tokenizer_json.encode())",
        "hashlib.sha256()",
        (PRINT, DAMAGED),
        "another tokenizer reads the tokens as another text",
    ),
    text(
        "unnamed-package",
        "except ImportError as error",
        "except OSError as error",
        MISSING,
        "the error does not say what to install",
    ),
    once(
        "each-for-itself",
        "    if rank == 0:\n        try:",
        "    if True:\n        try:",
        (HEARD, FAILS),
        "every rank trains, of what it happens to have",
    ),
    once(
        "starts-not-told",
        "heard(starts, sizes[2], torch.int64), words",
        "(torch.zeros(sizes[2], dtype=torch.int64) if starts is None else starts), words",
        HEARD,
        "the other ranks do not know where documents begin",
    ),
    once(
        "trouble-kept-to-itself",
        "            problem = error\n",
        "            raise\n",
        FAILS,
        "rank 0 stops, and the others wait for it",
        "T30",
    ),
    once(
        "not-compared",
        "        (vocabulary, most_bytes, heard.fingerprint),",
        "        heard.fingerprint,",
        FAILS,
        "a rank with other settings goes on as if it had been heard",
    ),
    once(
        "never-used",
        "            return _kept(folder, settings)",
        "            _kept(folder, settings)",
        AGAIN,
        "the tokenizer is trained each time",
    ),
    once(
        "whatever-is-there",
        "    if {key: told.get(key) for key in settings} != settings:",
        "    if False:",
        OTHER,
        "a corpus of another text is taken for this one",
    ),
    once(
        "text-not-asked",
        ' "text": fingerprint_of(documents)}',
        ' "text": ""}',
        OTHER,
        "the text has changed and its tokens have not",
    ),
    once(
        "numbers-not-checked",
        '    if told.get("fingerprint") != made.fingerprint:',
        "    if False:",
        DAMAGED,
        "a bit that fell over on the disk is trained on",
    ),
    once(
        "damage-raises",
        "    except (OSError, ValueError, KeyError, safetensors.SafetensorError) as error:",
        "    except KeyError as error:",
        DAMAGED,
        "a run cannot begin until somebody deletes the folder",
    ),
    once(
        "written-in-place",
        "        write_whole(folder / name, raw)",
        "        with (folder / name).open('wb') as file:\n"
        "            file.write(raw), file.flush(), os.fsync(file.fileno())",
        FULL,
        "a full disk takes what was there with it",
    ),
    rows(
        "by-world-rank",
        '        group = axis(dp, "dp")\n        return group.rank(), group.size()',
        "        return dp.get_rank(), dp.size()",
        MESH,
        "tp ranks of one model get different rows",
        "T20",
    ),
    rows(
        "by-tp",
        'axis(dp, "dp")',
        'axis(dp, "tp")',
        MESH,
        "tp ranks get different rows, and replicas the same",
        "T20",
    ),
    rows(
        "all-the-same",
        "own = every[start : start + shares[self.index]]",
        "own = every[: shares[self.index]]",
        (MESH, UNION),
        "dp ranks all train on the same rows",
        "T20",
    ),
    rows(
        "a-remainder-lost",
        "shares = evenly(self.rows, self.ranks)",
        "shares = [self.rows // self.ranks] * self.ranks",
        (MESH, UNION),
        "rows that cannot be shared out evenly are left out",
    ),
    rows(
        "an-order-for-each",
        'f"{self.seed} {epoch}"',
        'f"{self.seed} {epoch} {self.index}"',
        (UNION, RESUME),
        "each dp rank shuffles for itself: some rows are seen twice, others never",
        "T20",
    ),
    rows(
        "one-order-for-all-epochs",
        'f"{self.seed} {epoch}"',
        'f"{self.seed}"',
        EPOCH,
        "every epoch has the same batches",
    ),
    rows(
        "with-repetition",
        'torch.randperm(self.known, generator=generator, device="cpu")',
        'torch.randint(self.known, (self.known,), generator=generator, device="cpu")',
        EPOCH,
        "some rows come twice and others never",
    ),
    rows(
        "tail-dropped",
        "if self._position == self.known:",
        "if self.known - self._position < self.rows:",
        EPOCH,
        "the last rows of an epoch are never seen",
    ),
    rows(
        "targets-not-shifted",
        "torch.where(counts, ids[:, 1:], IGNORED)",
        "torch.where(counts, ids[:, :-1], IGNORED)",
        EPOCH,
        "the model learns to repeat what it reads",
    ),
    rows(
        "next-document-read",
        "inputs = torch.where(real, ids[:, :-1], PADDING)",
        "inputs = ids[:, :-1]",
        EPOCH + "[False]",
        "behind a document stands the next one",
    ),
    rows(
        "padding-counts",
        "targets = torch.where(counts, ids[:, 1:], IGNORED)",
        "targets = ids[:, 1:]",
        EPOCH + "[False]",
        "the first words of the next document are targets",
        "T19",
    ),
    rows(
        "tokens-learnt-twice",
        "for at in range(start, end - 1, length):",
        "for at in range(start, end - 1, max(1, length - 1)):",
        EPOCH,
        "rows overlap by more than the token that is a target in one and an input in the next",
    ),
    rows(
        "count-of-all-places",
        "int(self._valid[own].sum()),",
        "len(own) * self.length,",
        MESH,
        "padding counts as tokens",
        "T19",
    ),
    rows(
        "total-of-this-rank",
        "int(self._valid[every].sum()),",
        "int(self._valid[own].sum()),",
        (MESH, UNION),
        "the loss is a mean of the ranks' means",
        "T19",
    ),
    rows(
        "total-by-ranks",
        "int(self._valid[every].sum()),",
        "int(self._valid[own].sum()) * self.ranks,",
        (MESH, UNION),
        "every rank takes the others to have as many tokens as it has itself",
        "T19",
    ),
    rows(
        "position-forgotten",
        "        self._epoch, self._position = epoch, position\n",
        "        self._epoch = epoch\n",
        RESUME,
        "a run that goes on begins the epoch again",
        "T32",
    ),
    rows(
        "old-order-kept",
        "        self._order = self._shuffled(epoch)\n",
        "",
        RESUME,
        "a run that goes on has the first epoch's order for ever",
        "T32",
    ),
    rows(
        "any-state",
        "            if state[key] != value:",
        "            if False:",
        STATE,
        "a state of other data points at other rows",
    ),
    rows(
        "borders-not-looked-at",
        "    digest.update(bytes_of(ends))\n",
        "",
        STATE,
        "the same tokens in other documents are other rows",
    ),
    rows(
        "any-place",
        "if not whole or epoch < 0 or not 0 <= position < self.known:",
        "if False:",
        STATE,
        "a state from nowhere is taken up",
    ),
    rows(
        "idle-ranks",
        "        if rows < self.ranks:\n",
        "        if False:\n",
        REFUSED,
        "a dp rank without a row waits for the others or divides by zero",
    ),
    rows(
        "too-few-rows",
        "        if self.known < rows:\n",
        "        if False:\n",
        REFUSED,
        "one step goes through the data twice",
    ),
    rows("any-index", "if not 0 <= index < count:", "if False:", REFUSED, "rank 2 of 2 takes none"),
    rows(
        "stays-where-it-was",
        "targets.to(self.device),",
        "targets,",
        PIECE,
        "the targets are not where the logits are",
    ),
    rows(
        "by-kind-of-number",
        "hashlib.sha256(bytes_of(tokens.long()))",
        "hashlib.sha256(bytes_of(tokens))",
        PIECE,
        "the same tokens in another dtype are other data",
    ),
    rows(
        "places-not-compared",
        "            sorted(self.state().items()),",
        "            sorted(self._settings().items()),",
        TOLD,
        "a rank that is a step ahead is not noticed",
        "T20",
    ),
    rows(
        "orders-not-compared",
        "            sorted(self.state().items()),",
        "            self._data,",
        TOLD,
        "a rank with a seed of its own is not noticed",
        "T20",
    ),
]
