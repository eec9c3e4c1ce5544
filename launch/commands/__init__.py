"""What a person types: checks, progress on the terminal, and the order of things."""
