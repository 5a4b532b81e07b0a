"""The parts that run a process: coordinator, leadership, metrics and logs."""
