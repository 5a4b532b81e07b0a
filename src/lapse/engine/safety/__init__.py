"""What keeps things from being ended: holds, freezes, budgets and the clock guard, and where they are stored."""
