"""Plans: documents of what will lapse, how they are made and carried out, and who approves them."""
