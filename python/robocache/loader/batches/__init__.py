"""From positions to tensors: where rows are kept, and how they are read."""
