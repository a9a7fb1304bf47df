"""Tidegate inside of other people's schedulers. Each module needs the one it is named after."""
