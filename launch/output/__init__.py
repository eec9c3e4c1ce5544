"""How anything that a command writes is written: files, pictures, words, exit codes, and how they came about."""
