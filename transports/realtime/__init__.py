"""The OpenAI Realtime protocol (GA) without I/O: settings, items and events of one client's conversation."""
