"""Experiments in the lab's world that the documentation reports: sweeps over one knob, with several seeds."""
