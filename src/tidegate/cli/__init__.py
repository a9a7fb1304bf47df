"""The command line: one file for each group of commands.

Importing it imports neither Spark nor Arrow nor pydantic: `tidegate --help` answers at once, and a command's
module is imported when the command is called.
"""

from __future__ import annotations


def main() -> None:
    from tidegate.cli.root import tidegate
    from tidegate.cli.signals import end_on_sigterm

    end_on_sigterm()
    tidegate(prog_name="tidegate")
