"""The safety gate and holds: freezes, budgets and the clock guard, and where they are stored."""
