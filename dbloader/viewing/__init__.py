"""See a store in the browser: what it holds, and what a training sees of it."""
