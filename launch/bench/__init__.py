"""`tributary bench`: how fast this machine learns, what bounds it, and what one learner can take."""
