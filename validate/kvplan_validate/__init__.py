"""Measure a machine, run plans on it, and show predicted beside measured. Needs torch."""
