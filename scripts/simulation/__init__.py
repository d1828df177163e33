"""The simulator of trainings on many nodes; docs/simulator.md says what it answers."""
