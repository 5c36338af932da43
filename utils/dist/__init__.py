"""The ranks (processes) of a run, and the watchdog that finds a rank that hangs.

Programs use utils/utils_dist.py, which calls these modules.

Find out which rank this is.

    identity.py          number of this rank, and its device
    state.py             `RUN`, what this process knows
    platforms.py         reads how this process was launched; chooses the port of a SLURM job
    launchers.py         MPI and cloud platforms, by launcher_table.py and launcher_cells.py;
                         chooses address and port of rank 0
    node_launch.py       one process for a whole node
    launch_variables.py  reads launch variables; host_list.py reads node lists
    gpu.py               chooses and checks GPUs

Meet.

    open_store.py        opens the key-value store of the run
    store_values.py      what ranks write there
    rendezvous.py        waits for all ranks, names missing ones
    round.py             a barrier that tells who failed
    waiting.py           waits within a time limit
    group.py             the process group; timeout.py fits limits to it

Exchange values.

    collectives.py       waits, gathers, sends, averages
    message.py           values as bytes
    agreement.py         compares a value of all ranks; ends all ranks if one fails
    source_code.py       a digest of the source files, which must be equal on all ranks
    stop.py              stops a run on request

Find a rank that hangs.

    watchdog.py          notes what this rank does
    watchdog_thread.py   beats, listens, ends the run
    paused_terminal.py   finds a rank that waits for its terminal, which is not a stall
    beats.py             what ranks write and read twice a second
    verdict.py           which rank is to blame
    awake_clock.py       counts seconds without suspension
    guard.py             a process that ends a hung rank
    stacks.py            reads stacks of other ranks; process.py ends processes
    stall_report.py      the report of a stall
    status.py            a line about each rank

End after an error.

    failure.py           one report, one exit code
    claims.py            which rank of a host reports
    lost_contact.py      whether another rank is the cause
    leave.py             ends this process
"""
