"""Mix several stores in a training."""
