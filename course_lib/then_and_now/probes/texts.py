"""What transformers says today to the calls of the pages on tokenizers and processors.

The tokenizer is made from two words, in memory. Lesson 13.
"""

from __future__ import annotations

import importlib

from course_lib.then_and_now.asking import left_as_found, refusal

GLUE_AND_SQUAD = (
    "glue_convert_examples_to_features",
    "glue_processors",
    "squad_convert_examples_to_features",
    "SquadV2Processor",
    "xnli_processors",
)


def two_classes() -> str:
    """A model's base and fast tokenizer: today one class, under two names."""
    import transformers

    same = transformers.BertTokenizer is transformers.BertTokenizerFast
    words = "one class" if same else "two classes"
    return f"BertTokenizer and BertTokenizerFast are {words}"


def encode_plus() -> str:
    return refusal(lambda: _tokenizer().encode_plus("yes"), AttributeError)


def batch_encode_plus() -> str:
    return refusal(lambda: _tokenizer().batch_encode_plus(["yes"]), AttributeError)


def pad_to_max_length() -> str:
    """`pad_to_max_length=True`: taken in silence, and nothing is padded."""
    with left_as_found() as heard:
        then = _tokenizer()("yes", pad_to_max_length=True, max_length=8)["input_ids"]
        now = _tokenizer()("yes", padding="max_length", max_length=8)["input_ids"]
    return f"{len(then)} token where {len(now)} were asked for, and says {heard}"


def additional_special_tokens() -> str:
    """The attribute of that name; the tokens are in extra_special_tokens."""
    tokenizer = _tokenizer()
    with left_as_found():
        tokenizer.add_special_tokens({"additional_special_tokens": ["<sep>"]})
    said = refusal(lambda: tokenizer.additional_special_tokens, AttributeError)
    return f"{said}; extra_special_tokens is {tokenizer.extra_special_tokens}"


def use_auth_token() -> str:
    """`push_to_hub(use_auth_token=…)`: refused before anything is sent."""
    return refusal(lambda: _tokenizer().push_to_hub("a/b", use_auth_token="none"), TypeError)


def feature_extractor() -> str:
    """An image model's FeatureExtractor, which is its ImageProcessor."""
    import transformers

    return refusal(lambda: transformers.CLIPFeatureExtractor, AttributeError)


def as_target_processor() -> str:
    import transformers

    return refusal(lambda: transformers.Wav2Vec2Processor.as_target_processor, AttributeError)


def data_processors() -> str:
    """Each name of the page's legacy section, and the module that held them."""
    import transformers

    left = [name for name in GLUE_AND_SQUAD if hasattr(transformers, name)]
    said = refusal(lambda: importlib.import_module("transformers.data.processors"), ImportError)
    return f"{said}; of {len(GLUE_AND_SQUAD)} names {len(left)} are left"


def _tokenizer():
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(WordLevel({"<pad>": 0, "<unk>": 1, "yes": 2, "no": 3}, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>")
