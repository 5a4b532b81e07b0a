"""The parts of controllers: informers, work queues, reconcilers and the Lease."""
