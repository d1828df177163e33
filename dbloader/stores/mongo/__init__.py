"""A store in a MongoDB database."""
