"""For training elsewhere: a fitted scale and our losses inside other libraries."""
