"""The archiver: files that a table lists, packed into immutable shards, one update for a window."""
