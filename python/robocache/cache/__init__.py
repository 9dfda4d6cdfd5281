"""The cache, and what it stores: episodes of streams, with their statistics."""
