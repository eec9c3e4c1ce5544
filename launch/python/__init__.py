"""What `tributary_rl` gives to a program of the user's own: runs, agents that act, training that is watched.

A run trains in a process of its own, by the code of the command line.
"""
