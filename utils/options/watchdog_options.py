"""Keys of `watchdog`: how long a rank may stay in one phase of a run.

A user usually sets only stall_s. The other limits follow from it.

What must stay and what is free to change: see the head of models.py. In addition, the limits must
stay below the time-out of the process group (`WatchdogOptions.timeout_s`). How the keys are used:
utils/dist/watchdog_thread.py, utils/dist/timeout.py.

Tests: test_the_limits_of_time_follow_from_one_number in tests/faults/test_startup.py
"""

from pydantic import Field

from utils.options.section import Section

# Key of the limit of a slow phase -> the factor by which watchdog.stall_s is multiplied if the key
# is null. E.g. stall_s 400 gives start_s 1200. The factors are chosen by hand. The descriptions of
# the keys below name these factors. So after a change, correct the descriptions, and
# test_the_limits_of_time_follow_from_one_number.
SLOW_LIMIT_FACTORS = {"start_s": 3, "validate_s": 5, "save_s": 3}
# A user may set a short stall_s, so that a rank that hangs is reported soon. But a start or a
# validation needs its time in any case. So a stall_s below 300 s counts as 300 s when it is
# multiplied. E.g. stall_s 100 gives start_s 3 * 300 = 900. 300 s is also the default of the key
# stall_s below.
LEAST_STALL_S_TO_MULTIPLY = 300.0
# Phase of a run -> key of its limit. All other phases have the limit stall_s. The code that calls
# `watchdog.phase` or `watchdog.stage` gives the names, e.g. "save" in utils/run/run.py. If a name
# changes in that code, change it here, too. A phase that is missing here gets the limit stall_s.
LIMIT_OF_PHASE = {
    "start": "start_s",
    "first step": "start_s",
    "validate": "validate_s",
    "restore": "validate_s",
    "score": "validate_s",
    "save": "save_s",
}


class WatchdogOptions(Section):
    """A rank that stays in one phase longer than its limit ends the run. The error names the rank.

    A rank that sends no beat for stall_s ends the run, too (utils/dist/beats.py). Usually set only
    stall_s. The other limits follow from it.
    """

    stall_s: float = Field(
        300, ge=1, description="Seconds for any phase: a batch, a step, a barrier."
    )
    start_s: float | None = Field(
        None, ge=1, description="Seconds for start and first step. null: 3 stall_s, at least 900."
    )
    validate_s: float | None = Field(
        None,
        ge=1,
        description="Seconds for a tile of a test, or scores of a frame. null: 5 stall_s, at "
        "least 1500.",
    )
    save_s: float | None = Field(
        None, ge=1, description="Seconds for a checkpoint. null: 3 stall_s, at least 900."
    )

    def limit(self, name: str) -> float:
        """Return a limit in seconds.

        name: a key of this section, "stall_s" or a key of SLOW_LIMIT_FACTORS. A key that is null
            follows from stall_s.
        """
        limit_s = getattr(self, name)
        if limit_s is None:
            limit_s = SLOW_LIMIT_FACTORS[name] * max(LEAST_STALL_S_TO_MULTIPLY, self.stall_s)
        return limit_s

    def limit_of_phase(self, name: str) -> float:
        """Return how many seconds a rank may stay in a phase. The result is stall_s or more.

        name: the phase as the watchdog writes it, with the phases around it and perhaps a clip,
            e.g. "load in validate: clip_01". The outermost phase decides, here "validate".
        """
        # In the example, first leave out the clip: "load in validate". The outermost phase is then
        # the text after the last " in ", "validate", or the whole text if there is no " in ".
        phases = name.partition(":")[0]
        outermost = phases.rpartition(" in ")[2]
        if outermost not in LIMIT_OF_PHASE:
            return self.stall_s
        # A limit that the user sets below stall_s counts as stall_s.
        return max(self.stall_s, self.limit(LIMIT_OF_PHASE[outermost]))

    def timeout_s(self, least_s: float) -> float:
        """Return the time-out of the process group of the ranks, in seconds.

        The process group is torch's connection of the ranks. The time-out must come after each
        limit of the watchdog, because the watchdog can name the rank that stands still and the
        process group cannot. So the time-out is at least 20 % longer than the longest limit (a
        margin chosen by hand). E.g. the longest default limit is validate_s, 1500 s: the time-out
        is at least 1800 s. Tests: tests/faults/test_startup.py.

        least_s: what the user asks for (dist_timeout_s). The result is never shorter.
        """
        slow_limits_s = [self.limit(name) for name in SLOW_LIMIT_FACTORS]
        longest_s = max(self.stall_s, *slow_limits_s)
        return max(least_s, 1.2 * longest_s)
