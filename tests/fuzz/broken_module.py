"""Fails when it is imported, as modules of projects do."""

raise RuntimeError("as programs do")
