"""Mirrorboard: from a machine's devices to a trained Keras model, live and explained."""
