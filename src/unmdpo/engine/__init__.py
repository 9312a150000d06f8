"""Models on devices: pair log-probabilities, training, answers, judges. It knows nothing about runs or stores.

`settings` holds every setting used here and does not import torch. `pairs/` turns comparisons into log-probabilities,
`training/` trains a model on them, and `inference/` uses a model to embed, answer and judge.
"""
