"""Events of Kubernetes: as values, aggregated, and recorded."""
