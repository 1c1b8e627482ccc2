"""Everything that imports TensorFlow. Runs in processes of its own, one layout each."""
