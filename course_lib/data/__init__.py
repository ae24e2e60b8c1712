"""Training data for a language model: text that every machine has, our own tokenizer, and batches.

Reading order: corpus (text to tokens), prepare (rank 0 builds the corpus, sends it to the others
and keeps it in a folder), batches (which rank gets which rows), tokenizer_file (a tokenizer that
was saved elsewhere). Lesson 08.
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
