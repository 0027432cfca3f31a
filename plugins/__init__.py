"""Method plugins: one method is one module, found through the entry points `flbench.methods`."""
