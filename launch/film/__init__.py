"""`tributary watch` and `record`: episodes of an agent in the terminal and as videos."""
