"""Make samples from the records of a store. The datasets replace torchvision's ImageFolder."""
