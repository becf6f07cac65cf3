"""Phoenix through its Query Server: Avatica's protocol buffers over HTTP."""
