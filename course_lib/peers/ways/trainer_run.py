"""A training run by Transformers' Trainer: its arguments, and a callback that measures it.

The loop is the Trainer's own; losses and norms are read from its log. Lesson 13.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from contextlib import ExitStack

from torch import nn

from course_lib import ranks
from course_lib.ledger import Book, ledger
from course_lib.peers.ways.evidence import Before, Evidence, RunEvidence, held_by, traffic
from course_lib.peers.ways.launched import launched, quiet
from course_lib.peers.ways.setting import WaySetting
from course_lib.peers.ways.with_deepspeed import held_by_engine
from course_lib.peers.ways.workload import Workload, the_package


def arguments(me: ranks.Me, workload: Workload, setting: WaySetting, folder: str, **more) -> dict:
    """Return TrainingArguments that match the setting and leave no choice to defaults."""
    return {
        "output_dir": folder,
        "per_device_train_batch_size": workload.batch,
        "gradient_accumulation_steps": setting.accumulate,
        "max_steps": workload.steps,
        "learning_rate": workload.lr,
        "weight_decay": workload.weight_decay,
        "max_grad_norm": 0.0 if setting.clip is None else setting.clip,
        "lr_scheduler_type": "constant",
        "train_sampling_strategy": "sequential",
        "bf16": setting.precision == "bfloat16",
        "fp16": setting.precision == "float16",
        "use_cpu": me.device.type == "cpu",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        **more,
    }


def trainer(
    workload: Workload, setting: WaySetting, world: int, make: Callable[[], nn.Module], given: dict
):
    """Create a Trainer (Seq2SeqTrainer for an encoder-decoder) with these arguments. The model is
    created after the arguments, which tell Transformers about a DeepSpeed config."""
    transformers = the_package()
    seq2seq = workload.family == "t5"
    made = transformers.Seq2SeqTrainingArguments if seq2seq else transformers.TrainingArguments
    args = made(**given)
    rows = workload.rows(world, setting.accumulate)
    return trainer_class(seq2seq)(model=make(), args=args, train_dataset=rows)


@functools.cache
def trainer_class(seq2seq: bool = False):
    """Create a Trainer class that decays all parameters, as the other ways do."""
    import transformers

    class DecaysAll(transformers.Seq2SeqTrainer if seq2seq else transformers.Trainer):
        def get_decay_parameter_names(self, model):
            return [name for name, _ in model.named_parameters()]

    return DecaysAll


@functools.cache
def recorder_class():
    from transformers import TrainerCallback

    class Recorder(TrainerCallback):
        """A callback that runs the last step under the ledger, then counts the held bytes."""

        def __init__(self, before: Before):
            self.before, self.trainer = before, None
            self.book: Book | None = None
            self.held: dict[str, int] = {}
            self._open = ExitStack()

        def on_step_begin(self, args, state, control, **objects):
            if state.global_step == args.max_steps - 1:
                self.book = self._open.enter_context(ledger())

        def on_step_end(self, args, state, control, **objects):
            if state.global_step == args.max_steps:
                self._open.close()
                trainer = self.trainer
                if trainer.is_deepspeed_enabled:
                    self.held = held_by_engine(self.before, trainer.model_wrapped)
                else:
                    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
                    self.held = held_by(self.before, trainer.model, optimizer)

        def close(self) -> None:
            self._open.close()

    return Recorder


def trained(
    way: str,
    me: ranks.Me,
    workload: Workload,
    setting: WaySetting,
    make: Callable[[], nn.Module] | None = None,
    **more: object,
) -> RunEvidence:
    """Train once, as if a launcher had started this rank; `more` are additional arguments."""
    with launched(me), quiet(), tempfile.TemporaryDirectory() as folder:
        before = Before()
        given = arguments(me, workload, setting, folder, **more)
        made = trainer(workload, setting, me.world, make or workload.model, given)
        try:
            return run(way, made, recorder_class()(before), me.world)
        finally:
            if made.is_deepspeed_enabled and made.model_wrapped is not made.model:
                made.model_wrapped.destroy()


def run(way: str, trainer, recorder, world: int = 1) -> RunEvidence:
    """Train without output, and read the losses from the Trainer's own log."""
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(recorder)
    recorder.trainer = trainer
    try:
        trainer.train()
        log = trainer.state.log_history
        evidence = Evidence(
            type(trainer.model_wrapped).__name__,
            type(trainer.optimizer).__name__,
            recorder.held,
            **traffic(recorder.book),
        )
        return RunEvidence(
            way,
            [entry["loss"] for entry in log if "loss" in entry],
            [entry["grad_norm"] for entry in log if entry.get("grad_norm") is not None],
            evidence,
            [f"the Trainer counts {trainer.args.world_size} of {world} ranks"],
        )
    finally:
        recorder.close()
        recorder.trainer = None
