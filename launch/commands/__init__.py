"""The commands: their options, checks, and progress on the terminal."""
