"""The client: routing, ordered retries, deadlines. `ecstore.aio` and `ecstore` are its two public faces."""
