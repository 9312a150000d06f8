"""Models on devices: log-probabilities of pairs, training, answers, judges. It knows no runs and no stores.

`settings` holds all that can be set here, without torch. `pairs/` turns comparisons into log-probabilities,
`training/` changes a model by them, `inference/` lets a model embed, answer and judge.
"""
