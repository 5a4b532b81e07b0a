"""The verbs of people: their contract, the places where they work, and their form over HTTP."""
