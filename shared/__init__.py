"""What every process agrees on: vocabulary and mathematics. Imports no other package of the project, and no ray."""
