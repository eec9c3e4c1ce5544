"""`tributary parity`: questions that people ask about TensorFlow's numbers, answered by experiment on their machine."""
