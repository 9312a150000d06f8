"""What a recipe can name: one table each for objectives, estimators and judges.

A row holds everything about one entry: its settings with their defaults, what it needs, and where its code is. Nothing
here imports torch, so a typo in a recipe is found in a moment, not after an hour. To add an objective, an estimator or
a judge, write its file and add its row; CONTRIBUTING.md shows how.
"""
