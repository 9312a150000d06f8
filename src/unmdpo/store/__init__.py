"""Results on disk, found by the key of the stage that made them: complete or absent, and checked when read."""
