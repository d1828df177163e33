"""The simulator of trainings on many nodes; docs/simulator.md shows what it predicts."""
