"""The executor's side of a source: readers turn a chunk into Arrow, exactly, and as fast as drivers go."""
