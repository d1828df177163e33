"""Preparations on the device that few trainings need."""
