"""The methods of the asynchronous n-step family: what each has for heads, how it acts, and its loss."""
