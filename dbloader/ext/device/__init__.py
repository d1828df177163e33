"""Random erasing of images on their device, which few trainings need."""
