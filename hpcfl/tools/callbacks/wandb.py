"""Send rounds to Weights & Biases."""

import os
from collections.abc import Sequence
from secrets import token_hex
from typing import Any

from hpcfl.engine.callbacks import RunStart
from hpcfl.runs.job_file.settings import Settings
from hpcfl.tools.callbacks.tracker import LoggedRound, Tracker


class Wandb(Tracker):
    """Weights & Biases; without WANDB_MODE nothing is sent over the network."""

    name = "wandb"

    def begin(self, run: RunStart, config: Settings, name: str, known: str | None) -> str:
        """Start wandb's own process, which takes seconds."""
        import wandb

        self._run: Any = wandb.init(
            project=self.project,
            name=name,
            id=known or token_hex(8),
            resume="allow",
            config=dict(config),
            allow_val_change=True,
            dir=os.environ.get("WANDB_DIR") or str(run.directory),
            mode=os.environ.get("WANDB_MODE") or "offline",
            # Output is the run's own affair, and so is the code: the commit is in the config.
            settings=wandb.Settings(silent=True, console="off", disable_git=True),
        )
        return str(self._run.id)

    def deliver(self, rows: Sequence[LoggedRound]) -> None:
        """Hand the rounds to wandb's process; it refuses a step that is not above the last."""
        for row in rows:
            self._run.log(dict(row.values), step=row.round)

    def finish(self, status: str) -> None:
        """Wait until wandb's process has written, or sent, all."""
        self._run.finish(exit_code=0 if status == "finished" else 1)
