"""The ops as PyTorch operators: compiled, traced, differentiated."""
