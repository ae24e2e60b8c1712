"""What the Trainer itself makes of configs, in a process of its own: cases in, answers out, JSON.

`python -m tests.course_lib.peers.deepspeed_config.trainer_oracle FOLDER` reads a list of cases from
standard input.
"""

from __future__ import annotations

import json
import sys
import types
import warnings


def answer(case: dict, folder: str) -> dict:
    """The config as the integration leaves it, the mismatches it has noted, how it ended."""
    from transformers import TrainingArguments
    from transformers.integrations import deepspeed as integration
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    world = case["world"]
    of_ranks = type(
        "OfRanks", (TrainingArguments,), {"world_size": property(lambda self: world)}
    )  # this process is one rank
    noted: list = []

    class Noting(integration.HfTrainerDeepSpeedConfig):
        """Keeps what a mismatch is of, beside the text that is made of it."""

        def fill_match(self, ds_key_long, hf_val, hf_key=None, must_match=True):
            before, value = len(self.mismatches), self.get_value(ds_key_long)
            super().fill_match(ds_key_long, hf_val, hf_key, must_match)
            if len(self.mismatches) > before:
                noted.append([ds_key_long, value, hf_val])

        def fill_only(self, ds_key_long, hf_val, hf_key=None):
            self.fill_match(ds_key_long, hf_val, hf_key, must_match=False)

    integration.HfTrainerDeepSpeedConfig = Noting
    try:
        args = of_ranks(
            output_dir=folder, use_cpu=True, deepspeed=case["config"], **case["arguments"]
        )
        of_model = case["model"]
        kind = CONFIG_MAPPING[of_model["model_type"]]
        model = types.SimpleNamespace(config=kind(**of_model))
        args.hf_deepspeed_config.trainer_config_finalize(args, model, case["steps"])
        ended = ""
    except ValueError as error:
        ended = str(error)
        if "mismatch" not in ended:
            return {"ended": ended, "mismatches": noted, "config": None}
    finally:
        integration.HfTrainerDeepSpeedConfig = Noting.__mro__[1]
    config = dict(args.hf_deepspeed_config.config)
    config.pop("steps_per_print")  # Accelerate's infinity, so that DeepSpeed prints nothing
    return {"ended": ended, "mismatches": noted, "config": config}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps([answer(case, sys.argv[1]) for case in json.load(sys.stdin)]))
