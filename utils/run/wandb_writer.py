"""Write the numbers and pictures of a run to Weights & Biases (W&B).

What must stay: the secret key of W&B reaches no file of the run
(test_weights_and_biases_runs_offline_and_the_key_reaches_no_file).

Test: tests/stories/test_main_train.py.
"""

import logging
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from utils.options.log_options import LoggingOptions
from utils.options.override import argument_without_secrets

logger = logging.getLogger(__name__)


class WandbWriter:
    """Writes to Weights & Biases. After a resume it continues the same W&B run.

    wandb gets the secret key only through the environment of this process, because the login of
    wandb would write the key to a file. This must stay. The test
    test_weights_and_biases_runs_offline_and_the_key_reaches_no_file looks for the key in all files
    of a run.
    """

    def __init__(
        self, section: LoggingOptions, folder: Path, options: dict[str, Any], run_id: str | None
    ) -> None:
        """Start a W&B run, or continue one. If W&B cannot be used, record the run offline.

        section: the options `logging`.
        folder: the folder of the run. wandb writes its files into the folder wandb/ there.
        options: all options, without secrets. W&B shows them as its config.
        run_id: id of the W&B run to continue, or None for a new W&B run.
        """
        import wandb

        if section.wandb_api_key:
            os.environ["WANDB_API_KEY"] = section.wandb_api_key
        # wandb copies the command line into its files, so first replace the secrets in it. All
        # later readers of sys.argv in this process get the arguments without secrets, too.
        sys.argv = [argument_without_secrets(argument) for argument in sys.argv]
        arguments: dict[str, Any] = {
            "project": section.wandb_project,
            "entity": section.wandb_entity,
            "name": options["task"],
            "dir": str(folder),
            "id": run_id,
            "resume": "allow" if run_id else None,  # "allow": continue the W&B run with this id
            "config": options,
        }
        self.image_of = wandb.Image
        try:
            with _no_input():
                self.run = wandb.init(**arguments)
        except wandb.Error as e:  # there is no key, the key is wrong, or there is no network
            self.run = wandb.init(**arguments, mode="offline")
            logger.warning(
                "W&B cannot be used (%s): this run is recorded offline; upload it later with: "
                "wandb sync %s",
                str(e).partition("\n")[0],  # its first line
                Path(self.run.dir).parent,  # the folder of this W&B run; `dir` is files/ in it
            )
        # The methods `scalars` and `close` of this writer are methods of wandb's run.
        self.scalars = self.run.log
        self.close = self.run.finish

    def image(self, tag: str, rgb: np.ndarray, step: int) -> None:
        """Write a picture.

        tag: name of the picture, e.g. "val/<clip>".
        rgb: the picture, (height, width, 3).
        step: number of optimizer steps so far.
        """
        self.run.log({tag: self.image_of(rgb)}, step=step)


@contextmanager
def _no_input() -> Generator[None]:
    """Give an empty stdin to the block.

    Without a key, wandb on a terminal would wait until the user types a key, and would store it.
    """
    stdin = sys.stdin
    with open(os.devnull, encoding="utf-8") as nothing:
        sys.stdin = nothing
        try:
            yield
        finally:
            sys.stdin = stdin
