"""One machine without Ray: its cores and memory, import paths, TensorFlow's set-up, and the checks of the doctor."""
