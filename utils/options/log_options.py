"""Keys of `logging` and `debug`: what a run shows and writes of itself.

What must stay and what is free to change: see the head of models.py. No key here changes what is
trained. How the keys are used: utils/run/run_progress.py, utils/run/writers.py,
utils/run/wandb_writer.py; `debug` in utils/run/run.py.

Tests: tests/parts/utils/test_progress.py, tests/parts/utils/test_writers.py
"""

from typing import Any, Literal

from pydantic import Field

from utils.options.section import Section


class LoggingOptions(Section):
    progress: Literal["bar", "line", "none"] = Field(
        "bar",
        description="bar: a bar on a terminal, else lines; line: a line at each tenth; none: "
        "nothing. TQDM_DISABLE=1 has the effect of none.",
    )
    use_tensorboard: bool = Field(True, description="Write tb_logger/.")
    use_report: bool = Field(
        True,
        description="Draw curves.png and report.html after each validation and at the end of a "
        "run.",
    )
    writers: list[str | dict[str, Any]] = Field(
        [], description="Further writers of your own; see docs/extending.md."
    )
    use_wandb: bool = Field(
        False,
        description="Report to Weights & Biases; offline into wandb/, for a later `wandb sync`.",
    )
    wandb_project: str = Field("spikevrt", min_length=1, description="W&B project.")
    wandb_entity: str | None = Field(None, description="W&B team or user.")
    wandb_api_key: str | None = Field(
        None,
        description="W&B key. It is saved nowhere. It is safer in the environment, as "
        "WANDB_API_KEY.",
    )


class DebugOptions(Section):
    every: int = Field(
        0,
        ge=0,
        description="Steps between two lines that each rank prints of itself; 0: no such lines.",
    )
    compare_every: int = Field(
        500,
        ge=0,
        description="Steps between two comparisons of the ranks' weights; 0: no comparisons.",
    )
