"""The asynchronous loop: who is sent on its way when, without Ray and without files."""
