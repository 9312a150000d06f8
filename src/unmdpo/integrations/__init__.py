"""For those who train elsewhere: a fitted scale and our losses inside other libraries."""
