"""Take several crops of an image, and convert boxes and masks to torchvision's tensors."""
