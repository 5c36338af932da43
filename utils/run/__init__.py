"""A training run around its steps: position, checkpoints, log and report.

    run      a training with its folder, until its last step
    start    one start of the program; a run has several if it was interrupted and resumed
    step     one optimizer step, on all ranks (processes of the training)

What a run does.

    run.py                 what is due after a step
    trained_model.py       what a run needs of its model
    position.py            where the run stands
    steps.py               results of the steps
    folder.py              the folder of the run, with its lock

Save and resume.

    checkpoint.py          writes and reads the file
    torch_file.py          reads files of torch.save safely
    saved_state.py         checks what a checkpoint holds; experiment.py writes it
    resume.py              chooses the checkpoint
    restore_position.py    position of the resumed run
    changed_options.py     what differs between two starts

Log and warn.

    experiment.py          log lines, numbers, pictures, checkpoints
    measured.py            numbers of each rank, for the log
    timing.py              measures the time of data, compute and forward (backward has no time of
                           its own); speed.py judges the times
    health.py              warns of slow or useless runs, and of a disk that gets full
    start_lines.py         the first lines of the log; overview.py makes the table at its head
    progress.py            how far an action is: a bar (progress_bar.py), or lines
    run_progress.py        how far the run is, and how long it will take
    debug_lines.py         tensors of a step, to find faults

Write files for people.

    writers.py             the writers, e.g. tensorboard_writer.py and wandb_writer.py
    history_writer.py      writes the history; history.py reads it
    figures.py             draws curves
    report.py              the page of the run
    environment.py         command, versions and device
"""
