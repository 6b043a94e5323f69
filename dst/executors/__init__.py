"""Where the runs of a campaign are executed: in this process, or in one process a core."""
