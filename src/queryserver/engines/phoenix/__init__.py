"""Connects to Phoenix through its Query Server, with Avatica's protocol buffers over HTTP."""
