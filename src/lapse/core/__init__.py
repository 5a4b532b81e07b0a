"""What everything else stands on: pure values and decisions, no I/O and no event loop."""
