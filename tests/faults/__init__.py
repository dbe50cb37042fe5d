"""A machine that attacks a live agent: random schedules of faults, replayable from their seeds."""
