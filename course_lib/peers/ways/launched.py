"""What a launcher would have set: DeepSpeed and Accelerate read who they are from variables.

The group of these ranks is there already; the variables are set for as long as a way runs, and what
both packages remember of it is taken back afterwards. Lesson 13.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from course_lib import ranks

# A port that nobody opens: the process group exists, and is taken over.
UNUSED_PORT = "29500"


def variables(me: ranks.Me) -> dict[str, str]:
    """The six that torchrun sets and that everything here reads.

    DeepSpeed and Accelerate take LOCAL_RANK for the number of a GPU, which ranks may share.
    """
    gpu = me.device.index  # None on a CPU
    return {
        "RANK": str(me.rank),
        "LOCAL_RANK": str(me.local_rank if gpu is None else gpu),
        "WORLD_SIZE": str(me.world),
        "LOCAL_WORLD_SIZE": str(me.local_world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": UNUSED_PORT,
    }


@contextmanager
def launched(me: ranks.Me) -> Iterator[None]:
    """Run the inside as if a launcher had started this rank."""
    before = dict(os.environ)
    os.environ.update(variables(me))
    forget()
    try:
        yield
    finally:
        forget()
        for name in [name for name in os.environ if name not in before]:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings, neither Python's nor a logger's: about what a way chooses on purpose."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def forget() -> None:
    """Accelerate's shared state, and the config that Transformers keeps for `from_pretrained`."""
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    if "transformers.integrations.deepspeed" in sys.modules:
        from transformers.integrations.deepspeed import unset_hf_deepspeed_config

        unset_hf_deepspeed_config()
