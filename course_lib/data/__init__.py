"""What a language model is trained on: text that is everywhere, a tokenizer of our own, batches.

In the order of reading: corpus (text to tokens), prepare (once, on one rank, told to the others,
kept in a folder), batches (who gets which rows, and who has to get the same), tokenizer_file (a
tokenizer that somebody else saved). Lesson 08.
"""

from course_lib.data.batches import Batch, Batches
from course_lib.data.corpus import Corpus, corpus, encode, train_tokenizer
from course_lib.data.prepare import prepare
from course_lib.data.tokenizer_file import read_tokenizer

__all__ = [
    "Batch",
    "Batches",
    "Corpus",
    "corpus",
    "encode",
    "prepare",
    "read_tokenizer",
    "train_tokenizer",
]
