"""Training a policy: what an update does (`trainer`), on which pairs and at which learning rate (`schedule`), and a
whole run in a folder (`loop`) with its checkpoints and metrics. Only this package changes weights."""
