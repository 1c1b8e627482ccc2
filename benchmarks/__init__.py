"""What Mirrorboard costs and gains, measured side by side in one run, as ratios."""
