"""Small real inputs in the layouts that people have, each with the right answer."""
