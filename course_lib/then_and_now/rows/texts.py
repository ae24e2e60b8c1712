"""Rows of the pages on tokenizers and on processors.

Lesson 13.
"""

from __future__ import annotations

from course_lib.then_and_now.probes import texts as probes
from course_lib.then_and_now.row import CHANGED, RUN, Row

HERE = "tests/then_and_now/test_tokenizers.py::"
E1, E3 = (f"notebooks/appendix_{name}.ipynb § " for name in ("e1_tokenizers", "e3_processors"))
BATCH = f"{E1}A batch: padding, truncation, attention mask"
TOKENIZERS = (
    Row(
        "base and fast",
        "PreTrainedTokenizer is written in Python, PreTrainedTokenizerFast stands on the "
        "tokenizers library; a model has a base and a fast class.",
        CHANGED,
        "A model has one class, on the tokenizers library where it can be; the name with Fast is "
        "another name of it.",
        (
            f"{HERE}test_a_text_comes_back_whole_and_in_fewer_tokens_than_bytes",
            f"{HERE}test_the_same_algorithm_learns_another_vocabulary",
        ),
        probes.two_classes,
        "BertTokenizer and BertTokenizerFast are one class",
    ),
    Row(
        "batch, padding, truncation",
        'tokenizer(texts, padding=True, truncation=True, max_length=…, return_tensors="pt").',
        RUN,
        "The same.",
        (
            f"{HERE}test_a_batch_is_padded_to_its_longest_and_cut_where_it_is_asked",
            BATCH,
        ),
    ),
    Row(
        "batch, padding, truncation",
        "encode_plus for one text.",
        CHANGED,
        "Gone: call the tokenizer.",
        (),
        probes.encode_plus,
        "has no attribute encode_plus",
    ),
    Row(
        "batch, padding, truncation",
        "batch_encode_plus for several texts.",
        CHANGED,
        "Gone: call the tokenizer with a list.",
        (),
        probes.batch_encode_plus,
        "has no attribute batch_encode_plus",
    ),
    Row(
        "batch, padding, truncation",
        'pad_to_max_length=True in older examples; padding="max_length".',
        CHANGED,
        "The old word is taken in silence and pads nothing.",
        (),
        probes.pad_to_max_length,
        "1 token where 8 were asked for",
    ),
    Row(
        "overflow",
        "return_overflowing_tokens with a stride gives what was cut off as further rows.",
        RUN,
        "The same.",
        (
            f"{HERE}test_what_is_cut_off_comes_as_further_rows",
            BATCH,
        ),
    ),
    Row(
        "added and special tokens",
        "add_tokens and add_special_tokens, which are never split.",
        RUN,
        "The same.",
        (
            f"{HERE}test_added_tokens_are_never_cut_and_need_rows_of_the_embedding",
            f"{E1}Added tokens: the embedding grows",
        ),
    ),
    Row(
        "added and special tokens",
        "tokenizer.additional_special_tokens.",
        CHANGED,
        "The attribute is extra_special_tokens; the old key of add_special_tokens is still read.",
        (),
        probes.additional_special_tokens,
        "has no attribute additional_special_tokens",
    ),
    Row(
        "resizing the embedding",
        "model.resize_token_embeddings(len(tokenizer)) after tokens were added.",
        RUN,
        "The same; new rows are drawn round the mean of the old ones. Cut over tp: appendix E1.",
        (
            f"{HERE}test_added_tokens_are_never_cut_and_need_rows_of_the_embedding",
            f"{E1}Sharded: the same rows on every layout",
        ),
    ),
    Row(
        "BatchEncoding",
        "What a fast tokenizer returns aligns tokens, words and characters.",
        RUN,
        "The same.",
        (
            f"{HERE}test_tokens_words_and_characters_find_each_other",
            BATCH,
        ),
    ),
    Row(
        "saving",
        "save_pretrained and from_pretrained.",
        RUN,
        "The same: tokenizer.json and tokenizer_config.json.",
        (f"{HERE}test_a_saved_tokenizer_is_the_same", f"{E1}The tokenizer's file"),
    ),
    Row(
        "pushing",
        "push_to_hub, with use_auth_token for who is not logged in.",
        CHANGED,
        "The word is token. Pushing itself needs a network and an account.",
        (),
        probes.use_auth_token,
        "unexpected keyword argument 'use_auth_token'",
    ),
)
PROCESSORS = (
    Row(
        "multimodal processors",
        "A processor holds a tokenizer and a feature extractor or image processor.",
        CHANGED,
        "An image model's part is its image_processor alone: names such as CLIPFeatureExtractor "
        "are gone.",
        (f"{E3}Images", f"{E3}Sound", f"{E3}Both in one"),
        probes.feature_extractor,
        "has no attribute CLIPFeatureExtractor",
    ),
    Row(
        "multimodal processors",
        "with processor.as_target_processor(): for labels; image_processor for what goes in.",
        CHANGED,
        "Gone: processor(text=labels).",
        (f"{E3}Both in one",),
        probes.as_target_processor,
        "has no attribute 'as_target_processor'",
    ),
    Row(
        "GLUE data processors",
        "glue_convert_examples_to_features and the processors of the GLUE tasks, as legacy.",
        CHANGED,
        "The module is gone with all of them: the datasets library and a tokenizer do it.",
        ("Datasets: Process", f"{E3}GLUE, XNLI, SQuAD"),
        probes.data_processors,
        "No module named 'transformers.data.processors'",
    ),
    Row(
        "XNLI data processors",
        "XNLI's processor, as legacy.",
        CHANGED,
        "Gone with GLUE's.",
        ("Datasets: Process", f"{E3}GLUE, XNLI, SQuAD"),
        probes.data_processors,
        "of 5 names 0 are left",
    ),
    Row(
        "SQuAD data processors",
        "SQuAD's processors and squad_convert_examples_to_features, as legacy.",
        CHANGED,
        "Gone with GLUE's; long contexts are split with return_overflowing_tokens.",
        (f"{HERE}test_what_is_cut_off_comes_as_further_rows", f"{E3}GLUE, XNLI, SQuAD"),
        probes.data_processors,
        "of 5 names 0 are left",
    ),
)
