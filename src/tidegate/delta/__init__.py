"""Version ranges of Delta tables: planned, processed once, recorded."""
