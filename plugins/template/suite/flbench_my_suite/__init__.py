"""The suite my-suite: `suite` is the path of its TOML file."""

from pathlib import Path

suite = Path(__file__).with_name("my-suite.toml")
