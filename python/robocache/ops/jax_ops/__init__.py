"""The ops in functions that JAX traces (jit, grad, vmap): calls become XLA FFI calls. docs/guides/jax.md."""
