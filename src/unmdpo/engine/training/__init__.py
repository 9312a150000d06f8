"""Training a policy: what an update does (`trainer`), when it does it (`schedule`), and a whole run in a folder
(`loop`) with its checkpoints and metrics. Only this room changes weights."""
