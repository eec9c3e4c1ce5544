"""`tributary bench`: the throughput of this machine, its bound, and the limit of one learner."""
