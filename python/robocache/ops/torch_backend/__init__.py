"""The ops in plain PyTorch: the backend ``torch``, and what the tests compare the native ones with."""
