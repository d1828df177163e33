"""Run transforms of torchvision and timm at the speed of Decoders."""
