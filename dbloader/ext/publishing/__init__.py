"""Join files into a sharded store, and publish a store in object storage."""
