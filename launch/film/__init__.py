"""Episodes in the terminal and as videos."""
