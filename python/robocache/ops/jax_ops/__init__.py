"""The ops in functions that JAX traces (jit, grad, vmap): their calls become XLA FFI calls. Guide: docs/jax.md."""
