"""Vocabulary and mathematics of all processes. Imports no other package of the project, and no Ray."""
