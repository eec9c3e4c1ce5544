"""The classes behind `tributary_rl`: runs, agents that act, and the handle of training under way."""
