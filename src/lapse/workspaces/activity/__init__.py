"""Activity of workspaces: connections, leases, idle timers and probes."""
