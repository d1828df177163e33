"""Several crops of an image, and boxes and masks as torchvision's tensors."""
