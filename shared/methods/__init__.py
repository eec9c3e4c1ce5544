"""The methods of the asynchronous n-step family: heads, acting and loss of each."""
