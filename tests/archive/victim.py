"""Cycles with one of their tools set to kill them, each in a process of its own.

Importing takes longer than a cycle, so this process imports once, and forks for each line it is given:

    ["CONFIG", {"tool": "mark", "method": "move", "moment": "after"}]

It answers each with the exit code; minus nine when the cycle was killed.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from tidegate.archive.config import read_config
from tidegate.archive.contract import Share
from tidegate.archive.cycle import Cycle
from tidegate.archive.library import Unwatched, open_tools
from tidegate.testing.faults import Fault, Faulty, Moment


def cycle(config: str, plan: dict[str, Any]) -> None:
    moment = Moment(plan.get("moment", "before"))
    fault = Fault(plan["method"], plan.get("nth", 1), moment, plan.get("event"))
    with open_tools(read_config(Path(config)), command="a victim") as tools:
        setattr(tools, plan["tool"], Faulty(getattr(tools, plan["tool"]), fault))
        Cycle(tools, Unwatched(), Share(*plan.get("share", (0, 1))), plan.get("late", False)).run()


def exit_code(config: str, plan: dict[str, Any]) -> int:
    child = os.fork()
    if child == 0:
        try:
            cycle(config, plan)
        except BaseException:  # noqa: BLE001 - a child that forked must not go on as its parent
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    for line in sys.stdin:
        print(exit_code(*json.loads(line)), flush=True)
