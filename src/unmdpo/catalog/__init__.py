"""What a recipe can name: one table each for objectives, estimators and judges.

A row says all there is to know about a thing: its settings with their defaults, what it needs, and where its code is.
Nothing here imports torch, so a typo in a recipe costs a moment and not an hour. To add an objective, an estimator or
a judge, write its file and add its row; CONTRIBUTING.md shows how.
"""
