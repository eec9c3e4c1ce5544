"""`tributary bench`: the throughput of this machine, and of more actors, measured or rehearsed."""
