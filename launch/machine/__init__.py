"""One computer, without Ray: its cores, its memory, and TensorFlow in a process of its own."""
