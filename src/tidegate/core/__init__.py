"""The watermark's arithmetic: no I/O, no clock, nothing from outside the standard library."""
