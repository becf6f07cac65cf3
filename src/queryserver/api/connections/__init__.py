"""What bounds the connections of clients: how many are open, and how long each may wait."""
