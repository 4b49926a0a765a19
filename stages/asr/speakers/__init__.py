"""Who speaks when in a recording."""
