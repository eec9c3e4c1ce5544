"""An episode as pictures."""
