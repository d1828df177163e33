"""Keep a store in a MongoDB database."""
