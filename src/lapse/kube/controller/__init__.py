"""What controllers are made of: informers, work queues, reconcilers and the Lease."""
