"""Reading Hugging Face configurations."""

from kvplan.hf.files import load_config, parse_json, read_json, read_keys
from kvplan.hf.read import read_cache, read_config

__all__ = ["load_config", "parse_json", "read_cache", "read_config", "read_json", "read_keys"]
