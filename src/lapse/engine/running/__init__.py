"""What runs a process: coordinator, leadership, metrics and logs."""
