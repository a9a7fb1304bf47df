"""Configuration: YAML, `.env` and `${VAR}` in, typed and frozen values out.

`project.Project` is where to begin. This file imports nothing, so that `settings` comes without pydantic.
"""
