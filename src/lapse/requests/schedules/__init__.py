"""Schedules of captures: when a run is due, the request that it makes, and which artifacts stay."""
